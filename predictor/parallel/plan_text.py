"""A plan as a line of text: `dp=8 tp=2 recompute=full`, fields that differ from the default only."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from predictor.errors import InvalidPlan
from predictor.parallel.plan import Plan

_DEFAULTS = {item.name: getattr(Plan(), item.name) for item in fields(Plan)}
_TRUTH = {"true": True, "false": False}


def parse_plan(text: str) -> Plan:
    """Inverse of `format_plan`; empty text is one device. Raises InvalidPlan, UnknownName."""
    found: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in _DEFAULTS or not value:
            near = get_close_matches(name, _DEFAULTS, 1)
            hint = f"; did you mean {near[0]}=?" if near else f"; known: {', '.join(_DEFAULTS)}"
            raise InvalidPlan(f"plan: {word!r} is no name=value of a plan{hint}", field="plan")
        found[name] = _value(name, value)
    return Plan(**found)


def format_plan(plan: Plan) -> str:
    """`dp=8 tp=2`: empty for one device."""
    parts = []
    for name, default in _DEFAULTS.items():
        value = getattr(plan, name)
        if isinstance(value, frozenset):
            value = tuple(sorted(value))
        if value not in (default, ()):
            parts.append(f"{name}={','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(parts)


def _value(name: str, text: str) -> object:
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        if text.lower() not in _TRUTH:
            raise InvalidPlan(f"plan: {name} is {text!r}; expected true or false", field=f"plan.{name}")
        return _TRUTH[text.lower()]
    if default is None or isinstance(default, int | float):
        kind = float if isinstance(default, float) else int
        try:
            return kind(text)
        except ValueError:
            raise InvalidPlan(f"plan: {name} is {text!r}; expected a number", field=f"plan.{name}") from None
    return text
