"""Iteration time of whole jobs in one environment: what a framework and its input pipeline add to kernels.

    T of a step = (kernels^4 + launching^4 + input^4)^(1/4)
    kernels = scale * device's factor * kernel time
    launching = launches * launch_s, input = samples * sample_s

Device, launching host and input pipeline work beside each other, so the slowest of the three sets the pace.
A job's T is the mean over its kinds of steps (training, validation). Three numbers describe the environment,
one more each of its devices; all are fitted on measured jobs of that environment, on the share of time with a
kernel where a monitor told it, and pulled to what is usual elsewhere. What they leave of a job is remembered
for that job alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.models.power.profile import JobProfile, Phase, mixed, timed
from predictor.models.power.residuals import FIRM, JobMemory

FloatArray = NDArray[np.float64]

_SHARPNESS = 4
# Usual values and the log distance at which a fit resists moving away from them: eager training launches
# cost 10 to 30 microseconds, decoded and cached images some hundred each.
_SCALE, _LAUNCH_S, _SAMPLE_S = (1.0, 0.5), (1.7e-5, 1.0), (3e-4, 1.0)
# Kernel times of a device that nobody timed are off by some 0.2 in the log (suite time, GPUs left out), those
# of one network by 0.15, told twice (seconds and share of time with a kernel): one network on a card says
# half of what the card is like.
_DEVICE_LOGS = 0.15
# Signatures of unlike networks lie one to three apart; what one leaves says nothing of another.
_OWN_JOB = 4.0


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job that ran: its kinds of steps, samples and seconds per step, share of time with a kernel or 0."""

    phases: tuple[Phase, ...]
    device: str
    samples: int
    iteration_s: float
    busy_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Environment:
    """What turns phases into the duration of a step; `device_scale` by device name, else 1."""

    scale: float
    launch_s: float
    sample_s: float
    device_scale: Mapping[str, float]
    memory: Mapping[str, JobMemory]
    busy_memory: Mapping[str, JobMemory]

    def iteration_s(self, phases: Sequence[Phase], device: str, samples: int) -> float:
        """Seconds per step, mean over the phases."""
        return self.trend_s(phases, device, samples) * _remembered(self.memory, phases, device)

    def trend_s(self, phases: Sequence[Phase], device: str, samples: int) -> float:
        """Seconds per step, without what is remembered of the job."""
        return sum(phase.share * self._step_s(phase.profile, device, samples) for phase in phases)

    def profile(self, phases: Sequence[Phase], device: str, samples: int) -> JobProfile:
        """The mean step with this environment's durations, for the power model."""
        mean = mixed(phases)
        busy_s = self.busy_s(mean, device) * _remembered(self.busy_memory, phases, device)
        return timed(mean, self.iteration_s(phases, device, samples), busy_s)

    def busy_s(self, profile: JobProfile, device: str) -> float:
        """Seconds per step in which kernels run."""
        return self.scale * self.device_scale.get(device, 1.0) * profile.busy_s

    def _step_s(self, profile: JobProfile, device: str, samples: int) -> float:
        stages = (
            self.busy_s(profile, device),
            profile.launch_count * self.launch_s,
            samples * self.sample_s,
        )
        return float(sum(stage**_SHARPNESS for stage in stages) ** (1.0 / _SHARPNESS))


def fit_environment(jobs: Sequence[MeasuredJob], *, remember: bool = True) -> Environment:
    """Least squares of log seconds, by coordinate search. Raises InvalidData without jobs."""
    if not jobs:
        raise InvalidData("environment: no measured jobs; give at least one iteration time")
    devices = sorted({job.device for job in jobs})
    usual = np.array([_SCALE[0], _LAUNCH_S[0], _SAMPLE_S[0], *[1.0] * len(devices)])
    width = np.array([_SCALE[1], _LAUNCH_S[1], _SAMPLE_S[1], *[_DEVICE_LOGS] * len(devices)])

    def environment(values: FloatArray) -> Environment:
        scales = {name: float(value) for name, value in zip(devices, values[3:], strict=True)}
        return Environment(float(values[0]), float(values[1]), float(values[2]), scales, {}, {})

    def loss(values: FloatArray) -> float:
        found = environment(values)
        errors = [log(job.iteration_s / found.trend_s(job.phases, job.device, job.samples)) for job in jobs]
        errors += [
            log(job.busy_share * job.iteration_s / found.busy_s(mixed(job.phases), job.device))
            for job in jobs
            if job.busy_share > 0
        ]
        return float(np.square(errors).sum() + 0.02 * np.square(np.log(values / usual) / width).sum())

    values = _search(loss, usual)
    found = environment(values)
    if not remember:
        return found
    metered = [job for job in jobs if job.busy_share > 0]
    return replace(
        found,
        memory=_memories(
            jobs, lambda job: found.trend_s(job.phases, job.device, job.samples) / job.iteration_s
        ),
        busy_memory=_memories(
            metered,
            lambda job: found.busy_s(mixed(job.phases), job.device) / (job.busy_share * job.iteration_s),
        ),
    )


def _remembered(memories: Mapping[str, JobMemory], phases: Sequence[Phase], device: str) -> float:
    memory = memories.get(device)
    return exp(memory.recall(_own(phases))) if memory is not None else 1.0


def _own(phases: Sequence[Phase]) -> tuple[float, ...]:
    return tuple(_OWN_JOB * x for x in phases[0].profile.signature)


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


def _memories(jobs: Sequence[MeasuredJob], over: Callable[[MeasuredJob], float]) -> dict[str, JobMemory]:
    """Per device, what a fit that is `over` the measurement by a factor leaves of each job."""
    memories: dict[str, JobMemory] = {}
    for device in sorted({job.device for job in jobs}):
        left: dict[tuple[float, ...], list[float]] = {}
        for job in jobs:
            if job.device == device and job.phases[0].profile.signature:
                left.setdefault(_own(job.phases), []).append(-log(over(job)))
        if left:
            means = np.array([np.mean(values) for values in left.values()])
            memories[device] = JobMemory.of(np.array(list(left)), means, FIRM)
    return memories
