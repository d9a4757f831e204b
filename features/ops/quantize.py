"""Quantisation: float to integer and back. The gradient passes straight through."""

from __future__ import annotations

from predictor.features.ops.parts import pointwise, row_work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Family, OpWork, Rows


@WORK_RULES.register("", "QuantizeLinear", "DequantizeLinear")
@WORK_RULES.register("com.microsoft", "QuantizeLinear", "DequantizeLinear")
def requantise(op: OpView) -> tuple[OpWork, ...]:
    """Scale, shift, round and clamp (4), or shift and scale (2)."""
    quantising = op.op_type == "QuantizeLinear"
    return (pointwise(op, "quantize" if quantising else "dequantize", 4 if quantising else 2),)


@BACKWARD_RULES.register("", "QuantizeLinear", "DequantizeLinear")
def requantise_backward(op: OpView) -> Backward:
    """Straight-through estimator: the gradient is passed on."""
    return Backward(passes=(op.input(0).name,))


@WORK_RULES.register("", "DynamicQuantizeLinear")
def dynamic_quantise(op: OpView) -> tuple[OpWork, ...]:
    """The range of the tensor, then the conversion."""
    data = op.input(0)
    scale = op.outputs[1] if op.has_output(1) else None
    extremes = row_work(
        op,
        Family.REDUCTION,
        "max",
        Rows(1, data.elements),
        2,
        reads=(data,),
        writes=() if scale is None else (scale,),
    )
    return extremes, pointwise(op, "quantize", 4, reads=(data,), writes=(op.output(),))
