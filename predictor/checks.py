"""Checks of numbers that callers give: one wording for every face, and no NaN, text or fraction gets past."""

from __future__ import annotations

import operator
from math import isfinite
from numbers import Real
from typing import SupportsFloat, cast

from predictor.errors import InvalidInput, InvalidRequest

# What a field of type int64 on the wire can carry.
_LARGEST_WHOLE = 2**63 - 1


def whole_number(
    value: object, name: str, field: str, expected: str, kind: type[InvalidInput] = InvalidRequest
) -> int:
    """`value` as an int of at least 1; numpy integers are welcome, True and 2.0 are not.

    Raises `kind`: "`name` is `value`; expected `expected`".
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise kind(f"{name} is {_shown(value)}; expected {expected}", field=field) from None
    if number < 1:
        raise kind(f"{name} is {_shown(value)}; expected {expected}", field=field)
    if number > _LARGEST_WHOLE:
        raise kind(f"{name} is {_shown(value)}; expected at most {_LARGEST_WHOLE}", field=field)
    return number


def real_number(value: object, name: str, field: str, expected: str, low: float, high: float) -> None:
    """Raises InvalidRequest unless `value` is a finite number inside [low, high]."""
    number = _real(value)
    if number is None or not low <= number <= high:
        raise InvalidRequest(f"{name} is {_shown(value)}; expected {expected}", field=field)


def positive_number(value: object, name: str, field: str, expected: str) -> None:
    """Raises InvalidRequest unless `value` is a finite number above 0."""
    number = _real(value)
    if number is None or not (number > 0 and isfinite(number)):
        raise InvalidRequest(f"{name} is {_shown(value)}; expected {expected}", field=field)


def sendable_text(value: str, name: str, field: str) -> None:
    """Raises InvalidRequest for text that is no UTF-8, e.g. made of a command line's stray bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is {_shown(value)}; expected text in UTF-8", field=field) from None


def _real(value: object) -> float | None:
    """The number as a float; None for what is no real number or lies beyond all floats."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(cast(SupportsFloat, value))
    except OverflowError:
        return None


def _shown(value: object) -> str:
    """The value for a message: text in quotes, so that '8' does not read like 8; long ones cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
