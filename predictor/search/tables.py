"""Answers of many splits as tables: the fastest plan by kind and number of devices, and times by replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from predictor.parallel.plan import Plan
from predictor.search.search import FrontPoint


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """The fastest way to run a job on at most so many devices of a kind.

    Attributes:
        plan, iteration_time_s: None where nothing fits. throughput_samples_per_s: then 0.
    """

    device: str
    device_count: int
    plan: Plan | None
    iteration_time_s: float | None
    throughput_samples_per_s: float


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One number of replicas of a plan.

    Attributes:
        batch: samples of an iteration. low_s, high_s: 90 % interval of its time.
        efficiency: throughput per device over that of the first point. fits: the devices have the memory.
    """

    replicas: int
    device_count: int
    batch: int
    iteration_time_s: float
    low_s: float
    high_s: float
    throughput_samples_per_s: float
    efficiency: float
    fits: bool


def throughput_rows(
    device: str, batch: int, counts: Sequence[int], front: Sequence[FrontPoint]
) -> list[ThroughputRow]:
    """A device's row for each count, from the front of its plans (few devices first)."""
    rows = []
    for count in counts:
        within = [point for point in front if point.devices <= count]
        if within:
            best = within[-1]
            rows.append(ThroughputRow(device, count, best.plan, best.time_s, batch / best.time_s))
        else:
            rows.append(ThroughputRow(device, count, None, None, 0.0))
    return rows
