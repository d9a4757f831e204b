"""Groups of pointwise ops that a compiler runs as one kernel (emitted by the fusion pass when compiled).

Traffic inside a group is free: only what enters and what escapes is paid.
"""

from __future__ import annotations

from predictor.features.ops.parts import gradient_of, unbroadcast, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase

_KIND = "fused"
# Groups of these keep nothing: their gradients do not read their operands.
_LINEAR = frozenset({"Add", "Sub", "Sum", "Neg", "Cast", "Identity"})
# The gradient of a group that ends in one of these and is linear before reads only the result.
_FROM_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh", "Exp"})
# A compiler recomputes the group in the backward kernel: its FLOPs again, and about as many for the gradient.
_BACKWARD_FACTOR = 2


@WORK_RULES.register("perfcast", "FusedPointwise")
def fused(op: OpView) -> tuple[OpWork, ...]:
    """One kernel."""
    count = max((value.elements for value in op.present_outputs), default=0)
    return (
        work(
            op,
            Family.ELEMENTWISE,
            _KIND,
            Elements(count),
            reads=op.present_inputs,
            writes=op.present_outputs,
            flops=op.integer("flops"),
        ),
    )


@BACKWARD_RULES.register("perfcast", "FusedPointwise")
def fused_backward(op: OpView) -> Backward:
    """One kernel that recomputes the group from its inputs; sums for operands that were broadcast."""
    kinds = op.text("kinds").split(",")
    out = op.output()
    if set(kinds) <= _LINEAR:
        kept: tuple[str, ...] = ()
    elif set(kinds[:-1]) <= _LINEAR and kinds[-1] in _FROM_OUTPUT and len(op.outputs) == 1:
        kept = (out.name,)
    else:
        kept = tuple(value.name for value in op.present_inputs)
    saved = [value for value in op.present_inputs + op.present_outputs if value.name in kept]
    wanted = [value for value in op.present_inputs if value.name in op.needs_gradient]
    whole = [value for value in wanted if value.elements == out.elements]
    if not kept and len(kinds) == 1:
        works: list[OpWork] = []
    else:
        works = [
            work(
                op,
                Family.ELEMENTWISE,
                _KIND,
                Elements(out.elements),
                reads=[*(gradient_of(value) for value in op.present_outputs), *saved],
                writes=whole or [gradient_of(out)],
                flops=_BACKWARD_FACTOR * op.integer("flops"),
                phase=Phase.BACKWARD,
            )
        ]
    for value in wanted:
        if value.elements != out.elements:
            works.extend(unbroadcast(op, out, value))
    return Backward(tuple(works), kept, passes=() if works else tuple(value.name for value in whole))
