"""Softmax, LogSoftmax and the losses built on them.

FLOPs per element: softmax 5 (maximum, subtract, exp, sum, divide), backward 4 (product, sum, subtract,
product).
"""

from __future__ import annotations

from math import prod

from predictor.features.graph import Value
from predictor.features.ops.parts import gradient_of, row_work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Family, OpWork, Phase, Rows

_KINDS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}


def _softmax(op: OpView, rows: Rows) -> tuple[OpWork, ...]:
    reads, writes = (op.input(0),), (op.output(),)
    return (row_work(op, Family.SOFTMAX, _KINDS[op.op_type], rows, 5, reads=reads, writes=writes),)


def _softmax_backward(op: OpView, rows: Rows) -> Backward:
    data, out = op.input(0), op.output()
    gradient = gradient_of(out)
    work = row_work(
        op,
        Family.SOFTMAX,
        _KINDS[op.op_type],
        rows,
        4,
        reads=(gradient, out),
        writes=(data,),
        phase=Phase.BACKWARD,
    )
    return Backward((work,), (out.name,))


def _along_axis(op: OpView) -> Rows:
    shape = op.input(0).shape
    columns = shape[op.integer("axis", -1)] if shape else 1
    return Rows(op.input(0).elements // max(1, columns), columns)


def _flattened(op: OpView) -> Rows:
    # Before opset 13 everything from `axis` on is one row.
    shape = op.input(0).shape
    axis = op.integer("axis", 1) % max(1, len(shape))
    return Rows(prod(shape[:axis]), prod(shape[axis:]))


@WORK_RULES.register("", *_KINDS, since=13)
def softmax(op: OpView) -> tuple[OpWork, ...]:
    """One row per position of the other axes."""
    return _softmax(op, _along_axis(op))


@BACKWARD_RULES.register("", *_KINDS, since=13)
def softmax_backward(op: OpView) -> Backward:
    """Reads the gradient and the saved output."""
    return _softmax_backward(op, _along_axis(op))


@WORK_RULES.register("", *_KINDS)
def softmax_flattened(op: OpView) -> tuple[OpWork, ...]:
    """The form before opset 13."""
    return _softmax(op, _flattened(op))


@BACKWARD_RULES.register("", *_KINDS)
def softmax_flattened_backward(op: OpView) -> Backward:
    """The form before opset 13."""
    return _softmax_backward(op, _flattened(op))


def _class_rows(op: OpView) -> Rows:
    shape = op.input(0).shape
    return Rows(op.input(0).elements // max(1, shape[1]), shape[1])


@WORK_RULES.register("", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(op: OpView) -> tuple[OpWork, ...]:
    """log-softmax (written, since the gradient reads it), then one number per row."""
    scores, labels, rows = op.input(0), op.input(1), _class_rows(op)
    works: list[OpWork] = []
    if op.op_type == "SoftmaxCrossEntropyLoss":
        log_probabilities = Value("log_probabilities", scores.shape, scores.dtype)
        works += [
            row_work(op, Family.SOFTMAX, "log_softmax", rows, 5, reads=(scores,), writes=(log_probabilities,))
        ]
    picked = Value("picked", (rows.rows,), scores.dtype)
    works.append(
        row_work(
            op, Family.REDUCTION, "nll", Rows(1, rows.rows), 1, reads=(picked, labels), writes=(op.output(),)
        )
    )
    return tuple(works)


@BACKWARD_RULES.register("", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy_backward(op: OpView) -> Backward:
    """A gradient of the scores' shape, almost all zero, then the log-softmax gradient over it."""
    scores, labels, rows = op.input(0), op.input(1), _class_rows(op)
    works = [
        row_work(
            op,
            Family.REDUCTION,
            "nll",
            rows,
            0,
            reads=(labels,),
            writes=(scores,),
            phase=Phase.BACKWARD,
            launches=2,
        )
    ]
    if op.op_type == "NegativeLogLikelihoodLoss":
        return Backward(tuple(works), (labels.name,))
    gradient = gradient_of(scores)
    works.append(
        row_work(
            op,
            Family.SOFTMAX,
            "log_softmax",
            rows,
            4,
            reads=(gradient, scores),
            writes=(Value("result", scores.shape, scores.dtype),),
            phase=Phase.BACKWARD,
        )
    )
    return Backward(tuple(works), (labels.name,), scores.size_bytes)
