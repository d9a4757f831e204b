"""Pooling windows and global pooling. FLOPs: one per window element and output."""

from __future__ import annotations

from math import prod

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.parts import gradient_of, pointwise, row_work, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase, Rows

_INDEX_BYTES = DType.INT64.bits // 8
_KINDS = {"MaxPool": "max_pool", "AveragePool": "average_pool", "LpPool": "lp_pool"}


@WORK_RULES.register("", *_KINDS)
def pool(op: OpView) -> tuple[OpWork, ...]:
    """One kernel. In training, max pooling also writes the position of each maximum (64-bit)."""
    out = op.output()
    indices = out.elements * _INDEX_BYTES if op.training and op.op_type == "MaxPool" else 0
    return (
        work(
            op,
            Family.POOLING,
            _KINDS[op.op_type],
            Elements(out.elements),
            reads=(op.input(0),),
            writes=op.present_outputs,
            flops=out.elements * prod(op.integers("kernel_shape")),
            extra_write_bytes=0 if op.has_output(1) else indices,
        ),
    )


@BACKWARD_RULES.register("", *_KINDS)
def pool_backward(op: OpView) -> Backward:
    """Spreads the gradient over the window, or scatters it to the maxima; torch keeps the input."""
    data, out = op.input(0), op.output()
    is_max = op.op_type == "MaxPool"
    indices = out.elements * _INDEX_BYTES if is_max else 0
    spread = work(
        op,
        Family.POOLING,
        _KINDS[op.op_type],
        Elements(data.elements),
        reads=(gradient_of(out), *((data, out) if op.op_type == "LpPool" else ())),
        writes=(data,),
        flops=out.elements * (1 if is_max else prod(op.integers("kernel_shape"))),
        phase=Phase.BACKWARD,
        extra_read_bytes=indices,
    )
    return Backward((spread,), (data.name,), indices)


def _global_rows(op: OpView) -> Rows:
    rows = op.output().elements
    return Rows(rows, max(1, op.input(0).elements // max(1, rows)))


@WORK_RULES.register("", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(op: OpView) -> tuple[OpWork, ...]:
    """A reduction over all spatial positions: one row per sample and channel."""
    kind = {"GlobalAveragePool": "mean", "GlobalMaxPool": "max", "GlobalLpPool": "l2"}[op.op_type]
    rows = _global_rows(op)
    return (row_work(op, Family.REDUCTION, kind, rows, 1, reads=(op.input(0),), writes=(op.output(),)),)


@BACKWARD_RULES.register("", "GlobalAveragePool")
def global_average_backward(op: OpView) -> Backward:
    """The broadcast gradient over the number of positions."""
    out, data = op.output(), op.input(0)
    return Backward(
        (pointwise(op, "div", 1, reads=(gradient_of(out),), writes=(data,), phase=Phase.BACKWARD),)
    )


@BACKWARD_RULES.register("", "GlobalMaxPool", "GlobalLpPool")
def global_max_backward(op: OpView) -> Backward:
    """Reads the kept input again."""
    out, data = op.output(), op.input(0)
    reads = (gradient_of(out), data)
    return Backward(
        (pointwise(op, "max", 1, reads=reads, writes=(data,), phase=Phase.BACKWARD),), (data.name,)
    )


@WORK_RULES.register("", "RoiAlign", "MaxRoiPool")
def roi_pool(op: OpView) -> tuple[OpWork, ...]:
    """Four taps per sample; reads what it samples, at most the whole input."""
    out, data = op.output(), op.input(0)
    taps = 4 * max(1, op.integer("sampling_ratio", 1)) ** 2
    touched = min(data.elements, taps * out.elements)
    sampled = Value("sampled", (touched,), data.dtype)
    rois = op.input(1)
    return (
        work(
            op,
            Family.POOLING,
            "roi_pool",
            Elements(out.elements),
            reads=(sampled, rois),
            writes=(out,),
            flops=2 * taps * out.elements,
        ),
    )


@BACKWARD_RULES.register("", "RoiAlign", "MaxRoiPool")
def roi_pool_backward(op: OpView) -> Backward:
    """Zeros, then four scattered additions per sample."""
    forward = roi_pool(op)[0]
    fill = pointwise(op, "fill", 0, reads=(), writes=(op.input(0),), phase=Phase.BACKWARD)
    return Backward((fill, forward.in_phase(Phase.BACKWARD)), (op.input(1).name,))
