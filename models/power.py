"""Average board power of a job: where between idle and the power limit it settles.

    fraction = (W - idle) / (limit - idle), in (0, 1)

An analytic base turns the job's utilisation into a demand and lets the limit clip it softly; trees correct
the base in logit space from dimensionless features. Neither sees watts, FLOPs or seconds, so a device
nobody measured is placed on the same scale. The answer never leaves [idle, limit].

Idle draw: the device's own figure where a document states one, else IDLE_FRACTION of its default limit: the
lowest readings of the training rows are 0.156 (V100) and 0.158 (P100) of the limit with a context open and
the device waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.work import Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.device_identity import is_known
from predictor.types import Interval

if TYPE_CHECKING:
    from predictor.models.bundle import Bundle, TrainedModel

FloatArray = NDArray[np.float64]

MODEL_NAME = "power"
BOOSTER = "fraction"
IDLE_FRACTION = 0.13
_LAUNCH_S = 5e-6
_EDGE = 0.005
_TINY_S = 1e-12


@dataclass(frozen=True, slots=True)
class JobProfile:
    """How a job would use a device without a power cap; times are per iteration and per device.

    Attributes:
        iteration_s: duration of the iteration.
        busy_s: time with a kernel running.
        compute_s: time the FLOPs would take at the device's peak rates, each op at the rate of its
        arithmetic. memory_s: time the bytes would take at peak bandwidth. matrix_s: the part of `busy_s` in
        ops that are mostly products or convolutions. launch_count: kernels launched.
    """

    iteration_s: float
    busy_s: float
    compute_s: float
    memory_s: float
    matrix_s: float
    launch_count: int


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
    busy_s = float(time_s.sum())
    works = [op.work for op in program.ops]
    launches = sum(work.launch_count for work in works)
    matrix = np.array([2 * work.matrix_flops > work.flops for work in works], dtype=bool)
    vector_rate = device.vector_flops_per_s
    return JobProfile(
        iteration_s=max(busy_s, launches * launch_s) + communication_s,
        busy_s=busy_s,
        compute_s=fsum(
            work.matrix_flops / device.matrix_flops_per_s.get(work.compute.value, vector_rate)
            + work.vector_flops / vector_rate
            for work in works
        ),
        memory_s=fsum(work.moved_bytes for work in works) / device.memory_bytes_per_s,
        matrix_s=float(time_s[matrix].sum()),
        launch_count=launches,
    )


FEATURES: tuple[str, ...] = (
    "busy_fraction",
    "compute_utilisation",
    "memory_utilisation",
    "log_compute_over_memory",
    "matrix_fraction",
    "log_kernel_over_launch",
    "limit_fraction",
    "base_logit",
)
MONOTONE: tuple[int, ...] = (0, 0, 0, 0, 0, 1, -1, 1)
"""Longer kernels and a larger base mean more, a higher limit a smaller share of it."""


@dataclass(frozen=True, slots=True)
class PowerBase:
    """The analytic base: demand as a share of (default limit - idle), then a soft minimum with the limit.

    busy, compute, memory: weights of a running kernel, of FLOPs at peak, of bytes at peak. kernel: kernels
    of this many launch times leave the device waiting for the host half of the time. sharpness: how sharply
    the limit clips (infinite is a hard minimum). density: chips with fewer peak FLOPs per watt of limit
    cannot spend that limit; their demand falls with that ratio to this power (P100: 178 W of 250 W at full
    load, RTX 6000: 252 W of 260 W).
    """

    busy: float
    compute: float
    memory: float
    kernel: float
    sharpness: float
    density: float

    def fraction(self, inputs: FloatArray) -> FloatArray:
        """(...,) shares (W - idle) / (limit - idle) of `base_inputs` rows (..., 6)."""
        running, kernel, compute, memory, density, headroom = np.moveaxis(inputs, -1, 0)
        duty = running * kernel / (kernel + self.kernel)
        load = self.busy + self.compute * compute + self.memory * memory
        demand = duty * load * density**-self.density / headroom
        clipped = demand / (1.0 + demand**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(np.clip(clipped, _EDGE, 1 - _EDGE), dtype=np.float64)


def base_inputs(profile: JobProfile, device: DeviceSpec, headroom: float) -> FloatArray:
    """(6,) what PowerBase looks at.

    Share of time with a kernel running, kernel duration over launch time, FLOP and byte time at peak over
    running time, power density, headroom = (limit - idle) / (default limit - idle).
    """
    running = max(profile.busy_s, _TINY_S)
    return np.array(
        [
            running / max(profile.iteration_s, _TINY_S),
            _kernel_over_launch(profile),
            profile.compute_s / running,
            profile.memory_s / running,
            power_density(device),
            max(headroom, 1e-3),
        ]
    )


def power_density(device: DeviceSpec) -> float:
    """Default limit over plain FP32 peak, relative to 16 pJ per FLOP (a Turing or Volta board)."""
    return device.tdp_w / device.vector_flops_per_s / 16e-12


def _kernel_over_launch(profile: JobProfile) -> float:
    """Mean kernel duration over the host time of one launch."""
    return max(profile.busy_s, _TINY_S) / max(1, profile.launch_count) / _LAUNCH_S


def idle_power_w(device: DeviceSpec) -> float:
    """Draw of the device with a context open and nothing to do."""
    return device.idle_w if device.idle_w is not None else IDLE_FRACTION * device.tdp_w


def limit_w(device: DeviceSpec, power_limit_w: float | None) -> float:
    """The limit in force: the software cap, never above the default limit, never below what idling needs."""
    limit = device.tdp_w if power_limit_w is None else min(power_limit_w, device.tdp_w)
    return max(limit, 1.05 * idle_power_w(device))


def power_features(
    profile: JobProfile, device: DeviceSpec, cap_w: float | None, base: PowerBase
) -> FloatArray:
    """One row in the order of FEATURES."""
    total, busy = max(profile.iteration_s, _TINY_S), max(profile.busy_s, _TINY_S)
    limit, idle = limit_w(device, cap_w), idle_power_w(device)
    headroom = (limit - idle) / (device.tdp_w - idle)
    return np.array(
        [
            busy / total,
            profile.compute_s / total,
            profile.memory_s / total,
            np.log(max(profile.compute_s, _TINY_S) / max(profile.memory_s, _TINY_S)),
            profile.matrix_s / busy,
            np.log(_kernel_over_launch(profile)),
            headroom,
            logit(base.fraction(base_inputs(profile, device, headroom))),
        ]
    )


def logit(fraction: FloatArray) -> FloatArray:
    """log(f / (1 - f)), f kept away from 0 and 1."""
    inside = np.clip(fraction, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(inside / (1 - inside)), dtype=np.float64)


class PowerModel:
    """Average board power of a job on any device."""

    def __init__(self, params: Mapping[str, Any], booster: Any) -> None:
        self._booster = booster
        self.base = PowerBase(**params["base"])
        self._ranges = np.array(params["feature_ranges"], dtype=np.float64)
        self._devices = np.array(params["devices"], dtype=np.float64)
        self._spread: Mapping[str, float] = params["log_spread"]
        self.clock_exponent = float(params["clock_exponent"])

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> PowerModel:
        """The power model of a bundle. Raises InvalidBundle when it holds none."""
        return cls(bundle.params(MODEL_NAME), bundle.booster(MODEL_NAME, BOOSTER))

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> PowerModel:
        """A model straight from training, without a bundle on disk."""
        import xgboost

        booster = xgboost.Booster()
        booster.load_model(bytearray(trained.boosters[BOOSTER]))
        booster.set_param({"nthread": 1})
        return cls(trained.params, booster)

    def predict(
        self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None = None
    ) -> Interval:
        """Average watts of one device over the iteration; idle <= low <= value <= high <= limit."""
        row = power_features(profile, device, power_limit_w, self.base)
        correction = float(self._booster.inplace_predict(row[None, :].astype(np.float32))[0])
        fraction = 1.0 / (1.0 + np.exp(-(row[-1] + correction)))
        idle, limit = idle_power_w(device), limit_w(device, power_limit_w)
        value = float(idle + fraction * (limit - idle))
        known = "known_device" if is_known(device, self._devices) else "new_device"
        factor = float(np.exp(self._spread[known]))
        return Interval(value, max(idle, value / factor), min(limit, value * factor))

    def out_of_range(
        self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None = None
    ) -> bool:
        """True when a utilisation lies outside what the model was trained on."""
        row = power_features(profile, device, power_limit_w, self.base)
        low, high = self._ranges
        return bool(((row < low) | (row > high)).any())

    def slowdown(self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None) -> float:
        """Factor on kernel time under a software cap; 1 where the job stays below it.

        Dynamic power goes with clock^exponent (fitted on capped runs), so a job that would draw D above
        idle and may draw C runs its core-bound part (D / C)^(1 / exponent) times as long.
        """
        if power_limit_w is None or power_limit_w >= device.tdp_w:
            return 1.0
        ratio = self.power_ratio(profile, device, power_limit_w)
        return float(ratio ** (1.0 / self.clock_exponent))

    def power_ratio(self, profile: JobProfile, device: DeviceSpec, power_limit_w: float) -> float:
        """Dynamic power while kernels run without a cap, over what the cap leaves for it; at least 1."""
        idle, limit = idle_power_w(device), limit_w(device, power_limit_w)
        duty = min(1.0, max(profile.busy_s / max(profile.iteration_s, _TINY_S), 0.05))
        free = self.predict(profile, device, None).value
        active = min(device.tdp_w, idle + (free - idle) / duty)
        ratio = (active - idle) / (limit - idle)
        return max(1.0, float(ratio))
