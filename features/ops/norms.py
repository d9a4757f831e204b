"""Normalisations, kernel by kernel.

Rows short enough for the chip (layer and RMS norm) are read once forward; channels of a batch and groups
(batch, instance and group norm) are read twice, for the statistics and for the result. Backward, one kernel
sums the gradients of scale and shift over all rows and one makes the input's gradient: both read the output's
gradient and the saved input.

FLOPs per element: statistics 4 (mean 1, variance 3; 2 without a mean), normalise, scale and shift 4; backward
sums 5 (normalised input 2, product, two sums), the input's gradient 8. Batch norm in inference is one
multiply-add with precomputed numbers: 2.
"""

from __future__ import annotations

from math import prod

from predictor.features.graph import Value
from predictor.features.ops.parts import (
    STATISTIC_BYTES,
    axes_of,
    gradient_of,
    pointwise,
    row_work,
    split_rows,
)
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Family, OpWork, Phase, Rows

_STATISTICS_FLOPS = 4
_SQUARES_FLOPS = 2
_NORMALISE_FLOPS = 4
_SUMS_FLOPS = 5
_GRADIENT_FLOPS = 8


def _affine(op: OpView) -> tuple[Value, ...]:
    """Scale and shift, as far as they are given."""
    return tuple(value for value in (op.optional(1), op.optional(2)) if value is not None)


def _one_pass(op: OpView, kind: str, rows: Rows, statistics: int, flops: int) -> tuple[OpWork, ...]:
    reads, writes = (op.input(0), *_affine(op)), (op.output(),)
    kept = statistics if op.training else 0
    return (
        row_work(op, Family.NORMALIZATION, kind, rows, flops, reads=reads, writes=writes, statistics=kept),
    )


def _two_passes(op: OpView, kind: str, rows: Rows) -> tuple[OpWork, ...]:
    data = op.input(0)
    first = row_work(
        op,
        Family.NORMALIZATION,
        f"{kind}_statistics",
        rows,
        _STATISTICS_FLOPS,
        reads=(data,),
        writes=(),
        statistics=2 * rows.rows,
    )
    reads, writes = (data, *_affine(op)), (op.output(),)
    second = row_work(op, Family.NORMALIZATION, kind, rows, _NORMALISE_FLOPS, reads=reads, writes=writes)
    return first, second


def _backward(op: OpView, kind: str, rows: Rows, statistics: int, *, sums_first: bool = False) -> Backward:
    """`sums_first`: the input's gradient needs the sums, so they always run."""
    data, scale = op.input(0), op.optional(1)
    gradient = gradient_of(op.output())
    trained = [op.input(index) for index in (1, 2) if op.wants_gradient(index)]
    works: list[OpWork] = []
    if trained or sums_first:
        works.append(
            row_work(
                op,
                Family.NORMALIZATION,
                f"{kind}_sums",
                rows,
                _SUMS_FLOPS,
                reads=(gradient, data),
                writes=trained,
                phase=Phase.BACKWARD,
                statistics=statistics,
            )
        )
    if op.wants_gradient(0):
        works.append(
            row_work(
                op,
                Family.NORMALIZATION,
                kind,
                rows,
                _GRADIENT_FLOPS,
                reads=(gradient, data) if scale is None else (gradient, data, scale),
                writes=(data,),
                phase=Phase.BACKWARD,
                statistics=statistics,
            )
        )
    kept = (data.name,) if scale is None else (data.name, scale.name)
    return Backward(tuple(works), kept, statistics * STATISTIC_BYTES)


def _layer_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    axis = op.integer("axis", -1) % max(1, len(shape))
    return split_rows(shape, range(axis, len(shape)))


@WORK_RULES.register("", "LayerNormalization")
def layer_norm(op: OpView) -> tuple[OpWork, ...]:
    """Mean and deviation per row."""
    rows = _layer_rows(op)
    return _one_pass(op, "layer_norm", rows, 2 * rows.rows, _STATISTICS_FLOPS + _NORMALISE_FLOPS)


@BACKWARD_RULES.register("", "LayerNormalization")
def layer_norm_backward(op: OpView) -> Backward:
    """One kernel for scale and shift, one for the input."""
    rows = _layer_rows(op)
    return _backward(op, "layer_norm", rows, 2 * rows.rows)


@WORK_RULES.register("", "RMSNormalization", "SimplifiedLayerNormalization")
@WORK_RULES.register("com.microsoft", "SimplifiedLayerNormalization")
def rms_norm(op: OpView) -> tuple[OpWork, ...]:
    """Root mean square per row."""
    rows = _layer_rows(op)
    return _one_pass(op, "rms_norm", rows, rows.rows, _SQUARES_FLOPS + _NORMALISE_FLOPS)


@BACKWARD_RULES.register("", "RMSNormalization", "SimplifiedLayerNormalization")
@BACKWARD_RULES.register("com.microsoft", "SimplifiedLayerNormalization")
def rms_norm_backward(op: OpView) -> Backward:
    """One kernel for the scale, one for the input."""
    rows = _layer_rows(op)
    return _backward(op, "rms_norm", rows, rows.rows)


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
            1 + _STATISTICS_FLOPS + _NORMALISE_FLOPS,
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
    """Training: statistics per channel over the batch. Inference: one scale and shift per channel."""
    rows = _channel_rows(op)
    if op.training:
        return _two_passes(op, "batch_norm", rows)
    kind, writes = "batch_norm_inference", (op.output(),)
    return (row_work(op, Family.NORMALIZATION, kind, rows, 2, reads=op.present_inputs, writes=writes),)


@BACKWARD_RULES.register("", "BatchNormalization")
def batch_norm_backward(op: OpView) -> Backward:
    """Sums per channel, then the input's gradient."""
    rows = _channel_rows(op)
    return _backward(op, "batch_norm", rows, 2 * rows.rows, sums_first=True)


def _plane_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    return split_rows(shape, range(2, len(shape)))


@WORK_RULES.register("", "InstanceNormalization")
def instance_norm(op: OpView) -> tuple[OpWork, ...]:
    """Statistics per sample and channel."""
    return _two_passes(op, "instance_norm", _plane_rows(op))


@BACKWARD_RULES.register("", "InstanceNormalization")
def instance_norm_backward(op: OpView) -> Backward:
    """As batch norm, per sample."""
    rows = _plane_rows(op)
    return _backward(op, "instance_norm", rows, 2 * rows.rows, sums_first=True)


def _group_rows(op: OpView) -> Rows:
    rows = op.input(0).shape[0] * op.integer("num_groups", op.integer("groups", 1))
    return Rows(rows, op.input(0).elements // max(1, rows))


@WORK_RULES.register("", "GroupNormalization")
@WORK_RULES.register("com.microsoft", "GroupNorm")
def group_norm(op: OpView) -> tuple[OpWork, ...]:
    """Statistics per sample and group."""
    return _two_passes(op, "group_norm", _group_rows(op))


@BACKWARD_RULES.register("", "GroupNormalization")
def group_norm_backward(op: OpView) -> Backward:
    """Sums per group and channel, then the input's gradient."""
    rows = _group_rows(op)
    return _backward(op, "group_norm", rows, 2 * rows.rows, sums_first=True)


def _unit_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    if op.op_type == "LpNormalization":
        return split_rows(shape, (op.integer("axis", -1) % max(1, len(shape)),))
    return split_rows(shape, axes_of(op, len(shape), axes_input=1, default=(0, 2, 3)))


@WORK_RULES.register("", "LpNormalization", "MeanVarianceNormalization")
def unit_norm(op: OpView) -> tuple[OpWork, ...]:
    """Rows scaled to unit length, or to zero mean and unit variance."""
    return _one_pass(op, "unit_norm", _unit_rows(op), 0, _SQUARES_FLOPS + _NORMALISE_FLOPS)


@BACKWARD_RULES.register("", "LpNormalization", "MeanVarianceNormalization")
def unit_norm_backward(op: OpView) -> Backward:
    """One kernel that reads the input again."""
    return _backward(op, "unit_norm", _unit_rows(op), 0)


@WORK_RULES.register("", "LRN")
def local_response_norm(op: OpView) -> tuple[OpWork, ...]:
    """A window of squares over the channels, a power and a division."""
    return (pointwise(op, "lrn", 2 * op.integer("size", 1) + 4),)


@BACKWARD_RULES.register("", "LRN")
def local_response_norm_backward(op: OpView) -> Backward:
    """Reads input, output and gradient."""
    data, out = op.input(0), op.output()
    reads, flops = (gradient_of(out), data, out), 4 * op.integer("size", 1) + 6
    work = pointwise(op, "lrn", flops, reads=reads, writes=(data,), phase=Phase.BACKWARD)
    return Backward((work,), (data.name, out.name))
