"""Ops without tensor inputs worth reading: constants, shapes, ranges, random numbers."""

from __future__ import annotations

from predictor.features.ops.parts import copy
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import OpWork


@WORK_RULES.register("", "Constant", "Shape", "Size", "SequenceLength", "OptionalHasElement")
@WORK_RULES.register(
    "", "SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt"
)
@WORK_RULES.register("", "SplitToSequence")
def known(op: OpView) -> tuple[OpWork, ...]:
    """Known before anything runs, or a list of tensors: no kernel."""
    return ()


@WORK_RULES.register("", "ConstantOfShape", "Range", "EyeLike", "Bernoulli", "Multinomial")
@WORK_RULES.register("", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike")
@WORK_RULES.register("", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
def generate(op: OpView) -> tuple[OpWork, ...]:
    """Writes its output."""
    return (copy(op, "fill", reads=(), writes=(op.output(),)),)


@WORK_RULES.register("", "ConcatFromSequence")
def join(op: OpView) -> tuple[OpWork, ...]:
    """All items copied into one tensor."""
    return (copy(op, "concat", reads=(op.input(0),), writes=(op.output(),)),)
