"""Whether a training job runs within a capacity, as jobs that ran or ran out of memory teach it.

A card that is full gets unused segments and roomy workspaces back before a request fails: jobs run whose peak
with room to spare is above the capacity. Trees say how much of what the allocator keeps with room to spare
(`MemoryWork.reserved_bytes`) a job cannot do without; a margin keeps the share of failing jobs that are
called fitting at what predictor.models.memory.bounds_training allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import erf, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel

FloatArray = NDArray[np.float64]

MODEL_NAME = "memory_bounds"
_ALIKE = 0.05
"""Cards whose capacities differ by less are one size."""


def bound_rows_of(
    memory: FloatArray, potential_bytes: FloatArray, reserved_bytes: FloatArray, framework: FloatArray
) -> FloatArray:
    """(n, k) rows: `memory` in the order of predictor.models.memory.peak.FEATURES and two columns more.

    Args:
        potential_bytes: (n,) `workspace_potential_bytes`. reserved_bytes: (n,) `MemoryWork.reserved_bytes`.
        framework: (n,) version of the framework as major + minor / 100.
    """
    return np.column_stack([memory, np.log(potential_bytes / reserved_bytes), framework])


def chance_of_room(room: float, scale: float) -> float:
    """Chance that a job runs that has exp(`room`) times what it is taken to need, margin included."""
    return 0.5 * (1.0 + erf(room / (scale * sqrt(2.0))))


class BoundsModel:
    """Chance that a job runs within a capacity."""

    def __init__(self, params: Mapping[str, Any], boosters: Sequence[Any]) -> None:
        self._boosters = boosters
        self._margin, self._scale = float(params["margin"]), float(params["scale"])
        self._capacity_bytes = float(params["capacity_bytes"])
        self._low = np.array(params["feature_low"], dtype=np.float64)
        self._high = np.array(params["feature_high"], dtype=np.float64)

    @classmethod
    def from_bundle(cls, bundle: Bundle, features: Sequence[str]) -> BoundsModel | None:
        """None for a bundle without the model. Raises InvalidBundle: trained on other `features`."""
        params = bundle.matching(MODEL_NAME, memory_features=tuple(features))
        if params is None:
            return None
        return cls(params, [bundle.booster(MODEL_NAME, name) for name in bundle.boosters(MODEL_NAME)])

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> BoundsModel:
        """A model straight from training, without a bundle on disk."""
        boosters = trained.boosters
        return cls(trained.params, [load_booster(boosters[name]) for name in sorted(boosters)])

    def knows(self, capacity_bytes: float) -> bool:
        """Whether a card is as large as the one whose jobs were seen: the trees know how large those were."""
        return abs(log(max(capacity_bytes, 1.0) / self._capacity_bytes)) < _ALIKE

    def chance(self, row: FloatArray, reserved_bytes: float, capacity_bytes: float) -> float | None:
        """Chance that a job runs within `capacity_bytes`; None for jobs unlike those of training.

        Args:
            row: (k,) of `bound_rows_of`. Versions newer or older than those of training count as the nearest.
        """
        row = np.append(row[:-1], np.clip(row[-1], self._low[-1], self._high[-1]))
        if ((row < self._low) | (row > self._high)).any():
            return None
        asked = row[None, :].astype(np.float32)
        found = [float(booster.inplace_predict(asked)[0]) for booster in self._boosters]
        room = log(capacity_bytes / reserved_bytes) - float(np.mean(np.log(found)))
        return chance_of_room(room - self._margin, self._scale)
