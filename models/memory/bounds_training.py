"""Training of the chance that a job runs: trees on log(what it needs / reserved) from censored jobs.

A job that ran on a card says that its peak is at most the card's capacity, one that ran out of memory that it
is above it. Accelerated failure time (Barnwal, Cho & Hocking 2022) fits both as censored values of a ratio.
To call a job fitting that fails costs more than the opposite: a job is judged with a margin, which networks
held out of the training rows choose so that at most CALLED_FITS of the jobs that failed are called fitting.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import usable_bytes
from predictor.models.bundle import Json, TrainedModel
from predictor.models.corpus.memory_brackets import DEVICE, TABLE
from predictor.models.memory.bounds import bound_rows_of, chance_of_room
from predictor.models.memory.peak import FEATURES
from predictor.models.memory.training import group_folds
from predictor.releases import release_number

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

ROUNDS, FOLDS = 200, 8
CALLED_FITS = 0.02
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
_MEMBERS: tuple[dict[str, object], ...] = tuple(
    {"aft_loss_distribution": "normal" if seed < 4 else "extreme", "seed": seed} for seed in range(6)
)


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Jobs with one bound each.

    Attributes:
        features: (n, k). log_room: (n,) log(capacity / `MemoryWork.reserved_bytes`). ran: (n,).
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


def bound_rows(brackets: pl.DataFrame) -> BoundRows:
    """The bracket table (predictor.models.corpus.memory_brackets) as censored rows.

    Raises InvalidData for a table that an older version built.
    """
    if "needed_bytes" not in brackets.columns:
        raise InvalidData(
            f"{TABLE}: an older version built it; delete {TABLE}.parquet in the corpus, it is built anew"
        )
    reserved = brackets["reserved_bytes"].to_numpy()
    features = bound_rows_of(
        brackets.select(FEATURES).to_numpy(),
        brackets["potential_bytes"].to_numpy(),
        reserved,
        np.array([release_number(text) for text in brackets["torch"]]),
    )
    room = np.log(usable_bytes(find_device(DEVICE)) / reserved)
    return BoundRows(features, room, brackets["ran"].to_numpy(), brackets["model"].to_numpy().astype(np.str_))


def train_bounds(rows: BoundRows, capacity_bytes: float) -> TrainedModel:
    """The model of a bundle, with the margin that networks held out of `rows` choose.

    `capacity_bytes`: of the card that they ran on.
    """
    boosters = {f"bound_{i}": bytes(booster.save_raw("ubj")) for i, booster in enumerate(_fit(rows))}
    params: dict[str, Json] = {
        "memory_features": list(FEATURES),
        "margin": _margin(rows, FOLDS),
        "scale": _SCALE,
        "capacity_bytes": capacity_bytes,
        "feature_low": [float(x) for x in rows.features.min(axis=0)],
        "feature_high": [float(x) for x in rows.features.max(axis=0)],
    }
    return TrainedModel(boosters=boosters, params=params)


def held_out_probabilities(rows: BoundRows, inner_folds: int = FOLDS) -> FloatArray:
    """(n,) probability that each job runs, by models and margins that never saw its network."""
    found = np.zeros(len(rows))
    for held in group_folds(rows.group, FOLDS):
        known = rows.take(~held)
        distance = _room(_fit(known), rows.take(held)) - _margin(known, inner_folds)
        found[held] = [chance_of_room(value, _SCALE) for value in distance.tolist()]
    return found


def _margin(rows: BoundRows, folds: int) -> float:
    """Room over the predicted ratio that all but CALLED_FITS of the failed jobs lack."""
    room = np.zeros(len(rows))
    for held in group_folds(rows.group, folds):
        room[held] = _room(_fit(rows.take(~held)), rows.take(held))
    failed = room[~rows.ran]
    # "At most" is not kept by a value between two jobs.
    return float(np.quantile(failed, 1 - CALLED_FITS, method="higher")) if failed.size else 0.0


def _fit(rows: BoundRows) -> list[Any]:
    """The members' boosters."""
    import xgboost

    matrix = xgboost.DMatrix(rows.features.astype(np.float32))
    room = np.exp(rows.log_room)
    matrix.set_float_info("label_lower_bound", np.where(rows.ran, 0.0, room))
    matrix.set_float_info("label_upper_bound", np.where(rows.ran, room, inf))
    return [xgboost.train({**_PARAMETERS, **member}, matrix, num_boost_round=ROUNDS) for member in _MEMBERS]


def _room(boosters: list[Any], rows: BoundRows) -> FloatArray:
    """(n,) log of the capacity over the peak that the members predict on average."""
    import xgboost

    matrix = xgboost.DMatrix(rows.features.astype(np.float32))
    ratios = np.log([booster.predict(matrix).astype(np.float64) for booster in boosters])
    room: FloatArray = rows.log_room - ratios.mean(axis=0)
    return room
