"""Training of the memory correction: trees on log((measured - context) / reserved).

One row per (model, batch); the table comes from `predictor.models.corpus.memory_features`. Rows weigh by the
share of the measurement that is not context, so that the loss is the relative error of the whole.
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
from predictor.models.memory import BOOSTER, FEATURES, MemoryModel
from predictor.units import MIB

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]

ROUNDS = 300
PARAMETERS: dict[str, object] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 4,
    "eta": 0.06,
    "subsample": 0.7,
    "colsample_bytree": 0.6,
    "min_child_weight": 5.0,
    "lambda": 4.0,
    "max_bin": 128,
    "seed": 7,
    # One thread: sums run in one order, equal rows give equal trees.
    "nthread": 1,
}
FOLDS = 8
# The context of the training rows' stack: with it, models of a few MiB at batch 8 come out right.
_CONTEXT_CANDIDATES_MIB = tuple(range(1600, 1801, 4))
# No training row has a second device, another vendor or no backward pass: the factor by which such rows'
# spread is wider than that of unseen families is a choice, not a measurement.
_NEW_DEVICE_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class MemoryRows:
    """Training table as arrays.

    Attributes:
        features: (n, len(FEATURES)).
        base_bytes: (n,) reserved bytes with workspace.
        measured_bytes: (n,) device peak as measured.
        group: (n,) model family.
        device: (n,) catalogue id.
    """

    features: FloatArray
    base_bytes: FloatArray
    measured_bytes: FloatArray
    group: NDArray[np.str_]
    device: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.base_bytes)

    def take(self, keep: NDArray[np.bool_]) -> MemoryRows:
        """The rows where `keep` is True."""
        return MemoryRows(
            self.features[keep],
            self.base_bytes[keep],
            self.measured_bytes[keep],
            self.group[keep],
            self.device[keep],
        )


def memory_rows(table: pl.DataFrame) -> MemoryRows:
    """The table of `predictor.models.corpus.memory_features` as arrays. Raises InvalidData on another one."""
    missing = [name for name in FEATURES if name not in table.columns]
    if missing or not table.height:
        raise InvalidData(
            f"memory features: {table.height} rows, columns missing: {', '.join(missing) or 'none'}; "
            "run `perfcast corpus build` again"
        )
    return MemoryRows(
        table.select(FEATURES).to_numpy().astype(np.float64),
        table["base_bytes"].to_numpy().astype(np.float64),
        table["measured_bytes"].to_numpy().astype(np.float64),
        table["model_group"].to_numpy().astype(np.str_),
        table["device"].to_numpy().astype(np.str_),
    )


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
    errors: FloatArray = np.log(rows.measured_bytes / model.device_peaks(rows.features, rows.base_bytes))
    return errors


def folds(rows: MemoryRows) -> Iterator[NDArray[np.bool_]]:
    """Masks of held-out rows: FOLDS sets of whole families."""
    return group_folds(rows.group, FOLDS)


def fit_context(rows: MemoryRows) -> float:
    """Runtime context in bytes: the constant with the smallest median error when nothing is learned."""
    best, error = float(_CONTEXT_CANDIDATES_MIB[0] * MIB), np.inf
    # Where context dominates, it is what decides; the quarter of rows with the least else.
    small = rows.base_bytes <= np.quantile(rows.base_bytes, 0.25)
    for candidate in _CONTEXT_CANDIDATES_MIB:
        context = float(candidate * MIB)
        found = float(
            np.median(np.abs(np.log((context + rows.base_bytes[small]) / rows.measured_bytes[small])))
        )
        if found < error:
            best, error = context, found
    return best


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
    target = np.log(np.maximum(rows.measured_bytes - context, 16 * MIB) / rows.base_bytes)
    weight = np.square(np.clip((rows.measured_bytes - context) / rows.measured_bytes, 0.02, 1.0))
    # Every family counts by the root of its size: large ones know more, but must not be all there is.
    _, inverse, counts = np.unique(rows.group, return_inverse=True, return_counts=True)
    weight = weight / np.sqrt(counts[inverse])
    matrix = xgboost.DMatrix(rows.features.astype(np.float32), label=target, weight=weight / weight.mean())
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
