"""Losses that frameworks compute in one call."""

from __future__ import annotations

from predictor.features.graph import Value
from predictor.features.op_view import OpView
from predictor.features.ops.parts import gradient_of, pointwise, row_work
from predictor.features.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.work import Family, OpWork, Phase, Rows


@WORK_RULES.register("perfcast", "SquaredError")
def squared_error(op: OpView) -> tuple[OpWork, ...]:
    """Differences squared, 2 operations per element, then their mean (torch: mse_loss, two kernels)."""
    data = op.input(0)
    squares = Value("squares", data.shape, data.dtype)
    first = pointwise(op, "squared_error", 2, writes=(squares,))
    mean = row_work(
        op,
        Family.REDUCTION,
        "mean",
        Rows(1, data.elements),
        1,
        reads=(squares,),
        writes=(op.output(),),
    )
    return first, mean


@BACKWARD_RULES.register("perfcast", "SquaredError")
def squared_error_backward(op: OpView) -> Backward:
    """The difference times a number, per operand that wants it; both operands are kept."""
    kept = (op.input(0), op.input(1))
    works = tuple(
        pointwise(
            op,
            "squared_error",
            3,
            reads=(gradient_of(op.output()), *kept),
            writes=(op.input(index),),
            phase=Phase.BACKWARD,
        )
        for index in (0, 1)
        if op.wants_gradient(index)
    )
    return Backward(works, tuple(value.name for value in kept))
