"""Where a peak lies between bounds: trees on log(peak / what the allocator holds) from censored jobs.

A job that ran on a card says that its peak is at most the card's capacity, one that ran out of memory that it
is above it. Accelerated failure time (Barnwal, Cho & Hocking 2022) fits both as censored values of a ratio.
Members of an ensemble differ in depth and in the law of the error; a job is judged by the ratio that lies two
standard deviations of their disagreement above their mean: to call a job that fails fitting costs more than
the opposite.
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
_DEVIATIONS = 2.0
_SCALE = 0.1
_PARAMETERS: dict[str, object] = {
    "objective": "survival:aft",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.6,
    "min_child_weight": 3.0,
    "lambda": 4.0,
    "max_bin": 64,
    "base_score": 1.1,
    "aft_loss_distribution": "normal",
    "aft_loss_distribution_scale": _SCALE,
    "seed": 7,
    "nthread": 1,
}
_MEMBERS: tuple[dict[str, object], ...] = (
    {},
    {"max_depth": 3, "eta": 0.08},
    {"max_depth": 6, "colsample_bytree": 0.4, "aft_loss_distribution_scale": 0.12},
    {"aft_loss_distribution": "logistic", "aft_loss_distribution_scale": 0.06},
    {"aft_loss_distribution": "extreme"},
)


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
        found[held] = _probabilities(_fit(rows.take(~held)), rows.take(held))
    return found


def _fit(rows: BoundRows) -> list[Any]:
    """The members' boosters."""
    import xgboost

    matrix = xgboost.DMatrix(rows.features.astype(np.float32))
    room = np.exp(rows.log_room)
    matrix.set_float_info("label_lower_bound", np.where(rows.ran, 0.0, room))
    matrix.set_float_info("label_upper_bound", np.where(rows.ran, room, inf))
    return [xgboost.train({**_PARAMETERS, **member}, matrix, num_boost_round=ROUNDS) for member in _MEMBERS]


def _probabilities(boosters: list[Any], rows: BoundRows) -> FloatArray:
    import xgboost

    matrix = xgboost.DMatrix(rows.features.astype(np.float32))
    ratios = np.log([booster.predict(matrix).astype(np.float64) for booster in boosters])
    judged = ratios.mean(axis=0) + _DEVIATIONS * ratios.std(axis=0)
    distance = (rows.log_room - judged) / (_SCALE * sqrt(2.0))
    return np.array([0.5 * (1.0 + erf(value)) for value in distance.tolist()])
