"""Reductions over axes, ArgMax, TopK and running sums."""

from __future__ import annotations

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.parts import copy, gradient_of, pointwise, row_work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Family, OpWork, Phase, Rows

# FLOPs per input element.
_REDUCTIONS = {
    "ReduceSum": ("sum", 1),
    "ReduceMean": ("mean", 1),
    "ReduceMax": ("max", 1),
    "ReduceMin": ("min", 1),
    "ReduceProd": ("prod", 1),
    "ReduceL1": ("l1", 2),
    "ReduceL2": ("l2", 2),
    "ReduceSumSquare": ("sum_square", 2),
    "ReduceLogSum": ("log_sum", 1),
    "ReduceLogSumExp": ("log_sum_exp", 4),
    "ArgMax": ("arg_max", 1),
    "ArgMin": ("arg_min", 1),
}


def _rows(op: OpView) -> Rows:
    # The output's size tells the axes' product, whichever way they were given.
    rows = op.output().elements
    return Rows(rows, max(1, op.input(0).elements // max(1, rows)))


@WORK_RULES.register("", *_REDUCTIONS)
def reduce(op: OpView) -> tuple[OpWork, ...]:
    """One kernel; a reduction over axes of length 1 is a view."""
    kind, flops = _REDUCTIONS[op.op_type]
    rows = _rows(op)
    if rows.columns == 1 and kind in ("sum", "mean", "max", "min", "prod"):
        return ()
    return (row_work(op, Family.REDUCTION, kind, rows, flops, reads=(op.input(0),), writes=(op.output(),)),)


@BACKWARD_RULES.register("", "ReduceSum")
def sum_backward(op: OpView) -> Backward:
    """The gradient is broadcast by strides: nothing runs."""
    return Backward(passes=(op.input(0).name,))


@BACKWARD_RULES.register("", "ReduceMean")
def mean_backward(op: OpView) -> Backward:
    """The broadcast gradient over the number of elements."""
    data = op.input(0)
    if _rows(op).columns == 1:
        return Backward(passes=(data.name,))
    work = pointwise(op, "div", 1, reads=(gradient_of(op.output()),), writes=(data,), phase=Phase.BACKWARD)
    return Backward((work,))


@BACKWARD_RULES.register(
    "", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"
)
@BACKWARD_RULES.register("", "ReduceLogSum", "ReduceLogSumExp")
def reduce_backward(op: OpView) -> Backward:
    """A factor per element from the kept input and output, times the broadcast gradient: two kernels."""
    data, out = op.input(0), op.output()
    factor = Value("factor", data.shape, data.dtype)
    works = (
        pointwise(
            op, _REDUCTIONS[op.op_type][0], 2, reads=(data, out), writes=(factor,), phase=Phase.BACKWARD
        ),
        pointwise(op, "mul", 1, reads=(gradient_of(out), factor), writes=(data,), phase=Phase.BACKWARD),
    )
    return Backward(works, (data.name, out.name))


@WORK_RULES.register("", "TopK")
def top_k(op: OpView) -> tuple[OpWork, ...]:
    """A selection pass over each row."""
    shape = op.input(0).shape
    columns = shape[op.integer("axis", -1)] if shape else 1
    rows = Rows(op.input(0).elements // max(1, columns), columns)
    return (
        row_work(op, Family.REDUCTION, "top_k", rows, 1, reads=(op.input(0),), writes=op.present_outputs),
    )


@BACKWARD_RULES.register("", "TopK")
def top_k_backward(op: OpView) -> Backward:
    """Zeros, then the gradients scattered by the kept indices."""
    data, values = op.input(0), op.output()
    indices = op.output(1) if op.has_output(1) else Value("indices", values.shape, DType.INT64)
    zeros = pointwise(op, "fill", 0, reads=(), writes=(data,), phase=Phase.BACKWARD)
    scatter = copy(
        op,
        "scatter",
        reads=(gradient_of(values), indices),
        writes=(values,),
        phase=Phase.BACKWARD,
        family=Family.GATHER,
    )
    kept = (indices.name,) if op.has_output(1) else ()
    return Backward((zeros, scatter), kept, 0 if kept else indices.size_bytes)


@WORK_RULES.register("", "CumSum", "CumProd")
def running(op: OpView) -> tuple[OpWork, ...]:
    """One scan along an axis."""
    data = op.input(0)
    axis = (op.constant(1) or (-1,))[0]
    columns = data.shape[axis] if data.shape else 1
    rows = Rows(data.elements // max(1, columns), columns)
    return (row_work(op, Family.REDUCTION, "scan", rows, 1, reads=(data,), writes=(op.output(),)),)


@BACKWARD_RULES.register("", "CumProd")
def running_product_backward(op: OpView) -> Backward:
    """The sum from behind of gradient times result, over the input."""
    data, out = op.input(0), op.output()
    product = Value("product", out.shape, out.dtype)
    flip = copy(op, "flip", reads=(product,), writes=(product,), phase=Phase.BACKWARD)
    works = (
        pointwise(op, "mul", 1, reads=(gradient_of(out), out), writes=(product,), phase=Phase.BACKWARD),
        flip,
        running(op)[0].in_phase(Phase.BACKWARD),
        flip,
        pointwise(op, "div", 1, reads=(product, data), writes=(data,), phase=Phase.BACKWARD),
    )
    return Backward(works, (data.name, out.name))


@BACKWARD_RULES.register("", "CumSum")
def running_backward(op: OpView) -> Backward:
    """Flip, scan, flip."""
    data = op.input(0)
    gradient = gradient_of(op.output())
    flip = copy(op, "flip", reads=(gradient,), writes=(data,), phase=Phase.BACKWARD)
    scan = running(op)[0].in_phase(Phase.BACKWARD)
    return Backward((flip, scan, flip))
