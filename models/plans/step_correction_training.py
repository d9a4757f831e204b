"""Trains the correction of composed plans on published runs, and measures its interval on groups left out.

Trees that all sources share are shallow, few and blind to sizes: they must hold at a publisher that nobody
has seen. On top, each source has an offset and trees of its own, which no other source ever gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.tables.tiles import FloatArray
from predictor.models.bundle import Json, TrainedModel
from predictor.models.plans.step_correction import BOOSTER, COLUMNS, StepFacts, columns_of

CAP_OF_ONE_SOURCE = 0.2
"""No source has more than this share of the weight (vTrain has half of the rows)."""
_CROWDING = 0.5
"""A source of n rows weighs n^0.5 before the cap."""
_PRIOR_ROWS = 10.0
"""Rows that a source needs before its offset is believed by half."""
_ROUNDS, _PASSES = 100, 2
GENERAL = (
    *("share_communication", "share_tp_communication", "share_ep_communication", "share_pipeline_bubble"),
    *("share_host_launch", "kernels_batched_matmul", "kernels_attention", "kernels_elementwise"),
    *("kernels_copy", "narrow", "recompute", "product_rate", "tuned"),
)
"""Columns that mean the same at every publisher; sizes and counts would only name the publisher."""
_LARGE_SOURCE = 100
"""Rows from which a source's own trees may be deep."""
QUANTILE = 0.9


@dataclass(frozen=True, slots=True)
class CorrectionTable:
    """Published runs as rows: (n, COLUMNS) features, (n,) log(measured / composed), source, model, device."""

    features: FloatArray
    target: FloatArray
    source: NDArray[np.str_]
    model: NDArray[np.str_]
    device: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.target)

    def take(self, mask: NDArray[Any]) -> CorrectionTable:
        """The rows of a mask or an index."""
        return CorrectionTable(
            self.features[mask], self.target[mask], self.source[mask], self.model[mask], self.device[mask]
        )


def correction_table(
    facts: Sequence[StepFacts],
    measured_s: Sequence[float],
    source: Sequence[str],
    model: Sequence[str],
    device: Sequence[str],
    tuned: Sequence[bool],
) -> CorrectionTable:
    """One row a run. Raises InvalidData without any."""
    if not facts:
        raise InvalidData("no published distributed run could be composed; look at the corpus")
    return CorrectionTable(
        np.array([columns_of(one, tuned=flag) for one, flag in zip(facts, tuned, strict=True)]),
        np.log(np.array(measured_s) / np.array([one.composed_s for one in facts])),
        np.array(source),
        np.array(model),
        np.array(device),
    )


def row_weights(table: CorrectionTable, cap: float = CAP_OF_ONE_SOURCE) -> FloatArray:
    """(n,) weights, mean 1: sources weigh by the root of their rows, none above `cap` of all."""
    names, index, counts = np.unique(table.source, return_inverse=True, return_counts=True)
    share = counts**_CROWDING / (counts**_CROWDING).sum()
    limit = max(cap, 1.0 / len(names))
    for _ in names:
        over = share > limit
        free = ~over
        if not over.any() or not free.any():
            break
        share[free] *= (1 - limit * over.sum()) / share[free].sum()
        share[over] = limit
    weight = (share / counts)[index]
    return np.asarray(weight / weight.mean(), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class FittedCorrection:
    """Trees for all, mean, and by source an offset and trees of its own."""

    booster: Any
    mean_log: float
    offsets: dict[str, float]
    habits: dict[str, Any]

    def predict(self, table: CorrectionTable) -> FloatArray:
        """(n,) log factors; sources that were trained on keep their offset and their trees."""
        found = self.mean_log + np.asarray(
            self.booster.inplace_predict(general(table.features)), dtype=np.float64
        )
        for name in np.unique(table.source):
            if (trees := self.habits.get(str(name))) is not None:
                mine = table.source == name
                found[mine] += self.offsets[str(name)] + trees.inplace_predict(table.features[mine])
        return np.asarray(found)


def general(features: FloatArray) -> FloatArray:
    """(n, COLUMNS) with all but the GENERAL columns blank."""
    keep = np.isin(np.array(COLUMNS), GENERAL)
    return np.asarray(np.where(keep, features, 0.0))


def fit_correction(
    table: CorrectionTable, seed: int, *, weight: FloatArray | None = None
) -> FittedCorrection:
    """Trees on what mean and offsets leave, offsets on what the trees leave, in turns."""
    import xgboost

    weight = row_weights(table) if weight is None else weight
    names, index = np.unique(table.source, return_inverse=True)
    mass = np.bincount(index)
    offset = np.zeros(len(names))
    trees = np.zeros(len(table))
    features = general(table.features)
    mean_log, booster = 0.0, None
    for _ in range(_PASSES):
        left = table.target - trees
        within = np.array([_average(left, weight, index == number) for number in range(len(names))])
        mean_log = float(np.average(within, weights=mass / (mass + _PRIOR_ROWS)))
        offset = (within - mean_log) * mass / (mass + _PRIOR_ROWS)
        matrix = xgboost.DMatrix(features, table.target - mean_log - offset[index], weight=weight)
        booster = xgboost.train(_parameters(seed, 2, 100.0, 0.05), matrix, _ROUNDS)
        trees = np.asarray(booster.inplace_predict(features), dtype=np.float64)
    left = table.target - mean_log - trees
    offsets: dict[str, float] = {}
    habits: dict[str, Any] = {}
    for number, name in enumerate(names):
        mine = index == number
        offsets[str(name)] = shift = float(left[mine].mean() * mass[number] / (mass[number] + _PRIOR_ROWS))
        large = mass[number] >= _LARGE_SOURCE
        chosen = _parameters(seed, 5 if large else 2, 3.0 if large else 20.0, 0.06)
        own = xgboost.DMatrix(table.features[mine], left[mine] - shift)
        habits[str(name)] = xgboost.train(chosen, own, 250 if large else 40)
    return FittedCorrection(booster, mean_log, offsets, habits)


def _parameters(seed: int, depth: int, ridge: float, rate: float) -> dict[str, Any]:
    return {
        "objective": "reg:pseudohubererror",
        "huber_slope": 0.2,
        "max_depth": depth,
        "eta": rate,
        "lambda": ridge,
        "min_child_weight": 1.0,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "base_score": 0.0,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }


def _average(values: FloatArray, weight: FloatArray, mask: NDArray[np.bool_]) -> float:
    return float(np.average(values[mask], weights=weight[mask]))


def held_out(
    table: CorrectionTable, group: NDArray[np.str_], seed: int, train_on: Callable[[str], NDArray[np.bool_]]
) -> FloatArray:
    """(n,) log(predicted / measured) of every row from a fit without its group.

    Args:
        group: (n,) name of each row's group. train_on: rows that the fit for a group may see.
    """
    found = np.full(len(table), np.nan)
    for name in np.unique(group):
        inside = group == name
        seen = train_on(str(name)) & ~inside
        if seen.any():
            found[inside] = fit_correction(table.take(seen), seed).predict(table.take(inside))
    return np.asarray(found - table.target)


def source_quantile(residual: FloatArray, source: NDArray[np.str_]) -> float:
    """Half-width that holds QUANTILE of the rows, sources weighing alike."""
    keep = np.isfinite(residual)
    values, names = np.abs(residual[keep]), source[keep]
    _, index, counts = np.unique(names, return_inverse=True, return_counts=True)
    weight = 1.0 / counts[index]
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(len(values) - 1, int(np.searchsorted(share, QUANTILE)))])


def model_groups(table: CorrectionTable) -> NDArray[np.str_]:
    """(n,) source and model of each row."""
    return np.array([f"{a}|{b}" for a, b in zip(table.source, table.model, strict=True)])


def train_step_correction(table: CorrectionTable, seed: int) -> tuple[TrainedModel, dict[str, Json]]:
    """The stored model, and its errors on groups left out."""
    everything = np.ones(len(table), dtype=bool)
    by_source = held_out(table, table.source, seed, lambda _: everything)
    by_model = _by_model(table, seed)
    fitted = fit_correction(table, seed)
    params: dict[str, Json] = {
        "columns": list(COLUMNS),
        "general": list(GENERAL),
        "mean_log": fitted.mean_log,
        "offsets": fitted.offsets,
        "spreads": {
            "new_source": source_quantile(by_source, table.source),
            "known_source": source_quantile(by_model, table.source),
        },
    }
    metrics: dict[str, Json] = {
        "held_out_sources": _macro(by_source, table.source),
        "held_out_models": _macro(by_model, table.source),
        "rows": len(table),
    }
    return TrainedModel({BOOSTER: bytes(fitted.booster.save_raw("ubj"))}, params), metrics


FOLDS = 5


def _by_model(table: CorrectionTable, seed: int) -> FloatArray:
    """Residuals with models left out of their source, FOLDS groups of models at once."""
    groups = model_groups(table)
    names, index = np.unique(groups, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(names))[index] % FOLDS
    everything = np.ones(len(table), dtype=bool)
    return held_out(table, np.array([str(number) for number in fold]), seed, lambda _: everything)


def _macro(residual: FloatArray, source: NDArray[np.str_]) -> float:
    keep = np.isfinite(residual)
    error = np.abs(np.expm1(residual[keep]))
    names = source[keep]
    return round(float(np.mean([error[names == name].mean() for name in np.unique(names)])), 6)
