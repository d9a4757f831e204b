"""Numbers as people read them: three significant digits in a fitting unit."""

from __future__ import annotations

import pytest

from predictor.units import GIB, MIB, format_bytes, format_quantity, format_time


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.0, "0 s"),
        (3.1e-8, "31.0 ns"),
        (0.01239, "12.4 ms"),
        (0.9996, "1.00 s"),
        (59.0, "59.0 s"),
        (31962.0, "8.88 h"),
    ],
)
def test_time(time_s: float, text: str) -> None:
    assert format_time(time_s) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (512, "512 B"), (1.5 * MIB, "1.50 MiB"), (79.6 * GIB, "79.6 GiB")]
)
def test_bytes(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_quantities_take_decimal_prefixes() -> None:
    assert format_quantity(8.18e9, "FLOP") == "8.18 GFLOP"
    assert format_quantity(2.25e15, "FLOP/s") == "2.25 PFLOP/s"
    assert format_quantity(0, "J") == "0 J"
