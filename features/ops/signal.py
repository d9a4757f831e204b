"""Fourier transforms, small dense linear algebra and deformable convolution."""

from __future__ import annotations

from math import log2, prod

from predictor.features.graph import Value
from predictor.features.ops.conv import DATA_GRADIENT, WEIGHT_GRADIENT, convolve, geometry
from predictor.features.ops.parts import gradient_of, row_work, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Convolution, Elements, Family, OpWork, Phase, Rows


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


@BACKWARD_RULES.register("", "Det")
def determinant_backward(op: OpView) -> Backward:
    """det(A) times the transposed inverse: a solution for every unit vector, 2 n^3."""
    data, out = op.input(0), op.output()
    n = data.shape[-1]
    rows = Rows(data.elements // max(1, n * n), n * n)
    reads = (gradient_of(out), data, out)
    item = row_work(
        op, Family.REDUCTION, "lu", rows, 2 * n, reads=reads, writes=(data,), phase=Phase.BACKWARD
    )
    return Backward((item,), (data.name, out.name))


@BACKWARD_RULES.register("", "DeformConv")
def deformable_convolution_backward(op: OpView) -> Backward:
    """The product's two gradients, then the samples': scattered to the data, summed for offsets and mask.

    The samples are made again for the weight's gradient.
    """
    sample, product = deformable_convolution(op)
    data, weight, out = op.input(0), op.input(1), op.output()
    shape = product.shape
    assert isinstance(shape, Convolution)
    assert isinstance(sample.shape, Elements)
    columns = Value("columns", (sample.shape.count,), data.dtype)
    works: list[OpWork] = []
    if op.wants_gradient(1):
        works.append(sample.in_phase(Phase.BACKWARD))
        works.append(convolve(op, shape, product.compute, (out, columns), weight, WEIGHT_GRADIENT))
    places = [op.input(index) for index in (0, 2, 4) if op.wants_gradient(index)]
    if places:
        works.append(convolve(op, shape, product.compute, (out, weight), columns, DATA_GRADIENT))
        reads = [value for value in (columns, data, op.input(2), op.optional(4)) if value is not None]
        works.append(
            work(
                op,
                Family.GATHER,
                "grid_sample",
                Elements(columns.elements),
                reads=reads,
                writes=[gradient_of(value) for value in places],
                flops=16 * columns.elements,
                phase=Phase.BACKWARD,
                launches=2,
            )
        )
    return Backward(tuple(works), tuple(value.name for value in op.present_inputs))
