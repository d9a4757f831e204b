from __future__ import annotations

import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Family, OpWork, Phase
from predictor.models.ops.floor import KERNEL_START_S, floors
from predictor.models.ops.recurrent import streamed_bytes
from tests.unit.models.op_cases import DEVICE

STEPS = 600


def lstm(batch: int, hidden: int, inputs: int = 1024, times: int = 1) -> OpWork:
    shape = Contraction(STEPS, batch, 4 * hidden, inputs + hidden)
    return OpWork(
        family=Family.RECURRENT,
        kind="lstm",
        phase=Phase.FORWARD if times == 1 else Phase.BACKWARD,
        compute=Compute.FP32,
        shape=shape,
        element_bits=32,
        matrix_flops=times * 2 * STEPS * batch * shape.n * shape.k,
        vector_flops=0,
        read_bytes=4 * STEPS * batch * inputs,
        write_bytes=4 * STEPS * batch * hidden,
        launch_count=times * STEPS,
    )


def test_a_small_batch_waits_for_the_weights_of_every_step() -> None:
    # 4096 x 1024 floats are 16.8 MB, more than the cache of 6 MB.
    step_s = 4096 * 1024 * 4 / 900e9
    assert streamed_bytes(lstm(2, 1024), DEVICE) == STEPS * 4096 * 1024 * 4
    found = floors([lstm(2, 1024)], DEVICE).total_s[0]
    assert STEPS * (step_s + KERNEL_START_S) < found < 1.15 * STEPS * (step_s + KERNEL_START_S)


def test_weights_in_the_cache_are_read_once() -> None:
    assert streamed_bytes(lstm(2, 256), DEVICE) == 0.0
    padded_s = 2 * 16 * 1024 * 256 / 14e12
    inputs_s = 2 * STEPS * 2 * 1024 * 1024 / 14e12
    assert floors([lstm(2, 256)], DEVICE).compute_s[0] == pytest.approx(STEPS * padded_s + inputs_s, rel=0.1)


def test_a_large_batch_is_bound_by_its_flops() -> None:
    work = lstm(512, 1024)
    assert floors([work], DEVICE).compute_s[0] == pytest.approx(work.matrix_flops / 14e12, rel=0.05)


def test_the_gradient_repeats_the_chain_once_and_computes_the_rest_at_full_rate() -> None:
    forward, backward = floors([lstm(2, 1024), lstm(2, 1024, times=2)], DEVICE).compute_s
    assert forward < backward < 1.5 * forward
