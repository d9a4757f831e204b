"""Iteration time of whole jobs in one environment: what a framework and its input pipeline add to kernels.

    T = ((scale * device's factor * kernel time)^4 + (launches * launch_s + samples * sample_s)^4)^(1/4)

Three numbers describe the environment, one more each of its devices; all are fitted on measured jobs of that
environment and pulled to what is usual elsewhere. What they leave of a job is remembered for that job alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.models.power_memory import FIRM, JobMemory
from predictor.models.power_profile import JobProfile

FloatArray = NDArray[np.float64]

_SHARPNESS = 4
# Usual values and the log distance at which a fit resists moving away from them: eager training launches
# cost 10 to 30 microseconds, decoded and cached images some hundred each.
_SCALE, _LAUNCH_S, _SAMPLE_S = (1.0, 0.5), (1.7e-5, 1.0), (3e-4, 1.0)
_DEVICE_LOGS = 0.5


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job that ran: its profile on its device, samples per iteration, seconds per iteration."""

    profile: JobProfile
    device: str
    samples: int
    iteration_s: float


@dataclass(frozen=True, slots=True)
class Environment:
    """What turns a profile into the duration of an iteration; `device_scale` by device name, else 1."""

    scale: float
    launch_s: float
    sample_s: float
    device_scale: Mapping[str, float]
    memory: Mapping[str, JobMemory]

    def iteration_s(self, profile: JobProfile, device: str, samples: int) -> float:
        """Seconds per iteration."""
        memory = self.memory.get(device)
        left = memory.recall(profile.signature) if memory is not None else 0.0
        return self.trend_s(profile, device, samples) * exp(left)

    def trend_s(self, profile: JobProfile, device: str, samples: int) -> float:
        """Seconds per iteration, without what is remembered of the job."""
        busy = self.busy_s(profile, device)
        host = profile.launch_count * self.launch_s + samples * self.sample_s
        return float((busy**_SHARPNESS + host**_SHARPNESS) ** (1.0 / _SHARPNESS))

    def busy_s(self, profile: JobProfile, device: str) -> float:
        """Seconds per iteration in which kernels run."""
        return self.scale * self.device_scale.get(device, 1.0) * profile.busy_s


def fit_environment(jobs: Sequence[MeasuredJob], *, remember: bool = True) -> Environment:
    """Least squares of log seconds, by coordinate search. Raises InvalidData without jobs."""
    if not jobs:
        raise InvalidData("environment: no measured jobs; give at least one iteration time")
    devices = sorted({job.device for job in jobs})
    usual = np.array([_SCALE[0], _LAUNCH_S[0], _SAMPLE_S[0], *[1.0] * len(devices)])
    width = np.array([_SCALE[1], _LAUNCH_S[1], _SAMPLE_S[1], *[_DEVICE_LOGS] * len(devices)])

    def environment(values: FloatArray) -> Environment:
        scales = {name: float(value) for name, value in zip(devices, values[3:], strict=True)}
        return Environment(float(values[0]), float(values[1]), float(values[2]), scales, {})

    def loss(values: FloatArray) -> float:
        found = environment(values)
        errors = [log(job.iteration_s / found.trend_s(job.profile, job.device, job.samples)) for job in jobs]
        return float(np.square(errors).sum() + 0.02 * np.square(np.log(values / usual) / width).sum())

    values = _search(loss, usual)
    found = environment(values)
    return replace(found, memory=_memories(found, jobs)) if remember else found


def _search(loss, values: FloatArray) -> FloatArray:  # type: ignore[no-untyped-def]
    best, step = loss(values), 1.5
    while step > 1.005:
        improved = False
        for position in range(len(values)):
            for factor in (step, 1 / step):
                candidate = values.copy()
                candidate[position] *= factor
                value = loss(candidate)
                if value < best - 1e-10:
                    values, best, improved = candidate, value, True
        if not improved:
            step = step**0.5
    return values


def _memories(environment: Environment, jobs: Sequence[MeasuredJob]) -> dict[str, JobMemory]:
    memories: dict[str, JobMemory] = {}
    for device in sorted({job.device for job in jobs}):
        left: dict[tuple[float, ...], list[float]] = {}
        for job in jobs:
            if job.device == device and job.profile.signature:
                trend_s = environment.trend_s(job.profile, job.device, job.samples)
                left.setdefault(job.profile.signature, []).append(log(job.iteration_s / trend_s))
        means = np.array([np.mean(values) for values in left.values()])
        memories[device] = JobMemory.of(np.array(list(left)), means, FIRM)
    return memories
