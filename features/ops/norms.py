"""Normalisations.

Forward reads the input and writes the output once (statistics stay on the chip); backward reads the output's
gradient and the saved input and writes the input's gradient and those of scale and shift.

FLOPs per element: forward 8 (mean 1, variance 3, normalise 2, scale and shift 2), 6 without a mean; backward
13: two products and two sums for the correction terms, normalised input 2, three more operations, scale and
shift 4. BatchNorm in inference is one multiply-add with precomputed numbers: 2.
"""

from __future__ import annotations

from math import prod

from predictor.features.graph import Value
from predictor.features.op_view import OpView
from predictor.features.ops.parts import (
    STATISTIC_BYTES,
    axes_of,
    gradient_of,
    pointwise,
    row_work,
    split_rows,
)
from predictor.features.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.work import Family, OpWork, Phase, Rows

_FORWARD_FLOPS = 8
_RMS_FLOPS = 6
_BACKWARD_FLOPS = 13


def _affine(op: OpView, *indices: int) -> tuple[Value, ...]:
    return tuple(value for index in indices if (value := op.optional(index)) is not None)


def _forward(
    op: OpView, kind: str, rows: Rows, statistics: int, flops: int, *affine: int
) -> tuple[OpWork, ...]:
    data = op.input(0)
    return (
        row_work(
            op,
            Family.NORMALIZATION,
            kind,
            rows,
            flops,
            reads=(data, *_affine(op, *affine)),
            writes=(op.output(),),
            statistics=statistics if op.training else 0,
        ),
    )


def _backward(
    op: OpView, kind: str, rows: Rows, statistics: int, *affine: int, launches: int = 2
) -> Backward:
    data, out, parameters = op.input(0), op.output(), _affine(op, *affine)
    wanted = [data] if op.wants_gradient(0) else []
    wanted += [op.input(index) for index in affine if op.wants_gradient(index)]
    # `out` stands for its gradient, which has the same type.
    work = row_work(
        op,
        Family.NORMALIZATION,
        kind,
        rows,
        _BACKWARD_FLOPS,
        reads=(out, data, *parameters[:1]),
        writes=wanted,
        phase=Phase.BACKWARD,
        statistics=statistics,
        launches=launches,
    )
    return Backward((work,), (data.name, *(p.name for p in parameters[:1])), statistics * STATISTIC_BYTES)


def _layer_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    axis = op.integer("axis", -1) % max(1, len(shape))
    return split_rows(shape, range(axis, len(shape)))


@WORK_RULES.register("", "LayerNormalization")
def layer_norm(op: OpView) -> tuple[OpWork, ...]:
    """Mean and deviation per row."""
    rows = _layer_rows(op)
    return _forward(op, "layer_norm", rows, 2 * rows.rows, _FORWARD_FLOPS, 1, 2)


@BACKWARD_RULES.register("", "LayerNormalization")
def layer_norm_backward(op: OpView) -> Backward:
    """One kernel for the input, one for scale and shift."""
    rows = _layer_rows(op)
    return _backward(op, "layer_norm", rows, 2 * rows.rows, 1, 2)


@WORK_RULES.register("", "RMSNormalization", "SimplifiedLayerNormalization")
@WORK_RULES.register("com.microsoft", "SimplifiedLayerNormalization")
def rms_norm(op: OpView) -> tuple[OpWork, ...]:
    """Root mean square per row."""
    rows = _layer_rows(op)
    return _forward(op, "rms_norm", rows, rows.rows, _RMS_FLOPS, 1)


@BACKWARD_RULES.register("", "RMSNormalization", "SimplifiedLayerNormalization")
@BACKWARD_RULES.register("com.microsoft", "SimplifiedLayerNormalization")
def rms_norm_backward(op: OpView) -> Backward:
    """One kernel for the input, one for the scale."""
    rows = _layer_rows(op)
    return _backward(op, "rms_norm", rows, rows.rows, 1)


@WORK_RULES.register("com.microsoft", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_layer_norm(op: OpView) -> tuple[OpWork, ...]:
    """The residual addition and the norm in one kernel: (x, skip, scale, ...)."""
    shape = op.input(0).shape
    rows = Rows(prod(shape[:-1]), shape[-1])
    return (
        row_work(
            op,
            Family.NORMALIZATION,
            "layer_norm",
            rows,
            _FORWARD_FLOPS + 1,
            reads=op.present_inputs,
            writes=op.present_outputs,
        ),
    )


def _channel_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    channels = shape[1] if len(shape) > 1 else 1
    return Rows(channels, op.input(0).elements // max(1, channels))


@WORK_RULES.register("", "BatchNormalization")
def batch_norm(op: OpView) -> tuple[OpWork, ...]:
    """Training: statistics per channel over the batch. Inference: one scale and shift per channel.

    A node in training mode takes its statistics in inference too (weight standardisation).
    """
    rows = _channel_rows(op)
    if not op.training and not op.integer("training_mode"):
        return (
            row_work(
                op,
                Family.NORMALIZATION,
                "batch_norm_inference",
                rows,
                2,
                reads=op.present_inputs,
                writes=(op.output(),),
            ),
        )
    return _forward(op, "batch_norm", rows, 4 * rows.rows, _FORWARD_FLOPS, 1, 2, 3, 4)


@BACKWARD_RULES.register("", "BatchNormalization")
def batch_norm_backward(op: OpView) -> Backward:
    """Sums per channel, then the input's gradient."""
    rows = _channel_rows(op)
    return _backward(op, "batch_norm", rows, 2 * rows.rows, 1, 2)


@WORK_RULES.register("", "InstanceNormalization")
def instance_norm(op: OpView) -> tuple[OpWork, ...]:
    """Statistics per sample and channel."""
    rows = split_rows(op.input(0).shape, range(2, len(op.input(0).shape)))
    return _forward(op, "instance_norm", rows, 2 * rows.rows, _FORWARD_FLOPS, 1, 2)


@BACKWARD_RULES.register("", "InstanceNormalization")
def instance_norm_backward(op: OpView) -> Backward:
    """As BatchNorm, per sample."""
    rows = split_rows(op.input(0).shape, range(2, len(op.input(0).shape)))
    return _backward(op, "instance_norm", rows, 2 * rows.rows, 1, 2)


def _group_rows(op: OpView) -> Rows:
    rows = op.input(0).shape[0] * op.integer("num_groups", 1)
    return Rows(rows, op.input(0).elements // max(1, rows))


@WORK_RULES.register("", "GroupNormalization")
@WORK_RULES.register("com.microsoft", "GroupNorm")
def group_norm(op: OpView) -> tuple[OpWork, ...]:
    """Statistics per sample and group; frameworks run them in one kernel and normalise in a second."""
    rows = _group_rows(op)
    return _forward(op, "group_norm", rows, 2 * rows.rows, _FORWARD_FLOPS, 1, 2)


@BACKWARD_RULES.register("", "GroupNormalization")
def group_norm_backward(op: OpView) -> Backward:
    """Sums per group, the input's gradient, scale and shift."""
    rows = _group_rows(op)
    return _backward(op, "group_norm", rows, 2 * rows.rows, 1, 2, launches=3)


@WORK_RULES.register("", "LpNormalization", "MeanVarianceNormalization")
def lp_norm(op: OpView) -> tuple[OpWork, ...]:
    """Rows scaled to unit length, or to zero mean and unit variance."""
    shape = op.input(0).shape
    if op.op_type == "LpNormalization":
        axes: tuple[int, ...] = (op.integer("axis", -1) % max(1, len(shape)),)
    else:
        axes = axes_of(op, len(shape), axes_input=1, default=(0, 2, 3))
    return _forward(op, "lp_norm", split_rows(shape, axes), 0, 4)


@BACKWARD_RULES.register("", "LpNormalization", "MeanVarianceNormalization")
def lp_norm_backward(op: OpView) -> Backward:
    """One kernel that reads the input again."""
    forward = lp_norm(op)[0]
    shape = forward.shape
    rows = shape if isinstance(shape, Rows) else Rows(1, op.input(0).elements)
    return _backward(op, "lp_norm", rows, 0, launches=1)


@WORK_RULES.register("", "LRN")
def local_response_norm(op: OpView) -> tuple[OpWork, ...]:
    """A window of squares over the channels, a power and a division."""
    return (pointwise(op, "lrn", 2 * op.integer("size", 1) + 4),)


@BACKWARD_RULES.register("", "LRN")
def local_response_norm_backward(op: OpView) -> Backward:
    """Reads input, output and gradient."""
    data, out = op.input(0), op.output()
    gradient = gradient_of(out)
    flops = 4 * op.integer("size", 1) + 6
    work = pointwise(op, "lrn", flops, reads=(gradient, data, out), writes=(data,), phase=Phase.BACKWARD)
    return Backward((work,), (data.name, out.name))
