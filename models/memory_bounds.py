"""Where a peak lies between bounds: trees on log(peak / what the allocator holds) from censored jobs.

A job that ran on a card says that its peak is at most the card's capacity, one that ran out of memory that it
is above it. Accelerated failure time (Barnwal, Cho & Hocking 2022) fits both as censored values of a
log-normal ratio; the scale is chosen on networks held out of the training rows, never on scored ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.models.memory_training import group_folds

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

ROUNDS, FOLDS = 200, 8
SCALES = (0.06, 0.1, 0.15)
_INNER_FOLDS = 3
_PARAMETERS: dict[str, object] = {
    "objective": "survival:aft",
    "aft_loss_distribution": "normal",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "min_child_weight": 3.0,
    "lambda": 4.0,
    "max_bin": 64,
    "base_score": 1.1,
    "seed": 7,
    "nthread": 1,
}


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Jobs with one bound each.

    Attributes:
        features: (n, k). log_room: (n,) log(capacity / what the allocator holds). ran: (n,).
        group: (n,) network.
    """

    features: FloatArray
    log_room: FloatArray
    ran: BoolArray
    group: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.ran)

    def take(self, keep: BoolArray) -> BoundRows:
        """The rows where `keep` is True."""
        return BoundRows(self.features[keep], self.log_room[keep], self.ran[keep], self.group[keep])


def held_out_probabilities(rows: BoundRows) -> FloatArray:
    """(n,) probability that each job runs, by models that never saw its network."""
    found = np.zeros(len(rows))
    for held in group_folds(rows.group, FOLDS):
        known = rows.take(~held)
        scale = _scale(known)
        found[held] = _probabilities(_fit(known, scale), rows.take(held), scale)
    return found


def _scale(rows: BoundRows) -> float:
    """The scale under which networks held out of `rows` are most probable."""
    scores = dict.fromkeys(SCALES, 0.0)
    for held in group_folds(rows.group, _INNER_FOLDS):
        part, known = rows.take(held), rows.take(~held)
        for scale in SCALES:
            chance = _probabilities(_fit(known, scale), part, scale)
            right = np.clip(np.where(part.ran, chance, 1 - chance), 1e-6, 1.0)
            scores[scale] += float(np.log(right).sum())
    return max(SCALES, key=lambda scale: scores[scale])


def _fit(rows: BoundRows, scale: float) -> Any:
    import xgboost

    matrix = xgboost.DMatrix(rows.features.astype(np.float32))
    room = np.exp(rows.log_room)
    matrix.set_float_info("label_lower_bound", np.where(rows.ran, 0.0, room))
    matrix.set_float_info("label_upper_bound", np.where(rows.ran, room, inf))
    parameters = {**_PARAMETERS, "aft_loss_distribution_scale": scale}
    return xgboost.train(parameters, matrix, num_boost_round=ROUNDS)


def _probabilities(booster: Any, rows: BoundRows, scale: float) -> FloatArray:
    import xgboost

    ratio = booster.predict(xgboost.DMatrix(rows.features.astype(np.float32))).astype(np.float64)
    distance = (rows.log_room - np.log(ratio)) / (scale * sqrt(2.0))
    return np.array([0.5 * (1.0 + erf(value)) for value in distance.tolist()])
