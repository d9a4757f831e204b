"""Spelled-out blocks by family, indexed by the op at their root, in the order of attempts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from predictor.features.patterns import activations, attention, linear, normalizations
from predictor.features.patterns.language import Call, Rule, may_match
from predictor.types import Runtime


@cache
def spellings(runtime: Runtime, op_type: str, producers: tuple[str, ...]) -> tuple[tuple[Call, Rule], ...]:
    """Spellings that may end in a node of `op_type` whose inputs come from nodes of the types `producers`.

    Longer blocks come first. Graphs have few such neighbourhoods, so nearly every call is a lookup.
    """
    return tuple(
        (spelling, rule)
        for spelling, rule in _by_root(runtime).get(op_type, ())
        if may_match(spelling, producers)
    )


@cache
def _by_root(runtime: Runtime) -> Mapping[str, tuple[tuple[Call, Rule], ...]]:
    found: dict[str, list[tuple[Call, Rule]]] = {}
    for family in (normalizations, attention, activations, linear):
        for rule in family.RULES:
            if runtime in rule.runtimes:
                for spelling in rule.spellings:
                    for op_type in spelling.op_types:
                        found.setdefault(op_type, []).append((spelling, rule))
    return {op_type: tuple(entries) for op_type, entries in found.items()}
