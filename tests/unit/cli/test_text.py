from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable, SideBySide
from predictor.types import Interval


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"), (0.00123, "0.00123"), (1, "1.00"), (12.34, "12.3"), (99.96, "100"), (556.7, "557"),
        (2584, "2,580"), (1234567, "1,230,000"), (1e-5, "1e-05"), (3e17, "3e+17"), (-42.0, "-42.0"),
    ],
)  # fmt: skip
def test_three_digits(value: float, expected: str) -> None:
    assert txt.number(value) == expected


def test_spans_name_a_common_unit_once() -> None:
    assert txt.span(Interval(0.0124, 0.0111, 0.0142), txt.seconds) == "11.1 to 14.2 ms"
    assert txt.span(Interval(1, 0.9, 1.1), txt.seconds) == "900 ms to 1.10 s"


@pytest.mark.parametrize(("share", "expected"), [(0, "0 %"), (0.001, "<1 %"), (0.334, "33 %"), (1, "100 %")])
def test_percent(share: float, expected: str) -> None:
    assert txt.percent(share) == expected


@given(st.floats(-1, 2), st.integers(1, 40))
def test_bars_fill_their_cells_and_grow(share: float, width: int) -> None:
    bar = txt.bar(share, width)
    assert cell_len(bar) == width
    assert (bar.strip() == "") == (share <= 0)
    assert txt.bar(share + 0.1, width).count("█") >= bar.count("█")


def _lines(table: FittedTable, width: int) -> list[str]:
    console = Console(width=width, record=True, file=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def test_narrow_tables_lose_their_least_important_columns() -> None:
    table = FittedTable("name", ">value?", "note??")
    table.add_row("resnet", "12", "a long remark about it")
    table.add_row("bert")
    assert "remark" in "".join(_lines(table, 60))
    middle = "".join(_lines(table, 16))
    assert "12" in middle
    assert "remark" not in middle
    narrow = "".join(_lines(table, 6))
    assert "resnet" in narrow
    assert "12" not in narrow


def test_blocks_stack_when_they_do_not_fit() -> None:
    blocks = SideBySide(Text("left " * 4), Text("right " * 4))
    console = Console(width=60, force_terminal=False)
    with console.capture() as capture:
        console.print(blocks)
    assert "left left left left" in capture.get().splitlines()[0]
    assert "right" in capture.get().splitlines()[0]
    narrow = Console(width=30, force_terminal=False)
    with narrow.capture() as capture:
        narrow.print(blocks)
    assert [line.split()[0] if line.strip() else "" for line in capture.get().splitlines()] == [
        "left",
        "",
        "right",
    ]
