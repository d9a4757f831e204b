"""Stages of equally many layers, and products in fewer bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.compose.even_stages import even_ends, merged
from predictor.compose.plan_cost import MicrobatchCosts, compose_plan
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.features.dtype import Compute
from predictor.features.lowering.narrow_products import with_narrow_products
from predictor.features.programs.work import Family
from predictor.models.plans.step_correction import StepCorrection
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Recompute
from tests.unit.models.test_step_correction import table


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def request(**plan: Any) -> PredictionRequest:
    model = megatron_gpt(MegatronConfig(8, 512, 8, 32000), sequence=512)
    return PredictionRequest(
        model,
        "a100-sxm-80gb",
        batch=16,
        mode=Mode.TRAIN,
        precision=Precision.FP16,
        optimizer=Optimizer.ADAM,
        plan=Plan(**plan),
        cluster="dgx-a100-80gb",
    )


def test_layers_are_dealt_out_evenly() -> None:
    ends = even_ends(["e", *"llllllll", "n", "h"], 4)
    assert ends is not None
    assert ends.tolist() == [3, 5, 7, 11]
    assert even_ends(["e", "l", "l", "h"], 4) is None


def test_merged_pieces_cost_the_same_and_even_stages_wait_for_the_head(predictor: Predictor) -> None:
    asked = request(pp=4, microbatches=8)
    resolved = predictor._resolve_graph(asked)
    microbatch = predictor._pricing.microbatch(resolved)
    pieces = resolved.rank.pieces
    assert pieces is not None
    ends = even_ends(pieces.repeats, 4)
    assert ends is not None
    few = merged(microbatch.columns, ends)
    assert few.total_s.sum() == pytest.approx(microbatch.columns.total_s.sum())
    assert few.gradients.size_bytes.sum() == microbatch.columns.gradients.size_bytes.sum()
    assert (few.gradients.offset_s <= few.backward_s[few.gradients.piece] * (1 + 1e-9)).all()
    even = compose_plan(MicrobatchCosts(microbatch.alone, few), asked.plan, resolved.cluster, training=True)[
        0
    ]
    balanced = compose_plan(microbatch, asked.plan, resolved.cluster, training=True)[0]
    assert even.iteration.value > balanced.iteration.value


def test_products_of_weights_run_in_fewer_bits(predictor: Predictor) -> None:
    program = predictor._resolve_graph(request()).rank.program
    narrow = with_narrow_products(program, "fp8")
    assert with_narrow_products(program, "") is program
    wide = [op for op in program.ops if op.work.family is Family.MATMUL]
    found = [op for op in narrow.ops if op.work.family is Family.MATMUL]
    assert len(found) == len(wide)
    assert all(op.work.compute is Compute.FP8 for op in found)
    casts = [op for op in narrow.ops if op.op_type == "Cast"]
    # Forward and the input's gradient of each product, not the weight's.
    assert 0 < len(casts) < len(found)
    assert [narrow.ops[g.op_index].node for g in narrow.gradients] == [
        program.ops[g.op_index].node for g in program.gradients
    ]


def test_recomputing_frameworks_launch_slowly(predictor: Predictor) -> None:
    small = replace(request(dp=2, microbatches=2), batch=4)
    plain = predictor.predict(small).time_breakdown_s
    split = predictor.predict(replace(small, plan=replace(small.plan, recompute=Recompute.FULL)))
    assert plain["host_launch"] < split.time_breakdown_s["host_launch"]


def test_a_bundle_with_a_correction_scales_plans(predictor: Predictor) -> None:
    from predictor.models.plans.step_correction_training import train_step_correction

    asked = request(tp=2)
    resolved = predictor._resolve_graph(asked)
    before = predictor._pricing.answer(resolved, "x")
    correction = StepCorrection.from_trained(train_step_correction(table(), 1)[0])
    after = replace(predictor._pricing, correction=correction).answer(resolved, "x")
    factor = after.iteration_time_s.value / before.iteration_time_s.value
    assert 1.0 < factor < 1.6
    assert sum(after.time_breakdown_s.values()) == pytest.approx(after.iteration_time_s.value)
    assert np.isfinite(after.energy_j.value)
