from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import isclose

import numpy as np
import pytest

from predictor.errors import InvalidBundle, InvalidData
from predictor.features.dtype import Compute, DType
from predictor.features.programs.program import program_of
from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.power.board_power import PowerModel, Reading, idle_power_w, limit_w
from predictor.models.power.profile import job_profile
from predictor.models.power.rows import WORKLOADS, job_graph
from predictor.models.power.training import SITUATIONS, held_out, log_errors, train_power
from predictor.types import Mode
from tests.unit.features.graphs import Sketch, convolution_in_fp16
from tests.unit.models.memory_power_cases import power_samples, profile, program


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return train_power(power_samples())


@pytest.fixture(scope="module")
def model(trained: TrainedModel) -> PowerModel:
    return PowerModel.from_trained(trained)


def test_training_learns_the_law(model: PowerModel) -> None:
    assert np.abs(np.expm1(log_errors(model, power_samples()))).mean() < 0.08


def test_training_is_deterministic(trained: TrainedModel) -> None:
    again = train_power(power_samples())
    assert again.boosters == trained.boosters
    assert again.params == trained.params


def test_no_rows_is_an_error() -> None:
    with pytest.raises(InvalidData, match="no rows"):
        train_power(())


@pytest.mark.parametrize("busy", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("compute", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("cap_w", [None, 1.0, 60.0, 200.0, 1e6])
def test_power_lies_between_idle_and_limit(
    model: PowerModel, busy: float, compute: float, cap_w: float | None
) -> None:
    device = find_device("a100-sxm-80gb")
    power = model.predict(profile(busy=busy, compute=compute), device, cap_w)
    assert idle_power_w(device) <= power.low <= power.value <= power.high
    assert power.high <= limit_w(device, cap_w) <= device.tdp_w


def test_a_lower_cap_never_draws_more(model: PowerModel) -> None:
    device = find_device("v100-pcie-32gb")
    watts = [model.predict(profile(), device, float(cap)).value for cap in range(80, 260, 10)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(watts))


def test_longer_kernels_draw_no_less(model: PowerModel) -> None:
    device = find_device("v100-pcie-32gb")
    watts = [model.predict(profile(launches=count), device).value for count in (10_000, 1000, 100)]
    assert watts == sorted(watts)


def test_a_cap_slows_a_hungry_job_and_no_other(model: PowerModel) -> None:
    device = find_device("v100-pcie-32gb")
    hungry, light = profile(compute=0.9), profile(busy=0.05, compute=0.05, memory=0.05)
    assert model.slowdown(hungry, device, None) == 1.0
    assert model.slowdown(hungry, device, device.tdp_w) == 1.0
    factors = [model.slowdown(hungry, device, cap) for cap in (200.0, 150.0, 100.0)]
    assert 1.0 <= factors[0] < factors[1] < factors[2] < 3.0
    assert model.slowdown(light, device, 225.0) < 1.01


def test_an_anchored_job_is_told_by_its_own_readings(model: PowerModel) -> None:
    """Readings at some caps say what the others do, however wrong the model is about the job's level."""
    sweep = [s for s in power_samples() if s.job == "v100-pcie-32gb a 200"]
    device, job = sweep[0].device, sweep[0].profile
    for held in sweep:
        readings = [Reading(s.limit_w, 1000 * s.time_s, s.power_w) for s in sweep if s is not held]
        time_s, power_w = model.anchored(job, device, readings, held.limit_w)
        assert isclose(time_s, 1000 * held.time_s, rel_tol=0.1)
        assert isclose(power_w, held.power_w, rel_tol=0.15)
    one = [Reading(None, 1000 * sweep[-1].time_s, sweep[-1].power_w)]
    assert isclose(model.anchored(job, device, one, None)[0], one[0].time_s, rel_tol=0.01)
    assert model.anchored(job, device, one, 120.0)[0] > one[0].time_s


def test_held_out_groups_are_whole() -> None:
    for group, rest, held in held_out(power_samples(), lambda sample: sample.device_group):
        assert {sample.device_group for sample in held} == {group}
        assert group not in {sample.device_group for sample in rest}


def test_the_name_of_a_device_changes_nothing(model: PowerModel) -> None:
    device = find_device("v100-pcie-32gb")
    renamed = replace(device, id="mine", name="My card", aliases=())
    assert model.predict(profile(), renamed, 150.0) == model.predict(profile(), device, 150.0)


def test_every_situation_has_a_spread(trained: TrainedModel) -> None:
    spread = trained.params["log_spread"]
    assert set(spread) == set(SITUATIONS)  # type: ignore[arg-type]
    assert all(spread[name] >= 0 for name in SITUATIONS)  # type: ignore[index, call-overload, operator]


def test_a_bundle_of_an_earlier_version_says_so(trained: TrainedModel) -> None:
    old = {name: value for name, value in trained.params.items() if name != "own_memory"}
    with pytest.raises(InvalidBundle, match="perfcast train"):
        PowerModel(old, None)


def test_profile_of_a_program() -> None:
    job, device = program(16), find_device("v100-pcie-32gb")
    times = np.full(len(job.ops), 1e-4)
    found = job_profile(job, times, device, launch_s=5e-6, communication_s=0.5)
    assert isclose(found.busy_s, 1e-4 * len(job.ops))
    assert isclose(found.iteration_s, found.busy_s + 0.5)
    moved = sum(op.work.moved_bytes for op in job.ops)
    assert isclose(found.memory_s, moved / device.memory_bytes_per_s)
    flops = sum(op.work.flops for op in job.ops)
    assert found.compute_s >= flops / max(device.matrix_flops_per_s.values())
    assert found.launch_count == sum(op.work.launch_count for op in job.ops)
    # Launching takes longer than running: the host sets the pace.
    waiting = job_profile(job, times / 100, device, launch_s=5e-6)
    assert isclose(waiting.iteration_s, 5e-6 * found.launch_count)


@pytest.mark.parametrize(("name", "kernels"), [("gtx-1080-ti-11gb", 1), ("rtx-3090-24gb", 4)])
def test_images_are_converted_for_tensor_cores_alone(name: str, kernels: int) -> None:
    job = program_of(convolution_in_fp16(), mode=Mode.INFER)
    found = job_profile(job, np.full(len(job.ops), 1e-4), find_device(name), launch_s=5e-6)
    convolution = job.ops[-1].work
    assert found.launch_count == kernels
    moved = convolution.moved_bytes * (3 if kernels > 1 else 1)
    assert isclose(found.memory_s, moved / find_device(name).memory_bytes_per_s)


def test_products_in_a_type_without_units_take_those_of_the_next_wider_one() -> None:
    s = Sketch(DType.FLOAT16)
    s.input("x", 64, 64)
    s.parameter("w", 64, 64)
    half = program_of(s.graph(s.node("MatMul", ["x", "w"], (64, 64))), mode=Mode.INFER)
    ops = tuple(replace(op, work=replace(op.work, compute=Compute.FP8)) for op in half.ops)
    device, times = find_device("a100-pcie-40gb"), np.full(len(ops), 1e-4)
    narrow, wide = (
        job_profile(job, times, device, launch_s=5e-6).compute_s for job in (replace(half, ops=ops), half)
    )
    assert narrow == wide > 0


def test_every_published_workload_is_an_architecture() -> None:
    for (subject, dataset), workload in WORKLOADS.items():
        if workload.architecture == "deepspeech2":
            continue
        assert job_graph(subject, dataset, 2).batch == 2, subject


def test_mobilenet_has_the_published_multiply_adds() -> None:
    """GAISSA prints 0.064 GFLOP for its MobileNetV2: width 0.5 on 128 pixels, a multiply-add counted 2."""
    from predictor.features.programs.program import build_program
    from predictor.types import Mode, Optimizer, Precision, Runtime

    forward = build_program(
        job_graph("mobilenet_v2", "", 1),
        mode=Mode.INFER,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
    )
    assert isclose(sum(op.work.matrix_flops for op in forward.ops) / 1e9, 0.064, rel_tol=0.03)


def test_unknown_workloads_are_named() -> None:
    with pytest.raises(InvalidData, match="alexnet"):
        job_graph("alexnet", "imagenet", 8)


def test_captured_jobs_wait_less_for_launches(model: PowerModel) -> None:
    device = find_device("a100-sxm-80gb")
    eager = profile(launches=20_000)
    captured = replace(eager, launch_s=2e-6)
    known = replace(eager, launch_s=0.0)
    watts = [model.predict(job, device).value for job in (eager, captured, known)]
    assert watts == sorted(watts)
    assert watts[0] < watts[-1]
    assert not model.out_of_range(known, device) or model.out_of_range(eager, device)
