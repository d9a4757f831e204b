"""Shard rules of ops over rows: norms, softmax, reductions, sorting. Rows stay whole, there are fewer."""

from __future__ import annotations

from predictor.features.ops.parts import axes_of
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.registry import LINEAR, SHARD_RULES, Axis, Linear, along
from predictor.parallel.sharding.rules.parts import same_dimensions

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
_SUMS = frozenset({"ReduceSum", "ReduceMean"})
_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)

LINEAR.register("", *_SUMS)(Linear.FIRST)


@SHARD_RULES.register("", *_NORMS)
@SHARD_RULES.register("com.microsoft", "LayerNormalization", "SimplifiedLayerNormalization")
@SHARD_RULES.register("com.microsoft", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def norm(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along the dimensions in front of the rows."""
    rank = len(op.input(0).shape)
    return same_dimensions(op, operand, split, set(range(op.integer("axis", -1) % rank, rank)))


@SHARD_RULES.register("", "Softmax", "LogSoftmax", "Hardmax")
def softmax_before_13(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Everything from `axis` on is one row."""
    rank = len(op.input(0).shape)
    return same_dimensions(op, operand, split, set(range(op.integer("axis", 1) % rank, rank)))


@SHARD_RULES.register("", "Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along all dimensions but one."""
    return same_dimensions(op, operand, split, {op.integer("axis", -1) % len(op.input(0).shape)})


@SHARD_RULES.register("", *_REDUCTIONS)
def reduction(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along what stays; sums also along what goes, and are added up between ranks."""
    rank = len(op.input(0).shape)
    axes = set(axes_of(op, rank, axes_input=1, default=range(rank)))
    return _reduced(op, operand, split, axes, sums=op.op_type in _SUMS)


@SHARD_RULES.register("", "ArgMax", "ArgMin")
def arg_max(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along what stays."""
    axes = {op.integer("axis") % len(op.input(0).shape)}
    return _reduced(op, operand, split, axes, sums=False)


def _reduced(op: OpView, operand: int, split: Split, axes: set[int], *, sums: bool) -> Axis | str:
    rank = len(op.input(0).shape)
    kept = list(range(rank)) if op.integer("keepdims", 1) else [d for d in range(rank) if d not in axes]
    if operand == 0 and split.dim in axes:
        return along(op, {0: split}, sums=True) if sums else f"{op.op_type} runs over dimension {split.dim}"
    if operand not in (0, -1):
        return f"{op.op_type} cannot be split along its axes"
    dim = split.dim if operand == 0 else kept[split.dim]
    if dim in axes:
        return f"{op.op_type} runs over dimension {dim}"
    moved = split._replace(dim=dim)
    return along(op, {0: moved, -1: split._replace(dim=kept.index(dim))})


@SHARD_RULES.register("", "TopK")
def top_k(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along all dimensions but the searched one; a full sort runs within what each rank holds."""
    data, out = op.input(0).shape, op.output().shape
    axis = op.integer("axis", -1) % len(data)
    blocked = {axis} if data[axis] != out[axis] else set()
    return same_dimensions(op, operand, split, blocked)


@SHARD_RULES.register("", "CumSum")
def running_sum(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along all dimensions but the summed one."""
    axis = op.constant(1)
    rank = len(op.input(0).shape)
    blocked = {axis[0] % rank} if axis else set(range(rank))
    return same_dimensions(op, operand, split, blocked)
