"""Small programs, synthetic training rows and devices for the memory and power tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from predictor.features.architectures import architecture
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Program
from predictor.features.reading.reader import read_graph
from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.memory.peak import FEATURES, memory_features, workspace_potential_bytes
from predictor.models.memory.training import MemoryRows, train_memory
from predictor.models.power.profile import JobProfile
from predictor.models.power.rows import PowerSample
from predictor.types import Mode, Optimizer, Precision, Runtime
from predictor.units import MIB

CONTEXT_BYTES = 1700 * MIB


def program(batch: int = 8, mode: Mode = Mode.TRAIN, name: str = "shufflenet_v2") -> Program:
    """A small image classifier's iteration with SGD momentum."""
    return build_program(
        read_graph(architecture(name, batch=batch, image=32, classes=10)),
        mode=mode,
        precision=Precision.FP32,
        optimizer=Optimizer.MOMENTUM,
        runtime=Runtime.EAGER,
    )


def memory_rows(count: int = 400) -> MemoryRows:
    """Rows around two real programs that use 0.1 plus twice the first feature of their potential."""
    generator = np.random.default_rng(3)
    seeds = [program(batch) for batch in (8, 64)]
    features = np.stack([memory_features(seeds[i % 2]) for i in range(count)])
    features *= generator.uniform(0.8, 1.2, size=features.shape)
    scale = generator.uniform(0.2, 40.0, size=count)
    reserved = np.array([seeds[i % 2].memory.reserved_bytes for i in range(count)]) * scale
    potential = np.array([workspace_potential_bytes(seeds[i % 2]) for i in range(count)]) * scale
    share = 0.1 + 2.0 * np.abs(features[:, 0]) + generator.normal(0.0, 0.02, size=count)
    measured = CONTEXT_BYTES + reserved + share * potential
    group = np.array([f"family{i % 12}" for i in range(count)])
    return MemoryRows(features, reserved, potential, measured, group, np.array(["a100-sxm-40gb"] * count))


def trained_memory() -> TrainedModel:
    """A memory model of `memory_rows`."""
    assert memory_rows(4).features.shape == (4, len(FEATURES))
    return train_memory(memory_rows())


def profile(busy: float = 1.0, compute: float = 0.6, memory: float = 0.3, launches: int = 500) -> JobProfile:
    """An iteration of 100 ms whose utilisations are given."""
    return JobProfile(
        iteration_s=0.1,
        busy_s=0.1 * busy,
        compute_s=0.1 * busy * compute,
        memory_s=0.1 * busy * memory,
        matrix_s=0.08 * busy,
        launch_count=launches,
    )


def power_samples() -> tuple[PowerSample, ...]:
    """Three devices, four workloads, limits from a third to all of the default; power obeys one law."""
    samples = []
    for device_id in ("v100-pcie-32gb", "p100-pcie-16gb", "quadro-rtx-6000-24gb"):
        device = find_device(device_id)
        for name, compute, memory in (("a", 0.8, 0.2), ("b", 0.5, 0.4), ("c", 0.2, 0.8), ("d", 0.1, 0.1)):
            for launches in (200, 2000):
                job = profile(compute=compute, memory=memory, launches=launches)
                free_w = device.tdp_w * (0.25 + 0.5 * compute + 0.3 * memory)
                for share in (0.5, 0.75, 1.0):
                    limit = share * device.tdp_w
                    power = min(free_w, 0.97 * limit)
                    slow = max(1.0, (free_w - 0.13 * device.tdp_w) / (limit - 0.13 * device.tdp_w)) ** 0.5
                    samples.append(
                        PowerSample(
                            profile=replace(job),
                            device=device,
                            limit_w=limit,
                            power_w=power,
                            time_s=100.0 * slow,
                            job=f"{device_id} {name} {launches}",
                            device_group=device_id,
                            model_group=name,
                        )
                    )
    return tuple(samples)
