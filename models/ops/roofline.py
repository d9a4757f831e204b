"""Devices of kinds whose operators nobody measured here: CPUs, phones, TPUs and other accelerators.

Corrections learned on GPUs would only look learned there. Instead:

    time = max(slow_compute * compute floor, slow_memory * memory floor) + kernels * call

The factors are a least-squares fit of whole-model timings, 220 models of the public timm tables
(core-i9-10940x, FP32, batch 1, torch.compile): products 3.05, traffic 1.56, 35 µs a kernel; in sample its
errors span x0.79 to x1.46 (5th to 95th percentile). Other kinds of device borrow the first two factors.
"""

from __future__ import annotations

from math import log

import numpy as np

from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.models.ops.floor import Floors

_SLOW_COMPUTE, _SLOW_MEMORY = 3.05, 1.56
_HOST_CALL_S = 35e-6

# Log half-widths. One CPU was fitted and scored on its own rows, so another one gets about twice that span;
# for accelerators nothing was fitted at all. Choices, not measurements.
_HOST_LOG_SPREAD, _ACCELERATOR_LOG_SPREAD = log(2.0), log(3.0)


def runs_gpu_kernels(device: DeviceSpec) -> bool:
    """Whether corrections learned on GPUs say something about the device: GPUs and GPU modules."""
    return device.kind in (DeviceKind.GPU, DeviceKind.EDGE)


def roofline_times(floor: Floors, device: DeviceSpec) -> tuple[FloatArray, FloatArray]:
    """(n,) times and (n,) log half-widths of works with these floors; views stay free."""
    host = device.kind.is_host
    work_s = np.maximum(_SLOW_COMPUTE * floor.compute_s, _SLOW_MEMORY * floor.memory_s)
    call_s = np.where(floor.launch_s > 0, _HOST_CALL_S, 0.0) if host else floor.launch_s
    spread = _HOST_LOG_SPREAD if host else _ACCELERATOR_LOG_SPREAD
    return work_s + call_s, np.full(len(work_s), spread)
