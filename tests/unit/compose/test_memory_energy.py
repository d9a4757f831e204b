from __future__ import annotations

from dataclasses import replace
from math import isclose

import numpy as np
import pytest

from predictor.compose.energy import compose_energy, slowdown_under_cap
from predictor.compose.memory import compose_memory
from predictor.compose.time import ProgramCosts, compose_time, price_program
from predictor.features.programs.work import Program
from predictor.hardware.catalog import default_cluster, find_device
from predictor.hardware.spec import usable_bytes
from predictor.models.bundle import Bundle
from predictor.models.memory.peak import MemoryModel
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.power.board_power import PowerModel, idle_power_w
from predictor.models.power.training import train_power
from predictor.parallel.plan import Plan
from predictor.types import Runtime
from predictor.units import GIB
from tests.unit.models.memory_power_cases import power_samples, program, trained_memory

DEVICE = find_device("v100-pcie-32gb")


@pytest.fixture(scope="module")
def power() -> PowerModel:
    return PowerModel.from_trained(train_power(power_samples(), calibrate=False))


@pytest.fixture(scope="module")
def memory() -> MemoryModel:
    return MemoryModel.from_trained(trained_memory())


@pytest.fixture(scope="module")
def job() -> Program:
    return program(256)


@pytest.fixture(scope="module")
def costs(job: Program) -> ProgramCosts:
    return price_program(job, DEVICE, OpTimeModel.from_bundle(Bundle.load()))


def energy_of(job: Program, costs: ProgramCosts, power: PowerModel, plan: Plan, cap_w: float | None):  # type: ignore[no-untyped-def]
    cluster = default_cluster(DEVICE, plan.dp) if plan.dp > 1 else None
    slow = slowdown_under_cap(job, costs, DEVICE, Runtime.EAGER, cap_w, power)
    time = compose_time(job, costs, runtime=Runtime.EAGER, plan=plan, cluster=cluster, slowdown=slow)
    return time, compose_energy(job, costs, time, DEVICE, plan, Runtime.EAGER, cap_w, power)


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("cap_w", [None, 100.0])
def test_energy_is_power_times_time_times_devices(
    job: Program, costs: ProgramCosts, power: PowerModel, replicas: int, cap_w: float | None
) -> None:
    time, energy = energy_of(job, costs, power, Plan(dp=replicas), cap_w)
    expected = energy.average_power_w.value * time.iteration.value * replicas
    assert isclose(energy.energy_j.value, expected, rel_tol=1e-12)
    assert isclose(sum(energy.breakdown_j.values()), energy.energy_j.value, rel_tol=1e-9)
    assert min(energy.breakdown_j.values()) >= 0
    idle_j = idle_power_w(DEVICE) * time.iteration.value * replicas
    idle = energy.breakdown_j["static"] + energy.breakdown_j["stalled"]
    assert isclose(idle, idle_j, rel_tol=1e-9)
    # Devices that wait for others stall longer.
    assert energy.breakdown_j["stalled"] >= 0
    assert replicas == 1 or energy.breakdown_j["stalled"] > 0
    assert (energy.breakdown_j["communication"] > 0) == (time.breakdown_s["communication"] > 0)
    assert energy.energy_j.low < energy.energy_j.value < energy.energy_j.high


def test_a_cap_trades_time_for_power(job: Program, costs: ProgramCosts, power: PowerModel) -> None:
    free_time, free = energy_of(job, costs, power, Plan(), None)
    capped_time, capped = energy_of(job, costs, power, Plan(), 100.0)
    assert capped.average_power_w.value <= 100.0 < free.average_power_w.value
    assert capped_time.iteration.value > free_time.iteration.value
    relative = capped_time.iteration.value / free_time.iteration.value
    assert relative < free.average_power_w.value / capped.average_power_w.value * 1.5


def test_jobs_fit_up_to_the_usable_capacity(job: Program, memory: MemoryModel) -> None:
    cost = compose_memory(job, DEVICE, Plan(), memory)
    assert cost.fits
    assert cost.capacity_bytes == usable_bytes(DEVICE)
    small = replace(DEVICE, memory_bytes=cost.device_peak.value * 0.9, reported_memory_bytes=None)
    tight = compose_memory(job, small, Plan(), memory)
    assert not tight.fits
    assert tight.capacity_bytes < small.memory_bytes


def test_usable_capacity_is_what_the_monitor_reports() -> None:
    stated = replace(DEVICE, memory_bytes=float(40 * GIB), reported_memory_bytes=float(39.4 * GIB))
    assert usable_bytes(stated) == 39.4 * GIB
    silent = replace(stated, reported_memory_bytes=None)
    assert 0.97 * 40 * GIB < usable_bytes(silent) < 40 * GIB


def test_replicas_add_communication_buffers(job: Program, memory: MemoryModel) -> None:
    one, four = (compose_memory(job, DEVICE, Plan(dp=count), memory) for count in (1, 4))
    extra = four.device_peak.value - one.device_peak.value
    assert isclose(extra, four.breakdown_bytes["communication_buffers"], rel_tol=1e-9)
    assert extra >= job.memory.gradient_bytes
    assert np.isclose(sum(four.breakdown_bytes.values()), four.device_peak.value, rtol=1e-9)
