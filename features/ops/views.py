"""Ops that only change strides or a name: nothing runs, and the result shares its input's memory.

Slices and splits are views; their gradients are not: each slice fills a tensor of the whole input's size, a
split is joined again. A Transpose copies unless the fusion pass found that its readers take strides
(`perfcast_view` = 1).
"""

from __future__ import annotations

from predictor.features.lowering.engine_layout import COPIES
from predictor.features.ops.parts import copy, gradient_of, unbroadcast
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import OpWork, Phase

_RESHAPES = (
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Optional", "OptionalGetElement"),
    # The same bits under another type.
    "BitCast",
)


@WORK_RULES.register("", *_RESHAPES)
def view(op: OpView) -> tuple[OpWork, ...]:
    """Nothing runs."""
    return ()


@WORK_RULES.register("", "Expand", "Slice", "Split")
def cut(op: OpView) -> tuple[OpWork, ...]:
    """Nothing runs; one copying kernel where a pass found that tensors have no strides."""
    if not op.integer(COPIES):
        return ()
    parts = op.present_outputs
    reads = (op.input(0),) if op.op_type == "Expand" else parts
    return (copy(op, op.op_type.lower(), reads=reads, writes=parts),)


@BACKWARD_RULES.register("", *_RESHAPES)
def view_backward(op: OpView) -> Backward:
    """The gradient is the same memory."""
    return Backward(passes=(op.input(0).name,))


@BACKWARD_RULES.register("", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt")
@BACKWARD_RULES.register("", "ConcatFromSequence")
def sequence_backward(op: OpView) -> Backward:
    """Lists hold tensors, and the gradient of a joined tensor is cut without a copy."""
    passes = (value.name for value in op.present_inputs if value.dtype.is_float)
    return Backward(passes=tuple(passes))


@BACKWARD_RULES.register("", "Expand")
def expand_backward(op: OpView) -> Backward:
    """The sum over the dimensions that were repeated."""
    works = unbroadcast(op, op.output(), op.input(0))
    return Backward(works) if works else view_backward(op)


@BACKWARD_RULES.register("", "Slice")
def slice_backward(op: OpView) -> Backward:
    """Zeros of the input's shape, then the slice copied in."""
    data, out = op.input(0), op.output()
    if data.elements == out.elements:
        return view_backward(op)
    fill = copy(op, "fill", reads=(), writes=(data,), phase=Phase.BACKWARD)
    move = copy(op, "slice", reads=(gradient_of(out),), writes=(out,), phase=Phase.BACKWARD)
    return Backward((fill, move))


@BACKWARD_RULES.register("", "Split", "SplitToSequence")
def split_backward(op: OpView) -> Backward:
    """One concatenation of the parts' gradients."""
    parts = [gradient_of(value) for value in op.present_outputs]
    return Backward((copy(op, "concat", reads=parts, writes=(op.input(0),), phase=Phase.BACKWARD),))


@WORK_RULES.register("", "Transpose")
def transpose(op: OpView) -> tuple[OpWork, ...]:
    """A strided copy; a view where marked, where it moves only axes of length 1, or for a weight."""
    data = op.input(0)
    order = op.integers("perm", tuple(range(len(data.shape)))[::-1])
    moved = [axis for axis in order if data.shape[axis] != 1]
    if op.integer("perfcast_view") or moved == sorted(moved) or op.is_weight(0):
        return ()
    return (copy(op, "transpose", reads=(data,), writes=(op.output(),)),)


@BACKWARD_RULES.register("", "Transpose")
def transpose_backward(op: OpView) -> Backward:
    """A copy or a view as forward."""
    works = tuple(work.in_phase(Phase.BACKWARD) for work in transpose(op))
    return Backward(works) if works else view_backward(op)
