"""Shard rules of pointwise ops: along any dimension, whole where an operand is broadcast."""

from __future__ import annotations

from predictor.features.ops.elementwise import NARY, UNARY
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Recut, Split
from predictor.parallel.sharding.registry import LINEAR, SHARD_RULES, Axis, Linear, along
from predictor.parallel.sharding.rules.parts import operand_of, operands_of

LINEAR.register("", "Add", "Sum", "Sub")(Linear.ALL)
LINEAR.register("", "Mul")(Linear.ANY)
LINEAR.register("", "Div", "Neg", "Cast")(Linear.FIRST)


@SHARD_RULES.register("", *UNARY, *NARY, "Cast", "CastLike", "Dropout", "Expand", "QuantizeLinear")
@SHARD_RULES.register("perfcast", "Gelu", "Silu", "Mish", "Contiguous")
@SHARD_RULES.register("com.microsoft", "Gelu", "FastGelu", "QuickGelu", "BiasGelu", "BiasDropout", "BiasAdd")
def pointwise(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Operands align at their last dimension."""
    shape = op.output().shape
    value = operand_of(op, operand)
    dim = split.dim + len(shape) - len(value.shape)
    if dim < 0 or value.shape[split.dim] != shape[dim]:
        return f"{op.op_type} repeats dimension {split.dim}"
    places: dict[int, Split | None] = {}
    for index, other in operands_of(op).items():
        own = dim - (len(shape) - len(other.shape))
        if own >= 0 and other.shape[own] == shape[dim]:
            places[index] = Split(own, split.outer, split.sizes)
    return along(op, places)


# Kinds that a compiler's group may hold and still be split like one of them.
_POINTWISE = frozenset({*UNARY, *NARY, "Cast", "Dropout", "Silu", "Mish"})


@SHARD_RULES.register("perfcast", "FusedPointwise")
def fused(op: OpView, operand: int, split: Split, parts: int) -> Axis | Recut | str:
    """A group of pointwise ops only; others must be split before a compiler groups them."""
    kinds = op.text("kinds").split(",")
    if not _POINTWISE.issuperset(kinds) or len({value.shape for value in op.present_outputs}) > 1:
        return "was grouped by a compiler before it was split"
    found = pointwise(op, operand, split, parts)
    if not isinstance(found, Axis):
        return found
    flops = op.integer("flops") // parts
    return Axis(found.inputs, found.outputs, attributes={"flops": flops})
