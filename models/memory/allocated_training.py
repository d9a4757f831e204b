"""Training of the correction of allocated memory: trees on log(measured / floor) of jobs with exact plans.

Rows come from `predictor.models.corpus.megatron_memory` and `finetune_memory`. Absolute error, since a
software version now and then moves a whole case. Spreads come from held-out configurations and from held-out
kinds of model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import COVERAGE, conformal_quantile
from predictor.models.corpus.finetune import LITGPT
from predictor.models.memory.allocated import ALLOCATED_FEATURES, BOOSTER, FACTOR_RANGE, AllocatedModel
from predictor.models.memory.training import group_folds

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]

ROUNDS = 200
PARAMETERS: dict[str, object] = {
    "objective": "reg:absoluteerror",
    "tree_method": "hist",
    "max_depth": 5,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "min_child_weight": 3.0,
    "lambda": 2.0,
    "max_bin": 128,
    "seed": 7,
    "nthread": 1,
}
FOLDS = 16


@dataclass(frozen=True, slots=True)
class AllocatedRows:
    """Training table as arrays.

    Attributes:
        features: (n, len(ALLOCATED_FEATURES)), nan for unknown. floor_bytes, measured_bytes: (n,).
        group: (n,) what decides a job, neither device nor software. kind: (n,) kind of model. case: (n,).
    """

    features: FloatArray
    floor_bytes: FloatArray
    measured_bytes: FloatArray
    group: NDArray[np.str_]
    kind: NDArray[np.str_]
    case: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.floor_bytes)

    def take(self, keep: NDArray[np.bool_]) -> AllocatedRows:
        """The rows where `keep` is True."""
        return AllocatedRows(
            self.features[keep],
            self.floor_bytes[keep],
            self.measured_bytes[keep],
            self.group[keep],
            self.kind[keep],
            self.case[keep],
        )


_COLUMNS = ("floor_bytes", "measured_bytes", "group", "kind", "case")


def allocated_rows(table: pl.DataFrame) -> AllocatedRows:
    """The table of `predictor.models.corpus.megatron_memory` as arrays. Raises InvalidData."""
    missing = [name for name in (*ALLOCATED_FEATURES, *_COLUMNS) if name not in table.columns]
    if missing or not table.height:
        raise InvalidData(
            f"allocated memory: {table.height} rows, columns missing: {', '.join(missing) or 'none'}; "
            "run `perfcast corpus build` again"
        )
    return AllocatedRows(
        table.select(ALLOCATED_FEATURES).to_numpy().astype(np.float64),
        table["floor_bytes"].to_numpy().astype(np.float64),
        table["measured_bytes"].to_numpy().astype(np.float64),
        *(table[name].to_numpy().astype(np.str_) for name in ("group", "kind", "case")),
    )


def finetune_rows(table: pl.DataFrame, context_bytes: float) -> AllocatedRows:
    """The measured rows of `predictor.models.corpus.finetune_memory` whose samples have a known length.

    That is all but torchtune's: what litgpt's tables leave out, its data set says. `context_bytes` is taken
    from what a device's monitor showed. Held out together: a network (`group`), or a tool (`kind`).
    """
    import polars as pl

    known = pl.col("has_length") | (pl.col("tool") == LITGPT)
    table = table.filter(~pl.col("oom") & pl.col("measured_bytes").is_not_null() & known)
    return measured_rows(table, context_bytes)


def measured_rows(table: pl.DataFrame, context_bytes: float) -> AllocatedRows:
    """As `finetune_rows`, of any measured rows of that table."""
    context = np.where(table["kind"].to_numpy() == "device", context_bytes, 0.0)
    return AllocatedRows(
        table.select(ALLOCATED_FEATURES).to_numpy().astype(np.float64),
        table["floor_bytes"].to_numpy().astype(np.float64),
        table["measured_bytes"].to_numpy().astype(np.float64) - context,
        *(table[name].to_numpy().astype(np.str_) for name in ("model", "tool", "row_id")),
    )


def joined_rows(*parts: AllocatedRows) -> AllocatedRows:
    """All rows of all parts, in that order."""
    return AllocatedRows(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.floor_bytes for part in parts]),
        np.concatenate([part.measured_bytes for part in parts]),
        np.concatenate([part.group for part in parts]),
        np.concatenate([part.kind for part in parts]),
        np.concatenate([part.case for part in parts]),
    )


def train_allocated(rows: AllocatedRows, *, calibrate: bool = True) -> TrainedModel:
    """Trains, and calibrates on configurations and kinds held out. Same rows, same bytes.

    `calibrate=False` skips the held-out trainings; the spreads are then no spreads.
    """
    trained = fit_allocated(rows)
    if not calibrate:
        return trained
    by_group = np.concatenate([held_out_errors(rows, held) for held in config_folds(rows)])
    by_kind = np.concatenate([held_out_errors(rows, rows.kind == kind) for kind in np.unique(rows.kind)])
    known, new = conformal_quantile(by_group, COVERAGE), conformal_quantile(by_kind, COVERAGE)
    spread = {"known_kind": known, "new_kind": max(known, new)}
    return TrainedModel(trained.boosters, {**trained.params, "log_spread": spread})


def config_folds(rows: AllocatedRows) -> Iterator[NDArray[np.bool_]]:
    """Masks of held-out rows: FOLDS sets of whole configurations."""
    return group_folds(rows.group, FOLDS)


def held_out_errors(rows: AllocatedRows, held: NDArray[np.bool_]) -> FloatArray:
    """(rows held,) log(measured / predicted) by a model that never saw them."""
    part = rows.take(held)
    factors = AllocatedModel.from_trained(fit_allocated(rows.take(~held))).factors(part.features)
    errors: FloatArray = np.log(part.measured_bytes / (factors * part.floor_bytes))
    return errors


def fit_allocated(rows: AllocatedRows) -> TrainedModel:
    """Trees on all rows; its spreads are placeholders of an untested model."""
    import xgboost

    low, high = (log(edge) for edge in FACTOR_RANGE)
    target = np.clip(np.log(rows.measured_bytes / rows.floor_bytes), low, high)
    booster = xgboost.train(
        PARAMETERS, xgboost.DMatrix(rows.features.astype(np.float32), label=target), num_boost_round=ROUNDS
    )
    return TrainedModel(
        boosters={BOOSTER: bytes(booster.save_raw("ubj"))},
        params={
            # A column that no row knows allows 0 alone.
            "feature_low": [float(x) for x in np.nan_to_num(np.fmin.reduce(rows.features, axis=0))],
            "feature_high": [float(x) for x in np.nan_to_num(np.fmax.reduce(rows.features, axis=0))],
            "log_spread": {"known_kind": 1.0, "new_kind": 1.0},
            "features": list(ALLOCATED_FEATURES),
            "row_count": len(rows),
            "group_count": len(set(rows.group.tolist())),
        },
    )
