"""Average board power of a job: how much it would like to draw, and what the power limit leaves of that.

    demand   = base demand * exp(trees + memory)    a share of (default limit - idle); can exceed 1
    fraction = soft minimum of 1 and demand / headroom    headroom = (limit - idle) / (default limit - idle)
    W        = idle + fraction * (limit - idle)

The base turns the job's utilisation into a demand; trees correct its trend, and memories lend what jobs
alike left unexplained on any device, then on this one (models.power_memory). None of them sees watts, FLOPs,
seconds or the limit, so a device nobody measured is placed on the same scale, the answer never leaves
[idle, limit], and a higher limit never means fewer watts. The same demand says how a cap stretches the
kernels (models.power_cap).

Idle draw: the device's own figure where a document states one, else IDLE_FRACTION of its default limit. The
lowest readings of the training rows are 0.156 (V100) and 0.158 (P100) of the limit, with a context open and
the device waiting for the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from predictor.errors import InvalidBundle
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.device_identity import device_numbers, is_known
from predictor.models.power.cap import CapCurve, CapReading, carried, fit_curve
from predictor.models.power.profile import EAGER_LAUNCH_S, TINY_S, JobProfile
from predictor.models.power.residuals import JobMemory
from predictor.types import Interval

FloatArray = NDArray[np.float64]

MODEL_NAME = "power"
BOOSTER = "demand"
IDLE_FRACTION = 0.13
RANGED = 5
"""Of the inputs, those whose range in training bounds what is known: how kernels launch is no such thing."""
_EDGE = 0.005
_TINY_HEADROOM = 1e-3
# Chips that spend all of their limit (Volta and Turing boards) have about this many joules per FP32 FLOP of
# peak.
_REFERENCE_J_PER_FLOP = 16e-12
# No demand is known better than this, whatever the rows say: readings of one job differ by as much.
METER_LOG_SPREAD = 0.03

FEATURES: tuple[str, ...] = ("log_kernel_over_launch", "log_base_demand")
MONOTONE: tuple[int, ...] = (1, 1)
"""Longer kernels and a larger base demand mean more."""


@dataclass(frozen=True, slots=True)
class PowerBase:
    """The analytic base, and how a limit clips a demand.

    Attributes:
        busy, compute, memory: weights of a running kernel, of FLOPs at peak, of bytes at peak.
        fill: kernels of this many launch times reach half of `busy`: shorter ones leave cores idle.
        kernel, duty_sharpness: kernels of `kernel` launch times are about as long as the host takes to launch
            one; duty = (1 + (kernel / duration)^s)^(-1/s).
        density: chips with few peak FLOPs per watt of limit cannot spend that limit (P100: 178 W of 250 W at
            full load, RTX 6000: 252 W of 260 W); demand falls with that ratio to this power.
        sharpness: how sharply the limit clips; infinite is a hard minimum.
        active: demand while kernels run, over what the mean says of it. share, contrast: the part of kernel
            time that follows the clock, and how it grows with compute over memory utilisation.
        clock_sharpness: how sharply a cap clips the clock.
    """

    busy: float
    compute: float
    memory: float
    fill: float
    kernel: float
    duty_sharpness: float
    density: float
    sharpness: float
    active: float
    share: float
    contrast: float
    clock_sharpness: float

    def duty(self, inputs: FloatArray) -> FloatArray:
        """(...,) shares of the time in which kernels run, of `base_inputs` rows (..., 6)."""
        waiting = self.kernel * inputs[..., 5] / inputs[..., 1]
        duty = inputs[..., 0] * (1.0 + waiting**self.duty_sharpness) ** (-1.0 / self.duty_sharpness)
        return np.asarray(duty, dtype=np.float64)

    def load(self, inputs: FloatArray) -> FloatArray:
        """(...,) demands while kernels run, over (default limit - idle)."""
        _, kernel, compute, memory, density, _ = np.moveaxis(inputs, -1, 0)
        busy = self.busy * kernel / (kernel + self.fill)
        load = (busy + self.compute * compute + self.memory * memory) * density**-self.density
        return np.asarray(load, dtype=np.float64)

    def demand(self, inputs: FloatArray) -> FloatArray:
        """(...,) mean demands over (default limit - idle)."""
        return self.duty(inputs) * self.load(inputs)

    def share_of(self, inputs: FloatArray) -> FloatArray:
        """(...,) parts of kernel time that follow the clock."""
        return np.clip(self.share + self.contrast * (inputs[..., 2] - inputs[..., 3]), 0.05, 1.0)

    def fraction(self, demand: ArrayLike, room: ArrayLike) -> FloatArray:
        """Shares (W - idle) / (limit - idle) under the `headroom` `room`, kept away from 0 and 1."""
        ratio = np.asarray(demand) / np.maximum(room, _TINY_HEADROOM)
        clipped = ratio / (1.0 + ratio**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(np.clip(clipped, _EDGE, 1 - _EDGE), dtype=np.float64)

    def demand_of(self, fraction: FloatArray, room: FloatArray) -> FloatArray:
        """The inverse of `fraction` in its first argument."""
        inside = np.clip(fraction, _EDGE, 1 - _EDGE)
        ratio = inside / (1.0 - inside**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(ratio * np.maximum(room, _TINY_HEADROOM), dtype=np.float64)


def base_inputs(profile: JobProfile, device: DeviceSpec) -> FloatArray:
    """(6,) what PowerBase looks at.

    Share of time with a kernel running, kernel duration over an eager launch, FLOP time and byte time at peak
    over running time, joules per peak FLOP over the reference, launch time over an eager one.
    """
    return np.array(
        [
            max(profile.busy_s, TINY_S) / max(profile.iteration_s, TINY_S),
            profile.kernel_s / EAGER_LAUNCH_S,
            profile.compute_utilisation,
            profile.memory_utilisation,
            device.tdp_w / device.vector_flops_per_s / _REFERENCE_J_PER_FLOP,
            profile.launch_s / EAGER_LAUNCH_S,
        ]
    )


# Devices that differ by a tenth in one of their numbers are "somewhat different".
_DEVICE_SCALE = 0.1


def own_signature(profile: JobProfile, device: DeviceSpec) -> tuple[float, ...]:
    """The job's signature with the device's numbers: what a job leaves on one device alone."""
    if not profile.signature:
        return ()
    return (*profile.signature, *(log(x) / _DEVICE_SCALE for x in device_numbers(device)))


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


def power_features(inputs: FloatArray, base: PowerBase) -> FloatArray:
    """(..., 2) rows in the order of FEATURES, of `base_inputs` rows (..., 6)."""
    demand = np.log(np.maximum(base.demand(inputs), 1e-9))
    return np.stack([np.log(inputs[..., 1]), demand], axis=-1)


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured run of one job on one device: the cap, seconds of anything fixed, average watts."""

    power_limit_w: float | None
    time_s: float
    power_w: float


class PowerModel:
    """Average board power of a job on any device, and what a cap does to its time."""

    def __init__(self, params: Mapping[str, Any], booster: Any) -> None:
        """`params` as training wrote them, `booster` the xgboost.Booster of the correction."""
        if "own_memory" not in params:
            raise InvalidBundle("power: trained by an earlier version; run `perfcast train`")
        self._booster = booster
        self.base = PowerBase(**params["base"])
        self.memory = JobMemory.from_json(params["memory"])
        self.own_memory = JobMemory.from_json(params["own_memory"])
        self._ranges = np.array(params["input_ranges"], dtype=np.float64)
        self._devices = np.array(params["devices"], dtype=np.float64)
        self._spread: Mapping[str, float] = params["log_spread"]

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
        demand, spread = self.demand(profile, device), self._spread[self.situation(profile, device)]
        return self.watts(device, power_limit_w, demand, spread)

    def watts(
        self, device: DeviceSpec, power_limit_w: float | None, demand: float, spread: float
    ) -> Interval:
        """Watts of a demand that is known up to a factor of exp(spread)."""
        idle, limit = idle_power_w(device), limit_w(device, power_limit_w)
        room = headroom(device, power_limit_w)
        demands = demand * np.exp([0.0, -spread, spread])
        value, low, high = idle + self.base.fraction(demands, room) * (limit - idle)
        meter = exp(METER_LOG_SPREAD)
        return Interval(float(value), max(idle, float(low) / meter), min(limit, float(high) * meter))

    def situation(self, profile: JobProfile, device: DeviceSpec) -> str:
        """How much like the measured ones a question is: what its interval is calibrated on."""
        known_device = is_known(device, self._devices)
        if self.memory.nearness(profile.signature) < _ALIKE:
            return "new_job" if known_device else "new_device_and_job"
        return "known" if known_device else "new_device"

    def demand(self, profile: JobProfile, device: DeviceSpec) -> float:
        """Dynamic power without any limit, over (default limit - idle)."""
        row = power_features(base_inputs(profile, device), self.base)
        correction = float(self._booster.inplace_predict(row[None, :].astype(np.float32))[0])
        recalled = self.memory.recall(profile.signature)
        recalled += self.own_memory.recall(own_signature(profile, device))
        return exp(float(row[-1]) + correction + recalled)

    def out_of_range(self, profile: JobProfile, device: DeviceSpec) -> bool:
        """True when a utilisation lies outside what the model was trained on."""
        row = base_inputs(profile, device)[:RANGED]
        low, high = self._ranges
        return bool(((row < low) | (row > high)).any())

    def curve(self, profile: JobProfile, device: DeviceSpec) -> CapCurve:
        """How the job slows down under a cap."""
        inputs, base = base_inputs(profile, device), self.base
        return CapCurve(
            demand=base.active * float(base.load(inputs)),
            share=float(base.share_of(inputs)),
            duty=float(base.duty(inputs)),
            sharpness=base.clock_sharpness,
        )

    def slowdown(self, profile: JobProfile, device: DeviceSpec, power_limit_w: float | None) -> float:
        """Factor on kernel time under a software cap, relative to the default limit; at least 1."""
        if power_limit_w is None or power_limit_w >= device.tdp_w:
            return 1.0
        curve = self.curve(profile, device)
        return max(1.0, float(curve.kernel_slowdown(headroom(device, power_limit_w))))

    def anchored(
        self,
        profile: JobProfile,
        device: DeviceSpec,
        readings: Sequence[Reading],
        power_limit_w: float | None,
    ) -> tuple[float, float]:
        """(seconds, watts) under a cap, from readings of the same job at other caps.

        The curve of the job is moved to the readings, and what it leaves there is carried to near caps.
        """
        points = [CapReading(headroom(device, r.power_limit_w), r.time_s, r.power_w) for r in readings]
        room = headroom(device, power_limit_w)
        curve, base = fit_curve(self.curve(profile, device), points)
        rooms = np.array([point.room for point in points])
        left = np.log([point.time_s for point in points]) - base - np.log(curve.stretch(rooms))
        time_s = exp(base + log(float(curve.stretch(room))) + carried(room, points, left))
        return time_s, self._anchored_watts(profile, device, readings, points, power_limit_w)

    def _anchored_watts(
        self,
        profile: JobProfile,
        device: DeviceSpec,
        readings: Sequence[Reading],
        points: Sequence[CapReading],
        power_limit_w: float | None,
    ) -> float:
        measured = np.log([reading.power_w for reading in readings])
        demands = self.demand(profile, device) * np.exp(_SHIFTS)
        table = np.log(
            [[self.watts(device, r.power_limit_w, demand, 0.0).value for r in readings] for demand in demands]
        )
        loss = np.square(measured - table).sum(axis=1) + _RESISTANCE * np.square(_SHIFTS / _SHIFT_SCALE)
        best = int(np.argmin(loss))
        value = self.watts(device, power_limit_w, float(demands[best]), 0.0).value
        return value * exp(carried(headroom(device, power_limit_w), points, measured - table[best]))


_ALIKE = 0.5
_SHIFTS = np.linspace(-1.2, 1.2, 97)
_SHIFT_SCALE, _RESISTANCE = 0.3, 5e-4
