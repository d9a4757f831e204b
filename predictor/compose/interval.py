"""From the spread of single ops to the interval of their sum.

Errors of one op family share their cause (a library's kernels, a device's sustained clock), so inside a
family they add up fully correlated; across families they are treated as independent. Half-widths are in log
space: `exp(q)` is the factor that covers `coverage` of the ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from predictor.types import Interval

FloatArray = NDArray[np.float64]


def sum_log_spread(
    time_s: FloatArray, log_spread: FloatArray, groups: Sequence[int] | NDArray[np.intp]
) -> float:
    """Log half-width of `sum(time_s)`.

    Args:
        time_s: (n,) predicted times.
        log_spread: (n,) log half-widths at the wanted coverage.
        groups: (n,) family index of each op.
    """
    total = float(time_s.sum())
    if total <= 0:
        return 0.0
    group_index = np.asarray(groups, dtype=np.intp)
    by_family = np.bincount(group_index, weights=time_s * log_spread)
    return float(np.sqrt(np.square(by_family / total).sum()))


def log_interval(value: float, log_half_width: float, coverage: float = 0.9) -> Interval:
    """`value` times and divided by `exp(log_half_width)`."""
    factor = float(np.exp(log_half_width))
    return Interval(value, value / factor, value * factor, coverage)
