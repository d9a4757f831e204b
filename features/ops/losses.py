"""Losses that frameworks compute in one call."""

from __future__ import annotations

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.parts import gradient_of, pointwise, row_work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Family, OpWork, Phase, Rows


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


# Maximum, difference, exponential, sum, quotient and the logarithm's share, as a softmax; one number per row.
_TOKEN_LOSS_FLOPS = 6


@WORK_RULES.register("perfcast", "TokenLoss")
def token_loss(op: OpView) -> tuple[OpWork, ...]:
    """Cross entropy of rows of scores over a part of a vocabulary (scores[rows, words], labels[rows]).

    The scores are copied to FP32 once; all else happens in that copy, which stays for backward as softmax
    (megatron/core/tensor_parallel/cross_entropy.py). `in_place` = 1: no copy, the scores themselves become
    their gradient. Outputs beyond the first are further copies that live while the kernel runs.
    """
    scores, labels = op.input(0), op.input(1)
    rows = Rows(scores.shape[0], scores.shape[1])
    if op.integer("in_place"):
        reads = (scores, labels)
        return (
            row_work(
                op,
                Family.SOFTMAX,
                "cross_entropy",
                rows,
                _TOKEN_LOSS_FLOPS,
                reads=reads,
                writes=(scores, op.output()),
            ),
        )
    wide = _wide(scores)
    copied = pointwise(op, "cast", 0, reads=(scores,), writes=(wide,))
    reads = (wide, labels)
    work = row_work(
        op, Family.SOFTMAX, "cross_entropy", rows, _TOKEN_LOSS_FLOPS, reads=reads, writes=(op.output(),)
    )
    return copied, work


@BACKWARD_RULES.register("perfcast", "TokenLoss")
def token_loss_backward(op: OpView) -> Backward:
    """The softmax becomes the gradient where it lies, then a copy as wide as the scores."""
    scores = op.input(0)
    if op.integer("in_place"):
        scaled = pointwise(op, "mul", 1, reads=(scores,), writes=(scores,), phase=Phase.BACKWARD)
        return Backward((scaled,), (scores.name,))
    wide = _wide(scores)
    rows = Rows(scores.shape[0], scores.shape[1])
    gradient = row_work(
        op,
        Family.SOFTMAX,
        "cross_entropy",
        rows,
        2,
        reads=(wide, op.input(1)),
        writes=(wide,),
        phase=Phase.BACKWARD,
    )
    copied = pointwise(op, "cast", 0, reads=(wide,), writes=(scores,), phase=Phase.BACKWARD)
    return Backward((gradient, copied), saved_extra_bytes=wide.size_bytes, temporary_bytes=0)


def _wide(scores: Value) -> Value:
    return Value("wide", scores.shape, DType.FLOAT32)
