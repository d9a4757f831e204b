"""What a power cap or a lower clock does to a running kernel.

    dynamic power at clock share c   g(c) = c * v(c)^2      v: supply voltage over that at full clock
    v(c) = floor below the knee, rising linearly to 1 at full clock
    slowdown = share / c + 1 - share      share: the part of a kernel that follows the clock

A cap leaves `room` for dynamic power; a kernel that would draw `demand` runs at the clock whose g is
room / demand. Voltage floor 0.75 and knee 0.7 describe how three cards of three generations slow down (Zeus:
V100 0.6 %, P100 0.5 %, Quadro RTX 6000 1.5 % mean error in time with two free numbers per job).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

VOLTAGE_FLOOR, KNEE = 0.75, 0.7
_LEAST_CLOCK = 0.1
_CLOCKS = np.linspace(_LEAST_CLOCK, 1.0, 361)


def dynamic_power(clock: ArrayLike) -> FloatArray:
    """g: dynamic power over that at full clock, for clock shares in (0, 1]."""
    share = np.asarray(clock, dtype=np.float64)
    rise = (1.0 - VOLTAGE_FLOOR) / (1.0 - KNEE)
    voltage = np.where(share < KNEE, VOLTAGE_FLOOR, VOLTAGE_FLOOR + rise * (share - KNEE))
    return np.asarray(share * np.square(voltage))


_POWERS = dynamic_power(_CLOCKS)


def clock_at(power: ArrayLike) -> FloatArray:
    """The clock share whose dynamic power is `power`; between 0.1 and 1."""
    return np.asarray(np.interp(np.asarray(power, dtype=np.float64), _POWERS, _CLOCKS), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class CapCurve:
    """How one job slows down under a cap.

    Attributes:
        demand: dynamic power while kernels run at full clock, over (default limit - idle).
        share: the part of kernel time that follows the clock, in [0, 1].
        duty: the part of the iteration in which kernels run; the rest keeps its duration.
        sharpness: how sharply the limit clips; power swings around its mean, so it binds early.
    """

    demand: float
    share: float
    duty: float
    sharpness: float

    def clock(self, room: ArrayLike) -> FloatArray:
        """Clock share under a limit that leaves `room`, over (default limit - idle), for dynamic power."""
        ratio = self.demand / np.asarray(room, dtype=np.float64)
        return clock_at((1.0 + ratio**self.sharpness) ** (-1.0 / self.sharpness))

    def stretch(self, room: ArrayLike) -> FloatArray:
        """Iteration time over that at full clock."""
        return self.duty * kernel_stretch(self.clock(room), self.share) + 1.0 - self.duty

    def kernel_slowdown(self, room: ArrayLike) -> FloatArray:
        """Kernel time over that at the default limit, which may bind as well."""
        free = kernel_stretch(self.clock(1.0), self.share)
        return np.asarray(kernel_stretch(self.clock(room), self.share) / free)


def kernel_stretch(clock: ArrayLike, share: float) -> FloatArray:
    """Kernel time over that at full clock."""
    return np.asarray(share / np.asarray(clock, dtype=np.float64) + 1.0 - share)


@dataclass(frozen=True, slots=True)
class CapReading:
    """A measured run of a job: headroom under its cap, seconds (of anything fixed), average watts."""

    room: float
    time_s: float
    power_w: float


# How far a job may move from what the model says of it before the fit resists, in logs and in shares; and
# the weight of that against squared log errors of time.
_LOGS, _SHARES, _RESISTANCE = 0.4, 0.3, 5e-4
_DEMANDS = np.linspace(-0.9, 0.9, 37)
_PARTS = np.linspace(0.05, 1.0, 20)
# Log distance of caps over which what a fit leaves is alike, and the weight of "nothing".
_REACH, _NOTHING = 0.12, 0.3


def fit_curve(curve: CapCurve, readings: Sequence[CapReading]) -> tuple[CapCurve, float]:
    """The curve moved to readings of the same job, and log seconds of an iteration at full clock."""
    room = np.array([reading.room for reading in readings])
    logs = np.log([reading.time_s for reading in readings])
    ratio = (curve.demand * np.exp(_DEMANDS))[:, None] / room
    clock = clock_at((1.0 + ratio**curve.sharpness) ** (-1.0 / curve.sharpness))[:, None, :]
    kernel = _PARTS[None, :, None] / clock + 1.0 - _PARTS[None, :, None]
    left = logs - np.log(curve.duty * kernel + 1.0 - curve.duty)
    base = left.mean(axis=2)
    loss = np.square(left - base[:, :, None]).sum(axis=2)
    loss += _RESISTANCE * np.square(_DEMANDS / _LOGS)[:, None]
    loss += _RESISTANCE * np.square((_PARTS - curve.share) / _SHARES)[None, :]
    i, j = np.unravel_index(int(np.argmin(loss)), loss.shape)
    found = CapCurve(curve.demand * float(np.exp(_DEMANDS[i])), float(_PARTS[j]), curve.duty, curve.sharpness)
    return found, float(base[i, j])


def carried(room: float, readings: Sequence[CapReading], left: FloatArray) -> float:
    """What a fit left (n,) at the readings, carried to another headroom: near caps count most."""
    distance = np.abs(np.log([reading.room / room for reading in readings]))
    weight = np.exp(-distance / _REACH)
    return float(weight @ left) / (float(weight.sum()) + _NOTHING)


def is_between(limit_w: float, read_w: Sequence[float]) -> bool:
    """Whether readings at limits `read_w` enclose a limit; beyond them a fit says much less."""
    return min(read_w, default=limit_w + 1.0) <= limit_w <= max(read_w, default=limit_w - 1.0)
