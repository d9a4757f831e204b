"""Average board power of a job: how much it would like to draw, and what the power limit leaves of that.

    demand   = base demand * exp(correction)            a share of (default limit - idle); can exceed 1
    fraction = soft minimum of 1 and demand / headroom  headroom = (limit - idle) / (default limit - idle)
    W        = idle + fraction * (limit - idle)

The base turns the job's utilisation into a demand; trees correct it from dimensionless features. Neither sees
watts, FLOPs, seconds or the limit, so a device nobody measured is placed on the same scale, the answer never
leaves [idle, limit], and a higher limit never means fewer watts.

Idle draw: the device's own figure where a document states one, else IDLE_FRACTION of its default limit. The
lowest readings of the training rows are 0.156 (V100) and 0.158 (P100) of the limit, with a context open and
the device waiting for the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, fsum, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.work import Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.device_identity import is_known
from predictor.models.recurrent import streamed_bytes
from predictor.types import Interval

FloatArray = NDArray[np.float64]

MODEL_NAME = "power"
BOOSTER = "demand"
IDLE_FRACTION = 0.13
_LAUNCH_S = 5e-6
_EDGE = 0.005
_TINY_S = 1e-12
_TINY_HEADROOM = 1e-3
# Chips that spend all of their limit (Volta and Turing boards) have about this many joules per FP32 FLOP of
# peak.
_REFERENCE_J_PER_FLOP = 16e-12


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
        memory_s=fsum(work.moved_bytes + streamed_bytes(work, device) for work in works)
        / device.memory_bytes_per_s,
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
    "log_base_demand",
)
MONOTONE: tuple[int, ...] = (0, 0, 0, 0, 0, 1, 1)
"""Longer kernels and a larger base demand mean more."""


@dataclass(frozen=True, slots=True)
class PowerBase:
    """The analytic base, and how a limit clips a demand.

    Attributes:
        busy, compute, memory: weights of a running kernel, of FLOPs at peak, of bytes at peak.
        kernel: kernels of this many launch times leave the device waiting for the host half of the time.
        density: chips with few peak FLOPs per watt of limit cannot spend that limit (P100: 178 W of 250 W at
            full load, RTX 6000: 252 W of 260 W); demand falls with that ratio to this power.
        sharpness: how sharply the limit clips; infinite is a hard minimum.
    """

    busy: float
    compute: float
    memory: float
    kernel: float
    density: float
    sharpness: float

    def demand(self, inputs: FloatArray) -> FloatArray:
        """(...,) demands of `base_inputs` rows (..., 5), over (default limit - idle)."""
        running, kernel, compute, memory, density = np.moveaxis(inputs, -1, 0)
        duty = running * kernel / (kernel + self.kernel)
        load = self.busy + self.compute * compute + self.memory * memory
        return np.asarray(duty * load * density**-self.density, dtype=np.float64)

    def fraction(self, demand: FloatArray, room: FloatArray) -> FloatArray:
        """Shares (W - idle) / (limit - idle) under the `headroom` `room`, kept away from 0 and 1."""
        ratio = demand / np.maximum(room, _TINY_HEADROOM)
        clipped = ratio / (1.0 + ratio**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(np.clip(clipped, _EDGE, 1 - _EDGE), dtype=np.float64)

    def demand_of(self, fraction: FloatArray, room: FloatArray) -> FloatArray:
        """The inverse of `fraction` in its first argument."""
        inside = np.clip(fraction, _EDGE, 1 - _EDGE)
        ratio = inside / (1.0 - inside**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(ratio * np.maximum(room, _TINY_HEADROOM), dtype=np.float64)


def base_inputs(profile: JobProfile, device: DeviceSpec) -> FloatArray:
    """(5,) what PowerBase looks at.

    Share of time with a kernel running, kernel duration over launch time, FLOP time and byte time at peak
    over running time, joules per peak FLOP over the reference.
    """
    running = max(profile.busy_s, _TINY_S)
    return np.array(
        [
            running / max(profile.iteration_s, _TINY_S),
            _kernel_over_launch(profile),
            profile.compute_s / running,
            profile.memory_s / running,
            device.tdp_w / device.vector_flops_per_s / _REFERENCE_J_PER_FLOP,
        ]
    )


def _kernel_over_launch(profile: JobProfile) -> float:
    """Mean kernel duration over the host time of one launch."""
    return max(profile.busy_s, _TINY_S) / max(1, profile.launch_count) / _LAUNCH_S


def idle_power_w(device: DeviceSpec) -> float:
    """Draw of the device with a context open and nothing to do."""
    return device.idle_w if device.idle_w is not None else IDLE_FRACTION * device.tdp_w


def limit_w(device: DeviceSpec, power_limit_w: float | None) -> float:
    """The limit in force: the software cap, not above the default limit, not below what idling needs."""
    limit = device.tdp_w if power_limit_w is None else min(power_limit_w, device.tdp_w)
    return max(limit, 1.05 * idle_power_w(device))


def headroom(device: DeviceSpec, power_limit_w: float | None) -> float:
    """(limit - idle) / (default limit - idle), at most 1."""
    idle = idle_power_w(device)
    return (limit_w(device, power_limit_w) - idle) / (device.tdp_w - idle)


def power_features(profile: JobProfile, device: DeviceSpec, base: PowerBase) -> FloatArray:
    """One row in the order of FEATURES."""
    total, busy = max(profile.iteration_s, _TINY_S), max(profile.busy_s, _TINY_S)
    demand = float(base.demand(base_inputs(profile, device)))
    return np.array(
        [
            busy / total,
            profile.compute_s / total,
            profile.memory_s / total,
            log(max(profile.compute_s, _TINY_S) / max(profile.memory_s, _TINY_S)),
            profile.matrix_s / busy,
            log(_kernel_over_launch(profile)),
            log(max(demand, _TINY_S)),
        ]
    )


class PowerModel:
    """Average board power of a job on any device."""

    def __init__(self, params: Mapping[str, Any], booster: Any) -> None:
        """`params` as training wrote them, `booster` the xgboost.Booster of the correction."""
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
        return cls(trained.params, load_booster(trained.boosters[BOOSTER]))

    def predict(
        self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None = None
    ) -> Interval:
        """Average watts of one device over the iteration; idle <= low <= value <= high <= limit."""
        idle, limit = idle_power_w(device), limit_w(device, power_limit_w)
        demand, room = self.demand(profile, device), headroom(device, power_limit_w)
        value = idle + float(self.base.fraction(np.array(demand), np.array(room))) * (limit - idle)
        known = "known_device" if is_known(device, self._devices) else "new_device"
        factor = exp(self._spread[known])
        return Interval(value, max(idle, value / factor), min(limit, value * factor))

    def demand(self, profile: JobProfile, device: DeviceSpec) -> float:
        """Dynamic power without any limit, over (default limit - idle)."""
        row = power_features(profile, device, self.base)
        correction = float(self._booster.inplace_predict(row[None, :].astype(np.float32))[0])
        return exp(float(row[-1]) + correction)

    def out_of_range(self, profile: JobProfile, device: DeviceSpec) -> bool:
        """True when a utilisation lies outside what the model was trained on."""
        row = power_features(profile, device, self.base)
        low, high = self._ranges
        return bool(((row < low) | (row > high)).any())

    def slowdown(self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None) -> float:
        """Factor on kernel time under a software cap; 1 where the job stays below it.

        Dynamic power goes with clock^exponent (fitted on capped runs): a job that would draw D above idle
        while its kernels run, and may draw C, runs (D / C)^(1 / exponent) times as long.
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
        return max(1.0, float((active - idle) / (limit - idle)))
