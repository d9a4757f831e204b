"""Units at the edges: SI base units inside, readable ones in text. Names carry the unit."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30
KILO, MEGA, GIGA, TERA = 1e3, 1e6, 1e9, 1e12

_TIME_STEPS = ((3600.0, "h"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_STEPS = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
_DECIMAL_STEPS = (
    (1e15, "P"),
    (1e12, "T"),
    (1e9, "G"),
    (1e6, "M"),
    (1e3, "k"),
    (1.0, ""),
    (1e-3, "m"),
    (1e-6, "µ"),
)


def format_time(time_s: float) -> str:
    """Three significant digits, e.g. `12.4 ms`."""
    return _scaled(time_s, _TIME_STEPS)


def format_bytes(size_bytes: float) -> str:
    """Three significant digits in binary units, e.g. `14.2 GiB`."""
    return _scaled(size_bytes, _BYTE_STEPS)


def format_quantity(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix, e.g. `8.18 GFLOP`."""
    return _scaled(value, tuple((step, prefix + unit) for step, prefix in _DECIMAL_STEPS))


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return f"0 {next(unit for step, unit in steps if step == 1)}".rstrip()
    step, unit = next(((s, u) for s, u in steps if abs(value) >= s * 0.9995), steps[-1])
    scaled = value / step
    digits = max(0, 2 - len(str(int(abs(scaled)))) + 1)
    return f"{scaled:.{digits}f} {unit}".rstrip()
