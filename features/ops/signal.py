"""Fourier transforms, small dense linear algebra and deformable convolution."""

from __future__ import annotations

from math import log2, prod

from predictor.features.graph import Value
from predictor.features.op_view import OpView
from predictor.features.ops.conv import convolve, geometry
from predictor.features.ops.parts import row_work, work
from predictor.features.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.work import Elements, Family, OpWork, Phase, Rows


def _fft_flops(length: int) -> int:
    """5 n log2 n: the count that FFT benchmarks use for a complex transform."""
    return round(5 * length * log2(length)) if length > 1 else 0


@WORK_RULES.register("", "DFT", "STFT")
def fourier(op: OpView) -> tuple[OpWork, ...]:
    """Complex results stand as pairs of reals in the last axis; one row per transform."""
    out = op.output()
    if op.op_type == "STFT":
        # [batch, frames, bins, 2]: of real frames only half of the bins are returned.
        window = op.optional(2)
        bins = out.shape[2] if len(out.shape) > 2 else 1
        length = window.shape[0] if window is not None and window.shape else 2 * (bins - 1)
        rows = Rows(prod(out.shape[:2]), max(1, length))
        reads: tuple[Value, ...] = (op.input(0),) if window is None else (op.input(0), window)
    else:
        axis = (op.constant(2) or (op.integer("axis", -2),))[0]
        length = max(op.input(0).shape[axis], out.shape[axis])
        rows = Rows(out.elements // max(1, 2 * out.shape[axis]), length)
        reads = (op.input(0),)
    flops = rows.rows * _fft_flops(rows.columns)
    return (work(op, Family.REDUCTION, "fft", rows, reads=reads, writes=(out,), flops=flops),)


@BACKWARD_RULES.register("", "DFT", "STFT")
def fourier_backward(op: OpView) -> Backward:
    """The transform the other way."""
    return Backward(tuple(item.in_phase(Phase.BACKWARD) for item in fourier(op)))


@WORK_RULES.register("", "Det")
def determinant(op: OpView) -> tuple[OpWork, ...]:
    """LU factorisation: 2/3 n^3 per matrix."""
    data = op.input(0)
    n = data.shape[-1]
    rows = Rows(data.elements // max(1, n * n), n * n)
    per_element = -(-2 * n // 3)
    return (row_work(op, Family.REDUCTION, "lu", rows, per_element, reads=(data,), writes=(op.output(),)),)


@WORK_RULES.register("", "DeformConv")
def deformable_convolution(op: OpView) -> tuple[OpWork, ...]:
    """Bilinear samples at learned offsets, then the product: (x, weight, offset[, bias, mask])."""
    data, weight, out = op.input(0), op.input(1), op.output()
    columns = Value(
        "columns", (data.shape[0], data.shape[1] * prod(weight.shape[2:]), *out.shape[2:]), data.dtype
    )
    reads = tuple(value for value in (data, op.input(2), op.optional(4)) if value is not None)
    flops = 8 * columns.elements
    sample = work(
        op,
        Family.GATHER,
        "grid_sample",
        Elements(columns.elements),
        reads=reads,
        writes=(columns,),
        flops=flops,
    )
    shape = geometry(op, data, weight, out)
    return sample, convolve(op, shape, op.matrix_compute(0, 1), (columns, weight), out)
