"""A layer that is recomputed runs the kernels of forward again: at forward's price, in backward's time."""

import pytest

from predictor.api import Predictor
from predictor.compose.time import ProgramCosts, phase_codes
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.features.programs.work import Phase, Program
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Recompute


def priced(recompute: Recompute) -> tuple[Program, ProgramCosts]:
    model = megatron_gpt(MegatronConfig(3, 1024, 16, 32000), sequence=1024)
    request = PredictionRequest(
        model,
        "a100-sxm-80gb",
        batch=8,
        mode=Mode.TRAIN,
        precision=Precision.FP16,
        optimizer=Optimizer.ADAM,
        plan=Plan(recompute=recompute),
    )
    return Predictor.load().priced(request)


def test_replayed_kernels_cost_what_they_cost_in_forward() -> None:
    program, costs = priced(Recompute.FULL)
    phases = phase_codes(program)
    forward = {
        (op.node, op.work): time_s
        for op, time_s in zip(program.ops, costs.time_s, strict=True)
        if op.work.phase is Phase.FORWARD
    }
    replayed = [number for number, op in enumerate(program.ops) if op.replayed]
    assert len(replayed) > 30
    for number in replayed:
        op = program.ops[number]
        assert phases[number] == 1
        assert costs.time_s[number] == forward[op.node, op.work.in_phase(Phase.FORWARD)]


def test_recomputing_layers_costs_their_forward_pass_again() -> None:
    (plain, plain_costs), (full, full_costs) = priced(Recompute.NONE), priced(Recompute.FULL)
    assert not any(op.replayed for op in plain.ops)
    extra_s = full_costs.op_level_time_s.sum() - plain_costs.op_level_time_s.sum()
    forward_s = plain_costs.op_level_time_s[phase_codes(plain) == 0].sum()
    # All but embedding, last norm, head and loss run again.
    assert 0.5 * forward_s < extra_s < forward_s
    again_s = sum(
        time_s for op, time_s in zip(full.ops, full_costs.op_level_time_s, strict=True) if op.replayed
    )
    assert extra_s == pytest.approx(again_s, rel=1e-9)
