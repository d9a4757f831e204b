"""How a job would use a device without a power cap: what the power model sees of a priced program.

Nothing names a network or a device. The signature (which families the time and the launches go to, work per
launch) is what makes two jobs alike; only models.power_memory reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import Family, OpWork, Program
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.ops.floor import is_absent
from predictor.models.ops.recurrent import streamed_bytes

FloatArray = NDArray[np.float64]

TINY_S = 1e-12
EAGER_LAUNCH_S = 5e-6
"""Host time per kernel of the jobs that the power model was trained on."""
_FAMILIES = tuple(Family)


@dataclass(frozen=True, slots=True)
class JobProfile:
    """How a job would use a device without a power cap; times are per iteration and per device.

    Attributes:
        iteration_s: duration of the iteration.
        busy_s: time with a kernel running.
        compute_s: time the FLOPs would take at the device's peak rates, each op at the rate of its
            arithmetic. memory_s: time the bytes would take at peak bandwidth. matrix_s: the part of `busy_s`
            in ops that are mostly products or convolutions. launch_count: kernels launched.
        signature: see `job_signature`; () compares with no other job.
        launch_s: what the host takes to launch a kernel; 0 where the waiting for it is in `iteration_s`.
    """

    iteration_s: float
    busy_s: float
    compute_s: float
    memory_s: float
    matrix_s: float
    launch_count: int
    signature: tuple[float, ...] = ()
    launch_s: float = EAGER_LAUNCH_S

    @property
    def kernel_s(self) -> float:
        """Mean duration of a kernel."""
        return max(self.busy_s, TINY_S) / max(1, self.launch_count)

    @property
    def compute_utilisation(self) -> float:
        """FLOP time at peak over running time."""
        return self.compute_s / max(self.busy_s, TINY_S)

    @property
    def memory_utilisation(self) -> float:
        """Byte time at peak bandwidth over running time."""
        return self.memory_s / max(self.busy_s, TINY_S)


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a job's steps, all alike: its share of the steps, and how one of them uses the device."""

    share: float
    profile: JobProfile


def mixed(phases: Sequence[Phase]) -> JobProfile:
    """The mean step of several phases; signature and launch time are the first one's."""

    def mean(name: str) -> float:
        return sum(phase.share * float(getattr(phase.profile, name)) for phase in phases)

    return replace(
        phases[0].profile,
        iteration_s=mean("iteration_s"),
        busy_s=mean("busy_s"),
        compute_s=mean("compute_s"),
        memory_s=mean("memory_s"),
        matrix_s=mean("matrix_s"),
        launch_count=round(mean("launch_count")),
    )


def timed(profile: JobProfile, iteration_s: float, busy_s: float) -> JobProfile:
    """`profile` with known durations: all waiting for the host is what `iteration_s` exceeds `busy_s` by."""
    scale = busy_s / max(profile.busy_s, TINY_S)
    return replace(
        profile,
        iteration_s=max(iteration_s, busy_s),
        busy_s=busy_s,
        matrix_s=scale * profile.matrix_s,
        launch_s=0.0,
    )


def job_profile(
    program: Program, time_s: FloatArray, device: DeviceSpec, launch_s: float, communication_s: float = 0.0
) -> JobProfile:
    """How `program` uses `device` without a power cap.

    Args:
        program: one device's iteration.
        time_s: (ops,) predicted kernel time of each op.
        device: sets the peaks.
        launch_s: host time per kernel launch.
        communication_s: exposed communication, added to the iteration.
    """
    position: dict[OpWork, int] = {}
    index = np.array([position.setdefault(op.work, len(position)) for op in program.ops], dtype=np.intp)
    works, count = list(position), np.bincount(index, minlength=len(position)).astype(np.float64)
    count *= [not is_absent(work, device) for work in works]
    by_work_s = np.bincount(index, weights=time_s, minlength=len(works)).astype(np.float64)
    launches = count * [work.launch_count for work in works]
    compute_s = count * [
        work.matrix_flops / matrix_peak(device, work.compute) + work.vector_flops / device.vector_flops_per_s
        for work in works
    ]
    moved = count * [work.moved_bytes + streamed_bytes(work, device) for work in works]
    matrix = np.array([2 * work.matrix_flops > work.flops for work in works], dtype=bool)
    family = np.array([_FAMILIES.index(work.family) for work in works], dtype=np.intp)
    busy_s, launch_count = float(by_work_s.sum()), int(launches.sum())
    flops = float((count * [work.flops for work in works]).sum())
    return JobProfile(
        iteration_s=max(busy_s, launch_count * launch_s) + communication_s,
        busy_s=busy_s,
        compute_s=float(compute_s.sum()),
        memory_s=float(moved.sum()) / device.memory_bytes_per_s,
        matrix_s=float(by_work_s[matrix].sum()),
        launch_count=launch_count,
        signature=job_signature(family, by_work_s, launches, flops, float(moved.sum())),
        launch_s=launch_s,
    )


# Distances of one: a few per cent of the time or of the launches in other families; work per launch changed
# by e.
_SHARE_SCALE = 0.2


def job_signature(
    family: NDArray[np.intp], time_s: FloatArray, launches: FloatArray, flops: float, moved_bytes: float
) -> tuple[float, ...]:
    """What makes two jobs alike, scaled so that a Euclidean distance of 1 is "somewhat different".

    Square roots of the families' shares of time and of launches (a Hellinger distance), logs of FLOPs and
    bytes per launch.
    """
    parts: list[float] = []
    for amounts in (time_s, launches):
        shares = np.bincount(family, weights=amounts, minlength=len(_FAMILIES)) / max(amounts.sum(), TINY_S)
        parts += [float(x) for x in np.sqrt(shares) / _SHARE_SCALE]
    count = max(1.0, float(launches.sum()))
    return (*parts, log(max(flops, 1.0) / count), log(max(moved_bytes, 1.0) / count))
