"""Losses that are one call in the framework and several operators in a file."""

from __future__ import annotations

from predictor.features.graph import Node
from predictor.features.lowering.patterns.language import Match, rule


def _squared_error(match: Match) -> tuple[Node, ...] | None:
    """Only where the difference is spelled twice, as exporters do; code that squares a difference has one."""
    if match.draft.values[match.root.outputs[0]].elements != 1:
        return None
    if match.captures["d"] == match.captures["e"]:
        return None
    return (match.node("perfcast", "SquaredError", (match.captures["x"], match.captures["y"])),)


RULES = (rule("squared_error", ("ReduceMean(Mul(d@Sub(x, y), e@Sub(x, y)))",), _squared_error),)
