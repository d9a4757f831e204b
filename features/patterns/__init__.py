"""Spelled-out blocks by family, indexed by the op at their root, in the order of attempts."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.features.patterns import activations, attention, linear, normalizations
from predictor.features.patterns.language import Call, Rule
from predictor.types import Runtime


def rules_by_root(runtime: Runtime) -> Mapping[str, tuple[tuple[Call, Rule], ...]]:
    """All spellings that apply in `runtime`, by the op type of the block's last node; longer blocks first."""
    found: dict[str, list[tuple[Call, Rule]]] = {}
    for family in (normalizations, attention, activations, linear):
        for rule in family.RULES:
            if runtime in rule.runtimes:
                for spelling in rule.spellings:
                    for op_type in spelling.op_types:
                        found.setdefault(op_type, []).append((spelling, rule))
    return {op_type: tuple(spellings) for op_type, spellings in found.items()}


BY_ROOT = {runtime: rules_by_root(runtime) for runtime in Runtime}
