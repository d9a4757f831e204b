"""Training of the memory model: trees on the share of the workspace potential that a job was seen to use.

One row per (model, batch); the table comes from `predictor.models.corpus.memory_features`. Rows weigh by
potential over measurement, so that the loss is the absolute relative error of the whole; it is absolute
because an autotuner's choice is now and then far off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import COVERAGE, conformal_quantile
from predictor.models.device_identity import device_numbers
from predictor.models.memory.peak import BOOSTER, FEATURES, MemoryModel

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]

ROUNDS = 150
PARAMETERS: dict[str, object] = {
    "objective": "reg:absoluteerror",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.6,
    "min_child_weight": 5.0,
    "lambda": 4.0,
    "max_bin": 64,
    "seed": 7,
    # One thread: sums run in one order, equal rows give equal trees.
    "nthread": 1,
}
FOLDS = 8
# No training row has a second device, another vendor or no backward pass: the factor by which such rows'
# spread is wider than that of unseen families is a choice, not a measurement.
_NEW_DEVICE_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Training table as arrays.

    Attributes:
        features: (n, len(FEATURES)).
        reserved_bytes: (n,) what the allocator holds without workspace.
        potential_bytes: (n,) what workspace could add.
        measured_bytes: (n,) device peak as measured.
        group: (n,) model family.
        device: (n,) catalogue id.
    """

    features: FloatArray
    reserved_bytes: FloatArray
    potential_bytes: FloatArray
    measured_bytes: FloatArray
    group: NDArray[np.str_]
    device: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.reserved_bytes)

    def take(self, keep: NDArray[np.bool_]) -> MemoryRows:
        """The rows where `keep` is True."""
        return MemoryRows(
            self.features[keep],
            self.reserved_bytes[keep],
            self.potential_bytes[keep],
            self.measured_bytes[keep],
            self.group[keep],
            self.device[keep],
        )


def memory_rows(table: pl.DataFrame, *, autotuner_peaks: bool = False) -> MemoryRows:
    """The table of `predictor.models.corpus.memory_features` as arrays, in its order.

    Args:
        table: as built.
        autotuner_peaks: keep rows that caught an autotuner's trial; they are no training rows.

    Raises InvalidData on a table of other columns.
    """
    missing = [name for name in (*FEATURES, *_COLUMNS) if name not in table.columns]
    if missing or not table.height:
        raise InvalidData(
            f"memory features: {table.height} rows, columns missing: {', '.join(missing) or 'none'}; "
            "run `perfcast corpus build` again"
        )
    if not autotuner_peaks:
        table = table.filter(~table["autotuner_peak"])
    return MemoryRows(
        table.select(FEATURES).to_numpy().astype(np.float64),
        table["reserved_bytes"].to_numpy().astype(np.float64),
        table["potential_bytes"].to_numpy().astype(np.float64),
        table["measured_bytes"].to_numpy().astype(np.float64),
        table["model_group"].to_numpy().astype(np.str_),
        table["device"].to_numpy().astype(np.str_),
    )


_COLUMNS = ("reserved_bytes", "potential_bytes", "measured_bytes", "model_group", "device", "autotuner_peak")


def train_memory(rows: MemoryRows, *, calibrate: bool = True) -> TrainedModel:
    """Trains, and calibrates on families held out of training. Same rows, same bytes.

    `calibrate=False` skips the held-out trainings; the spreads are then no spreads.
    """
    trained = _fit(rows)
    if not calibrate:
        return trained
    residuals = np.concatenate(
        [
            log_errors(MemoryModel.from_trained(_fit(rows.take(~held))), rows.take(held))
            for held in folds(rows)
        ]
    )
    spread = conformal_quantile(residuals, COVERAGE)
    params = {
        **trained.params,
        "log_spread": {"known_device": spread, "new_device": spread * _NEW_DEVICE_FACTOR},
        "held_out_mean_error": float(np.abs(np.expm1(-residuals)).mean()),
    }
    return TrainedModel(trained.boosters, params)


def log_errors(model: MemoryModel, rows: MemoryRows) -> FloatArray:
    """(n,) log(measured / predicted) of the device peak."""
    errors: FloatArray = np.log(
        rows.measured_bytes / model.device_peaks(rows.features, rows.reserved_bytes, rows.potential_bytes)
    )
    return errors


def folds(rows: MemoryRows) -> Iterator[NDArray[np.bool_]]:
    """Masks of held-out rows: FOLDS sets of whole families."""
    return group_folds(rows.group, FOLDS)


def fit_context(rows: MemoryRows) -> float:
    """Runtime context in bytes: the median of what the smallest jobs hold beyond the allocator's own figure.

    In the tenth of the rows with the least else, workspace is a few MiB.
    """
    small = rows.reserved_bytes <= np.quantile(rows.reserved_bytes, 0.1)
    return float(np.median(rows.measured_bytes[small] - rows.reserved_bytes[small]))


def group_folds(group: NDArray[np.str_], folds: int) -> Iterator[NDArray[np.bool_]]:
    """Masks of held-out rows; whole groups, the largest first into the emptiest fold."""
    names, counts = np.unique(group, return_counts=True)
    load = [0] * min(folds, len(names))
    fold_of: dict[str, int] = {}
    for i in np.argsort(-counts, kind="stable"):
        target = load.index(min(load))
        fold_of[str(names[i])] = target
        load[target] += int(counts[i])
    assigned = np.array([fold_of[str(name)] for name in group])
    for fold in range(len(load)):
        yield assigned == fold


def _fit(rows: MemoryRows) -> TrainedModel:
    import xgboost

    context = fit_context(rows)
    target = (rows.measured_bytes - context - rows.reserved_bytes) / rows.potential_bytes
    weight = rows.potential_bytes / rows.measured_bytes
    matrix = xgboost.DMatrix(
        rows.features.astype(np.float32), label=np.clip(target, -0.5, 2.5), weight=weight / weight.mean()
    )
    booster = xgboost.train(PARAMETERS, matrix, num_boost_round=ROUNDS)
    return TrainedModel(
        boosters={BOOSTER: bytes(booster.save_raw("ubj"))},
        params={
            "context_bytes": context,
            "feature_low": [float(x) for x in rows.features.min(axis=0)],
            "feature_high": [float(x) for x in rows.features.max(axis=0)],
            "devices": [device_numbers(find_device(name)) for name in sorted(set(rows.device.tolist()))],
            "log_spread": {"known_device": 1.0, "new_device": 1.0},
            "features": list(FEATURES),
            "row_count": len(rows),
            "group_count": len(set(rows.group.tolist())),
        },
    )
