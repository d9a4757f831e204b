"""Split-conformal half-widths on |log(measured / predicted)|, by op family and situation.

A model fitted on some groups is scored on groups it has not seen; the (n + 1) * coverage / n quantile of
those absolute log residuals covers new draws of the same situation with the wanted probability (Vovk; Lei
et al. 2018). Residuals must come from the situation that is calibrated: held-out shapes for a known device,
held-out devices for a new one. The mean over groups makes every group count alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

COVERAGE = 0.9


@dataclass(frozen=True, slots=True)
class Spread:
    """Log half-widths of one op family: on a device that training saw, and on one that it did not."""

    known: float
    new: float

    def to_json(self) -> dict[str, float]:
        """Plain numbers for a bundle."""
        return {"known": self.known, "new": self.new}

    @classmethod
    def from_json(cls, data: Mapping[str, float]) -> Spread:
        """Inverse of `to_json`."""
        return cls(float(data["known"]), float(data["new"]))


def conformal_quantile(residuals: ArrayLike, coverage: float = COVERAGE) -> float:
    """The conformal half-width of absolute residuals: their ceil((n + 1) * coverage)-th smallest.

    With too few residuals for the coverage, the largest stands in. Raises ValueError on none.
    """
    ordered = np.sort(np.abs(np.asarray(residuals, dtype=np.float64)))
    if not ordered.size:
        raise ValueError("no residuals to calibrate on")
    rank = int(np.ceil((ordered.size + 1) * coverage))
    return float(ordered[min(rank, ordered.size) - 1])


def grouped_quantile(
    residuals: NDArray[np.float64], groups: NDArray[np.str_], coverage: float = COVERAGE
) -> float:
    """Conformal half-width with every group weighted alike, however many rows it has.

    Args:
        residuals: (n,) log residuals of rows whose group was held out.
        groups: (n,) their groups.
        coverage: wanted probability.
    """
    names, counts = np.unique(groups, return_counts=True)
    if not names.size:
        raise ValueError("no residuals to calibrate on")
    weight = 1.0 / counts[np.searchsorted(names, groups)] / names.size
    magnitude = np.abs(residuals)
    order = np.argsort(magnitude, kind="stable")
    # A new group may sit beyond all seen ones: one more unit of weight stands at infinity, split like a
    # row's.
    level = min(1.0, coverage * (1.0 + 1.0 / residuals.size))
    position = int(np.searchsorted(np.cumsum(weight[order]), level - 1e-12))
    return float(magnitude[order][min(position, residuals.size - 1)])
