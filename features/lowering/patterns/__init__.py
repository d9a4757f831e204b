"""Spelled-out blocks by family, and which of them to try at a node."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from predictor.features.lowering.patterns import activations, attention, linear, losses, normalizations
from predictor.features.lowering.patterns.language import Call, Rule, may_match, required_op_types
from predictor.types import Runtime

_FAMILIES = (normalizations, attention, activations, linear, losses)


class Candidates:
    """The spellings that can occur in one graph, looked up by a root and the ops that feed it.

    Graphs have few such neighbourhoods, so nearly every lookup is one in a dictionary.
    """

    def __init__(self, runtime: Runtime, op_types: frozenset[str], release: float = 0.0) -> None:
        self._by_root = {
            root: tuple((spelling, rule) for spelling, rule, needed in entries if needed <= op_types)
            for root, entries in _by_root(runtime, release).items()
        }
        self._found: dict[tuple[str, tuple[str, ...]], tuple[tuple[Call, Rule], ...]] = {}

    def at(self, op_type: str, producers: tuple[str, ...]) -> tuple[tuple[Call, Rule], ...]:
        """Spellings, longer blocks first, whose root is an `op_type` fed by nodes of types `producers`."""
        key = (op_type, producers)
        if key not in self._found:
            self._found[key] = tuple(
                (spelling, rule)
                for spelling, rule in self._by_root.get(op_type, ())
                if may_match(spelling, producers)
            )
        return self._found[key]


@cache
def _by_root(runtime: Runtime, release: float) -> Mapping[str, tuple[tuple[Call, Rule, frozenset[str]], ...]]:
    found: dict[str, list[tuple[Call, Rule, frozenset[str]]]] = {}
    for family in _FAMILIES:
        for rule in family.RULES:
            if rule.applies(runtime, release):
                for spelling in rule.spellings:
                    needed = required_op_types(spelling)
                    for op_type in spelling.op_types:
                        found.setdefault(op_type, []).append((spelling, rule, needed))
    return {op_type: tuple(entries) for op_type, entries in found.items()}
