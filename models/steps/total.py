"""From op times to the time of an iteration, and back: the share by which each op moves it.

    device = sum of op times + rest,   iteration = (device^p + host^p)^(1/p)

a smooth maximum of the device's work and the host that launches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.tables.tiles import FloatArray
from predictor.types import Mode, Runtime

SMOOTHNESS = 6.0
"""p: where both take equally long, an iteration takes 2^(1/p), 1.12 times as long."""
REST_FACTOR = 1.3
"""Time over floor of the ops that are too small to be listed."""


EAGER_LAUNCH_S: Mapping[Mode, float] = {Mode.INFER: 6e-6, Mode.TRAIN: 6e-6}
COMPILED_LAUNCH_S = 2e-6
"""Host time per kernel launch: one by one from Python, or by an engine's or a compiler's code."""


def launch_s(runtime: Runtime, mode: Mode) -> float:
    """Host time per kernel launch."""
    return EAGER_LAUNCH_S[mode] if runtime is Runtime.EAGER else COMPILED_LAUNCH_S


def iteration_s(device_s: FloatArray, host_s: FloatArray) -> FloatArray:
    """Smooth maximum, elementwise; 0 where both are 0."""
    larger = np.maximum(np.maximum(device_s, host_s), 1e-12)
    return np.asarray(
        larger * ((device_s / larger) ** SMOOTHNESS + (host_s / larger) ** SMOOTHNESS) ** (1 / SMOOTHNESS)
    )


@dataclass(frozen=True, slots=True)
class Total:
    """r iterations of n ops: `row` (n,) names each op's.

    `rest_s`, `host_s` and what is waited for beside them, `fixed_s`, are (r,).
    """

    row: NDArray[np.intp]
    rest_s: FloatArray
    host_s: FloatArray
    fixed_s: FloatArray | float = 0.0

    def log_total(self, op_s: FloatArray) -> FloatArray:
        """(r,) log of the iterations' times."""
        return np.log(iteration_s(self._device_s(op_s), self.host_s) + self.fixed_s)

    def shares(self, op_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(n,) derivative of the log iteration time by each log op time, and (r,) that log time."""
        device_s = self._device_s(op_s)
        busy_s = iteration_s(device_s, self.host_s)
        total_s = busy_s + self.fixed_s
        pull = (device_s / busy_s) ** SMOOTHNESS / device_s * busy_s / total_s
        return op_s * pull[self.row], np.log(total_s)

    def host_shares(self, op_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(r,) derivatives of the log iteration times by the log of `host_s`, and by seconds of `fixed_s`."""
        busy_s = iteration_s(self._device_s(op_s), self.host_s)
        total_s = busy_s + self.fixed_s
        return (self.host_s / busy_s) ** SMOOTHNESS * busy_s / total_s, 1.0 / total_s

    def added(self, host_log: FloatArray, fixed_s: FloatArray) -> Total:
        """With another host (log factor, (r,)) and seconds (r,) beside."""
        return Total(self.row, self.rest_s, self.host_s * np.exp(host_log), self.fixed_s + fixed_s)

    def _device_s(self, op_s: FloatArray) -> FloatArray:
        summed = np.bincount(self.row, weights=op_s, minlength=len(self.rest_s))
        return np.asarray(summed + REST_FACTOR * self.rest_s, dtype=np.float64)
