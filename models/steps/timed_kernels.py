"""Kernels that keep their times inside an iteration: those that were timed without a host on such a device.

A whole iteration cannot tell products of the forward pass from those of gradients, and of layers that carry a
state no iteration was timed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import OpWork
from predictor.features.tables.kernel_rows import KernelModel, kernel_model
from predictor.hardware.spec import DeviceSpec

_KEPT = frozenset({KernelModel.PRODUCT, KernelModel.EXPERTS, KernelModel.STATE})


def timed_kernels(
    works: Sequence[OpWork], unmeasured: NDArray[np.bool_], device: DeviceSpec
) -> NDArray[np.bool_]:
    """(n,) which works keep the op level's time; `unmeasured` (n,): no such kernel was measured there."""
    kept = (kernel_model(work, device) in _KEPT for work in works)
    return np.fromiter(kept, dtype=np.bool_, count=len(works)) & ~unmeasured
