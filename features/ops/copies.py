"""Ops that move elements without arithmetic: Concat, Cast, Pad, Tile, Dropout and friends."""

from __future__ import annotations

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.parts import copy, gradient_of, pointwise, unbroadcast
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import OpWork, Phase


@WORK_RULES.register("", "Concat")
def concat(op: OpView) -> tuple[OpWork, ...]:
    """All parts into one new tensor."""
    if len(op.inputs) == 1:
        return ()
    return (copy(op, "concat", reads=op.present_inputs, writes=(op.output(),)),)


@BACKWARD_RULES.register("", "Concat")
def concat_backward(op: OpView) -> Backward:
    """Every part's gradient is a view of the whole."""
    return Backward(passes=tuple(value.name for value in op.present_inputs))


@WORK_RULES.register("perfcast", "Contiguous")
def contiguous(op: OpView) -> tuple[OpWork, ...]:
    """A strided tensor copied into order."""
    return (copy(op, "transpose", reads=(op.input(0),), writes=(op.output(),)),)


@BACKWARD_RULES.register("perfcast", "Contiguous")
def contiguous_backward(op: OpView) -> Backward:
    """The gradient is taken as it comes: strides again, and nothing runs."""
    return Backward(passes=(op.input(0).name,))


@WORK_RULES.register("", "Cast", "CastLike")
def cast(op: OpView) -> tuple[OpWork, ...]:
    """Nothing when the type stays."""
    if op.input(0).dtype is op.output().dtype:
        return ()
    return (copy(op, "cast", reads=(op.input(0),), writes=(op.output(),)),)


@BACKWARD_RULES.register("", "Cast", "CastLike")
def cast_backward(op: OpView) -> Backward:
    """The gradient cast back."""
    data, out = op.input(0), op.output()
    if data.dtype is out.dtype:
        return Backward(passes=(data.name,))
    return Backward((copy(op, "cast", reads=(gradient_of(out),), writes=(data,), phase=Phase.BACKWARD),))


_MOVES = {
    "Pad": "pad",
    "Tile": "tile",
    "DepthToSpace": "transpose",
    "SpaceToDepth": "transpose",
    "ReverseSequence": "flip",
    "Trilu": "tril",
    "Compress": "compress",
    "CenterCropPad": "pad",
}


@WORK_RULES.register("", *_MOVES)
def move(op: OpView) -> tuple[OpWork, ...]:
    """Reads the input, writes the output."""
    data, out = op.input(0), op.output()
    if op.op_type in ("Pad", "Tile") and data.elements == out.elements:
        return ()
    return (copy(op, _MOVES[op.op_type], reads=(data,), writes=(out,)),)


@BACKWARD_RULES.register("", *_MOVES)
def move_backward(op: OpView) -> Backward:
    """The inverse move; repeated elements are summed."""
    data, out = op.input(0), op.output()
    if not move(op):
        return Backward(passes=(data.name,))
    if op.op_type == "Tile":
        return Backward(unbroadcast(op, out, data))
    kind = _MOVES[op.op_type]
    source = gradient_of(data if op.op_type == "Pad" else out)
    return Backward((copy(op, kind, reads=(source,), writes=(data,), phase=Phase.BACKWARD),))


def _mask(op: OpView) -> Value:
    return Value("mask", op.input(0).shape, DType.BOOL)


@WORK_RULES.register("", "Dropout")
def dropout(op: OpView) -> tuple[OpWork, ...]:
    """In training one kernel that also writes a byte of mask per element; nothing in inference."""
    if not op.training:
        return ()
    return (pointwise(op, "dropout", 2, reads=(op.input(0),), writes=(op.output(), _mask(op))),)


@BACKWARD_RULES.register("", "Dropout")
def dropout_backward(op: OpView) -> Backward:
    """The gradient times the mask."""
    data, mask = op.input(0), _mask(op)
    reads = (gradient_of(op.output()), mask)
    work = pointwise(op, "dropout", 2, reads=reads, writes=(data,), phase=Phase.BACKWARD)
    return Backward((work,), saved_extra_bytes=mask.size_bytes)
