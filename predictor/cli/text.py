"""Numbers as people read them: three significant digits and a unit, never more than the interval supports."""

from __future__ import annotations

from collections.abc import Callable

from predictor.types import Interval
from predictor.units import format_bytes, format_quantity, format_time

Formatter = Callable[[float], str]

_FULL, _PARTS = "█", " ▏▎▍▌▋▊▉"


def seconds(value: float) -> str:
    """`12.4 ms`."""
    return format_time(value)


def size(value: float) -> str:
    """`14.2 GiB`."""
    return format_bytes(value)


def joules(value: float) -> str:
    """`2.91 J`."""
    return format_quantity(value, "J")


def watts(value: float) -> str:
    """`234 W`."""
    return format_quantity(value, "W")


def rate(value: float) -> str:
    """`2,580 samples/s`; small rates keep their digits."""
    return f"{number(value)} samples/s"


def number(value: float) -> str:
    """Three significant digits with thousands separated, no exponent between 0.001 and 10^15."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.3g}"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 100:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")


def span(interval: Interval, form: Formatter) -> str:
    """`11.1 to 14.2 ms`: the bounds, with one unit where both share it."""
    low, high = form(interval.low), form(interval.high)
    low_number, _, low_unit = low.partition(" ")
    return f"{low_number if high.endswith(' ' + low_unit) else low} to {high}"


def percent(fraction: float) -> str:
    """`33 %`; below half a percent, `<1 %`."""
    return "<1 %" if 0 < fraction < 0.005 else f"{fraction:.0%}".replace("%", " %")


def bar(fraction: float, width: int) -> str:
    """A bar of `width` cells, in steps of an eighth of a cell; anything above nothing is visible."""
    eighths = round(max(0.0, min(1.0, fraction)) * width * 8)
    if fraction > 0:
        eighths = max(eighths, 1)
    whole, part = divmod(eighths, 8)
    return (_FULL * whole + (_PARTS[part] if part else "")).ljust(width)


def words(name: str) -> str:
    """`optimizer_state` as `optimizer state`."""
    return name.replace("_", " ")


def shortened(text: str, length: int) -> str:
    """At most `length` characters; the end stays, for that is where exporters put the number."""
    return text if len(text) <= length else f"…{text[1 - length :]}"


def short_id(identity: str) -> str:
    """The first twelve digits of a sha256 id."""
    kind, colon, digits = identity.partition(":")
    return f"{kind}:{digits[:12]}" if colon and len(digits) > 12 else identity
