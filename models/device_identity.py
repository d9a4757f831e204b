"""Whether a model has seen a device: by its numbers, never by its name; renaming changes no answer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.spec import DeviceSpec

# Two specifications that agree within a percent are one device.
_SAME = 0.01


def device_numbers(device: DeviceSpec) -> list[float]:
    """[FP32 FLOP/s, bytes/s, capacity in bytes, cores, default power limit in W]."""
    return [
        device.vector_flops_per_s,
        device.memory_bytes_per_s,
        device.memory_bytes,
        float(device.core_count),
        device.tdp_w,
    ]


def is_known(device: DeviceSpec, known: NDArray[np.float64]) -> bool:
    """True when one of the rows of `known`, (n, 5) `device_numbers`, is this device."""
    if not known.size:
        return False
    return bool((np.abs(known / device_numbers(device) - 1.0).max(axis=1) < _SAME).any())
