"""ai.onnx.preview.training: optimizer steps and gradients written into the graph itself.

(rate, step, X1.., G1.., state1..): one kernel reads every tensor once and writes new weights and states.
FLOPs per element: Adagrad 7 (decay 2, square and add 2, root 1, divide 1, step 1), Momentum 5, Adam 12.
"""

from __future__ import annotations

from predictor.features.ops.parts import copy, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import Elements, Family, OpWork

_DOMAIN = "ai.onnx.preview.training"
# FLOPs per element, and tensors that come in per weight: itself, its gradient, its states.
_STEPS = {"Adagrad": (7, 3), "Momentum": (5, 3), "Adam": (12, 4)}


@WORK_RULES.register(_DOMAIN, *_STEPS)
def step(op: OpView) -> tuple[OpWork, ...]:
    """All weights of the node in one kernel."""
    flops, per_weight = _STEPS[op.op_type]
    tensors = [value for value in op.inputs[2:] if value is not None]
    weights = tensors[: len(tensors) // per_weight]
    elements = sum(value.elements for value in weights)
    return (
        work(
            op,
            Family.OPTIMIZER,
            op.op_type.lower(),
            Elements(elements),
            reads=tensors,
            writes=op.present_outputs,
            flops=flops * elements,
        ),
    )


@WORK_RULES.register(_DOMAIN, "Gradient")
def gradient(op: OpView) -> tuple[OpWork, ...]:
    """Reads what it differentiates by, writes the derivatives; the ops between are not the node's to know."""
    return (copy(op, "gradient", reads=op.present_inputs, writes=op.present_outputs),)
