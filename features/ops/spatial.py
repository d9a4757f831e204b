"""Resampling of images: Resize, Upsample, GridSample, AffineGrid. FLOPs: two per tap and output element."""

from __future__ import annotations

from predictor.features.graph import Value
from predictor.features.ops.parts import gradient_of, pointwise, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase, Rows

# Taps per resampled dimension.
_TAPS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}


def _taps(op: OpView) -> int:
    data, out = op.input(0), op.output()
    changed = sum(before != after for before, after in zip(data.shape, out.shape, strict=False))
    if op.op_type == "GridSample":
        changed = max(1, len(data.shape) - 2)
        return int(_TAPS.get(op.text("mode", "linear"), 2) ** changed)
    return int(_TAPS.get(op.text("mode", "nearest"), 1) ** changed)


def _kind(op: OpView) -> str:
    if op.op_type == "GridSample":
        return "grid_sample"
    mode = op.text("mode", "nearest")
    return f"resize_{mode}"


@WORK_RULES.register("", "Resize", "Upsample")
def resize(op: OpView) -> tuple[OpWork, ...]:
    """One kernel; nothing where the size stays."""
    data, out = op.input(0), op.output()
    if data.shape == out.shape:
        return ()
    taps = _taps(op)
    flops = 0 if taps == 1 else 2 * taps * out.elements
    return (
        work(
            op, Family.POOLING, _kind(op), Elements(out.elements), reads=(data,), writes=(out,), flops=flops
        ),
    )


@BACKWARD_RULES.register("", "Resize", "Upsample")
def resize_backward(op: OpView) -> Backward:
    """Collects the gradient of every tap."""
    data, out = op.input(0), op.output()
    if data.shape == out.shape:
        return Backward(passes=(data.name,))
    collect = work(
        op,
        Family.POOLING,
        _kind(op),
        Elements(data.elements),
        reads=(gradient_of(out),),
        writes=(data,),
        flops=2 * _taps(op) * out.elements,
        phase=Phase.BACKWARD,
    )
    return Backward((collect,))


@WORK_RULES.register("", "GridSample")
def grid_sample(op: OpView) -> tuple[OpWork, ...]:
    """Taps at data-dependent places; reads at most the whole input."""
    data, grid, out = op.input(0), op.input(1), op.output()
    taps = _taps(op)
    touched = Value("touched", (min(data.elements, taps * out.elements),), data.dtype)
    return (
        work(
            op,
            Family.GATHER,
            "grid_sample",
            Elements(out.elements),
            reads=(touched, grid),
            writes=(out,),
            flops=2 * taps * out.elements,
        ),
    )


@BACKWARD_RULES.register("", "GridSample")
def grid_sample_backward(op: OpView) -> Backward:
    """Zeros, then scattered additions for the data and a sum over channels for the grid."""
    data, grid, out = op.input(0), op.input(1), op.output()
    fill = pointwise(op, "fill", 0, reads=(), writes=(data,), phase=Phase.BACKWARD)
    collect = work(
        op,
        Family.GATHER,
        "grid_sample",
        Elements(out.elements),
        reads=(gradient_of(out), data, grid),
        writes=(gradient_of(data), gradient_of(grid)),
        flops=4 * _taps(op) * out.elements,
        phase=Phase.BACKWARD,
    )
    return Backward((fill, collect), (data.name, grid.name))


@WORK_RULES.register("", "AffineGrid")
def affine_grid(op: OpView) -> tuple[OpWork, ...]:
    """A small matrix times every grid point."""
    rank = op.output().shape[-1] if op.output().shape else 2
    return (pointwise(op, "affine_grid", 2 * (rank + 1), reads=(op.input(0),)),)


@BACKWARD_RULES.register("", "AffineGrid")
def affine_grid_backward(op: OpView) -> Backward:
    """The grid points' gradients times the points, summed over the points of a sample."""
    theta, out = op.input(0), op.output()
    samples, rank = out.shape[0], out.shape[-1]
    points = max(1, out.elements // max(1, samples * rank))
    item = work(
        op,
        Family.REDUCTION,
        "sum",
        Rows(theta.elements, points),
        reads=(gradient_of(out),),
        writes=(theta,),
        flops=2 * theta.elements * points,
        phase=Phase.BACKWARD,
    )
    return Backward((item,))
