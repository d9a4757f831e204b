"""Shard rules of exchanges within another group: a rank of this one exchanges its part."""

from __future__ import annotations

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split, fits
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, along
from predictor.parallel.sharding.rules.parts import operand_of


@SHARD_RULES.register("perfcast", "AllReduce", "GradientAllReduce", "AllGather", "ReduceScatter", "Scatter")
@SHARD_RULES.register("perfcast", "AllToAll", "SendRecv")
def exchange(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """The same dimension on both sides; one that the exchange cuts or joins too is cut further."""
    value, other = operand_of(op, operand), operand_of(op, -1 - operand)
    size = other.shape[split.dim]
    if value.shape[split.dim] == size:
        return along(op, {operand: split, -1 - operand: split})
    found = Split(split.dim, 1, (size,))
    if not fits(found, parts) or size % parts:
        return f"{size} do not divide over {parts} ranks"
    return along(op, {operand: split, -1 - operand: found})
