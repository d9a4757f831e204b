"""Shard rules of losses over classes: by rows, and by classes as vocabulary-parallel cross entropy does.

Ranks that hold some classes of every row exchange three numbers a row (maximum, sum of exponentials, the
label's score; Shoeybi et al. 2019, arXiv:1909.08053, section 3), which next to the products before them is
nothing and is left out; the result is whole on each.
"""

from __future__ import annotations

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, along

_SCORES, _LABELS, _LOSS, _LOGS = 0, 1, -1, -2


@SHARD_RULES.register("", "SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """(scores [N, C, ...], labels [N, ...]): the mean or sum of all rows is added up between ranks."""
    if operand not in (_SCORES, _LABELS, _LOSS, _LOGS):
        return f"{op.op_type} cannot be split along its weights"
    of_classes = operand in (_SCORES, _LOGS)
    if of_classes and split.dim == 1:
        if op.op_type == "NegativeLogLikelihoodLoss" or op.optional(2) is not None:
            return f"{op.op_type} picks its labels from all classes"
        return along(op, {_SCORES: split, _LOGS: split})
    row = split.dim - 1 if of_classes and split.dim else split.dim
    scores, labels = split._replace(dim=row + 1 if row else 0), split._replace(dim=row)
    places = {_SCORES: scores, _LABELS: labels, _LOGS: scores}
    if op.output().shape == op.input(_LABELS).shape:
        return along(op, {**places, _LOSS: labels})
    if operand == _LOSS:
        return f"{op.op_type} runs over all rows"
    return along(op, places, sums=True)
