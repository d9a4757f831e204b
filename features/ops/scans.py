"""Selective state-space layers in one kernel, as Mamba-2 trains them.

perfcast::SplitScan(x[tokens, 2 * inner + 2 * groups * state + heads]) -> [tokens, inner], attributes `inner`,
`state`: a gate and an input of width `inner` each, a short convolution, the scan over states and a gated norm
(Dao and Gu 2024, arXiv:2405.21060; mamba_ssm's mamba_split_conv1d_scan_combined). FLOPs per token: update and
readout of a state of inner x state numbers, 3 operations each, and 8 for the convolution's four taps.

Backward computes everything again but the scan's result before the gate: that and the input are kept.
"""

from __future__ import annotations

from predictor.features.ops.parts import gradient_of, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase

_STATE_FLOPS, _CONVOLUTION_FLOPS = 6, 8
# Forward once more, and twice as much for the gradients.
_BACKWARD_FACTOR = 3


def _flops(op: OpView) -> int:
    tokens, width = op.input(0).shape
    return tokens * (_STATE_FLOPS * op.integer("inner") * op.integer("state") + _CONVOLUTION_FLOPS * width)


@WORK_RULES.register("perfcast", "SplitScan")
def split_scan(op: OpView) -> tuple[OpWork, ...]:
    """A convolution kernel and four of the chunked scan."""
    item = work(
        op,
        Family.RECURRENT,
        "scan",
        Elements(op.output().elements),
        reads=op.present_inputs,
        writes=(op.output(),),
        flops=_flops(op),
        launches=5,
    )
    return (item,)


@BACKWARD_RULES.register("perfcast", "SplitScan")
def split_scan_backward(op: OpView) -> Backward:
    """The scan again and in reverse; keeps its input, and its result before the gate."""
    data, out = op.input(0), op.output()
    item = work(
        op,
        Family.RECURRENT,
        "scan",
        Elements(out.elements),
        reads=(gradient_of(out), data, out),
        writes=(data,),
        flops=_BACKWARD_FACTOR * _flops(op),
        phase=Phase.BACKWARD,
        launches=10,
    )
    return Backward((item,), (data.name,), saved_extra_bytes=out.size_bytes)
