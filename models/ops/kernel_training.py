"""Fits and judges the kernel boosters; held out are chips with their twins, and shapes on known chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.tables.kernel_rows import RUN_COLUMNS, KernelModel
from predictor.features.tables.rows import FeatureMatrix, device_signature
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import Spread, grouped_quantile
from predictor.models.ops.kernel_tables import KernelTable
from predictor.models.ops.kernel_time import (
    GENERAL,
    MEASURED,
    SITUATIONS,
    KernelFit,
    device_columns,
    hide_unseen,
    situations,
    stored_name,
    to_params,
)

FOLDS = 5
# A tenth of the rows hide what ran, so that trees learn the typical library beside each one.
_UNTOLD_SHARE = 0.1
_RANGE_QUANTILE = 0.0005
THIN = 4
"""What carries over to other chips needs few shapes: of four times as many, no chip left out gained."""
# A fifth of the shapes is judged for the intervals of known devices.
_CALIBRATION_FOLDS = 1


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """XGBoost settings: trees grow leaf by leaf; absolute errors, since kernel choices make long tails.

    `columns` is the share of columns that a tree may use, `split_columns` the share of those at each split.
    """

    rounds: int
    leaves: int
    eta: float
    min_child_weight: float
    subsample: float = 0.7
    columns: float = 0.7
    split_columns: float = 1.0
    ridge: float = 2.0

    def parameters(self, seed: int) -> dict[str, Any]:
        """For `xgboost.train`; one thread, so that equal seeds give equal trees."""
        return {
            "tree_method": "hist",
            "objective": "reg:absoluteerror",
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": self.leaves,
            "eta": self.eta,
            "subsample": self.subsample,
            "colsample_bytree": self.columns,
            "colsample_bynode": self.split_columns,
            "min_child_weight": self.min_child_weight,
            "lambda": self.ridge,
            "nthread": 1,
            "seed": seed,
        }


SETTINGS: Mapping[str, KernelSettings] = {
    GENERAL: KernelSettings(rounds=200, leaves=96, eta=0.1, min_child_weight=50.0),
    MEASURED: KernelSettings(
        rounds=500, leaves=256, eta=0.15, min_child_weight=5.0, subsample=0.9, columns=1.0
    ),
}
"""For devices that nobody measured, and for those in the tables."""


def _smaller(rounds: int, leaves: int) -> Mapping[str, KernelSettings]:
    """Settings of models of layers: a quarter of the size costs a twentieth of the accuracy.

    Experts' new shapes: 6.0 for 5.7 %, on a fold that no report shows.
    """
    return {
        GENERAL: replace(SETTINGS[GENERAL], rounds=150, leaves=48),
        MEASURED: replace(SETTINGS[MEASURED], rounds=rounds, leaves=leaves, eta=0.2),
    }


# Only products gain (docs/adr/0013): chips left out 12.5 to 12.2 %, new shapes on an inner fold 4.3 to 4.2 %.
_PRODUCTS = {
    GENERAL: replace(SETTINGS[GENERAL], columns=1.0, split_columns=0.3),
    MEASURED: replace(SETTINGS[MEASURED], eta=0.1, subsample=0.7),
}
_OF_MODELS: Mapping[KernelModel, Mapping[str, KernelSettings]] = {
    KernelModel.PRODUCT: _PRODUCTS,
    KernelModel.EXPERTS: _smaller(300, 96),
    KernelModel.STATE: _smaller(200, 64),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of a table that the fit had not seen, each (n,).

    `told` and `untold`: log(predicted / measured) with and without knowing what library ran. `rows`: which.
    """

    rows: NDArray[np.intp]
    told: FloatArray
    untold: FloatArray


def fit_booster(
    table: KernelTable, which: str, devices: Mapping[str, DeviceSpec], seed: int, *, thin: int = 1
) -> bytes:
    """A booster of a table, as UBJ; `thin` keeps one shape in so many."""
    import xgboost

    if thin > 1:
        table = table.take(table.shape % thin == 0)
    hidden = np.random.default_rng(seed).random(len(table)) < _UNTOLD_SHARE
    features = _features(table, which, devices).copy()
    features[hidden, -RUN_COLUMNS[table.model] :] = np.nan
    settings = _OF_MODELS.get(table.model, SETTINGS)[which]
    matrix = xgboost.DMatrix(features, table.target, weight=_weights(table), nthread=1)
    trained = xgboost.train(settings.parameters(seed), matrix, settings.rounds)
    return bytes(trained.save_raw("ubj"))


def _features(table: KernelTable, which: str, devices: Mapping[str, DeviceSpec]) -> FeatureMatrix:
    if which == GENERAL:
        return table.features
    names, index = np.unique(table.device, return_inverse=True)
    return np.concatenate(
        [np.stack([device_columns(devices[name]) for name in names.tolist()])[index], table.features], axis=1
    )


def _weights(table: KernelTable) -> FloatArray:
    """Chips count by the square root of their rows: thin ones are heard, thick ones not drowned."""
    _, index, counts = np.unique(table.chip, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[index].astype(np.float64))
    return np.asarray(weight / weight.mean(), dtype=np.float64)


def judge(
    fitted: bytes,
    table: KernelTable,
    which: str,
    devices: Mapping[str, DeviceSpec],
    rows: NDArray[np.intp],
    seen: NDArray[np.bool_],
) -> Judged:
    """Residuals of some rows of a table by a booster fitted on the rows `seen`."""
    booster = load_booster(fitted)
    features = _features(table, which, devices)
    told = hide_unseen(features[rows], libraries(features[seen], table.model))
    untold: FeatureMatrix = features[rows].copy()
    untold[:, -RUN_COLUMNS[table.model] :] = np.nan
    residuals = [
        np.asarray(booster.inplace_predict(matrix), dtype=np.float64) - table.target[rows]
        for matrix in (told, untold)
    ]
    return Judged(rows, *residuals)


def libraries(features: FeatureMatrix, model: KernelModel) -> tuple[tuple[float, ...], ...]:
    """The codes of each column of the run that a table holds."""
    columns = features[:, -RUN_COLUMNS[model] :].T
    return tuple(tuple(np.unique(column[~np.isnan(column)]).tolist()) for column in columns)


def held_out_chips(
    table: KernelTable, devices: Mapping[str, DeviceSpec], seed: int, *, only: Sequence[str] = ()
) -> Judged:
    """Every row (or those of the chips in `only`) judged by a fit that never saw its chip or a twin of it."""
    parts = []
    for name in only or np.unique(table.chip).tolist():
        held = table.chip == name
        fitted = fit_booster(table.take(~held), GENERAL, devices, seed, thin=THIN)
        parts.append(judge(fitted, table, GENERAL, devices, np.flatnonzero(held), ~held))
    return _joined(parts)


def held_out_shapes(
    table: KernelTable, devices: Mapping[str, DeviceSpec], seed: int, *, folds: int = FOLDS
) -> Judged:
    """Rows of `folds` folds, each judged by a fit without them; a shape is in one fold on all devices."""
    fold = np.random.default_rng(seed).permutation(int(table.shape.max()) + 1)[table.shape] % FOLDS
    parts = []
    for k in range(folds):
        held = fold == k
        fitted = fit_booster(table.take(~held), MEASURED, devices, seed)
        parts.append(judge(fitted, table, MEASURED, devices, np.flatnonzero(held), ~held))
    return _joined(parts)


def _joined(parts: Sequence[Judged]) -> Judged:
    return Judged(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "told", "untold"))
    )


def train_kernels(
    tables: Mapping[KernelModel, KernelTable], devices: Mapping[str, DeviceSpec], seed: int
) -> TrainedModel:
    """Boosters by their stored names, and parameters with calibrated spreads."""
    fits: dict[KernelModel, KernelFit] = {}
    stored: dict[str, bytes] = {}
    for model, table in tables.items():
        shapes = held_out_shapes(table, devices, seed, folds=_CALIBRATION_FOLDS)
        chips = held_out_chips(table, devices, seed)
        for which in SETTINGS:
            stored[stored_name(model, which)] = fit_booster(
                table, which, devices, seed, thin=THIN if which == GENERAL else 1
            )
        fits[model] = kernel_fit(table, devices, shapes, chips)
    return TrainedModel(stored, to_params(fits))


def general_kernels(
    tables: Mapping[KernelModel, KernelTable], devices: Mapping[str, DeviceSpec], seed: int
) -> TrainedModel:
    """Boosters alone, as for devices that nobody measured: for judging, without calibrated spreads."""
    nobody = np.zeros((0, len(device_signature(next(iter(devices.values())), Compute.FP32))))
    flat = (Spread(1.0, 1.0),) * len(SITUATIONS)
    fits: dict[KernelModel, KernelFit] = {}
    stored: dict[str, bytes] = {}
    for model, table in tables.items():
        fitted = fit_booster(table, GENERAL, devices, seed, thin=THIN)
        stored |= {stored_name(model, which): fitted for which in SETTINGS}
        low, high = _ranges(table)
        fits[model] = KernelFit(low, high, flat, flat, nobody, libraries(table.features, model))
    return TrainedModel(stored, to_params(fits))


def _ranges(table: KernelTable) -> FeatureMatrix:
    told = table.features[:, : -RUN_COLUMNS[table.model]]
    return np.quantile(told, [_RANGE_QUANTILE, 1 - _RANGE_QUANTILE], axis=0).astype(np.float32)


def kernel_fit(
    table: KernelTable, devices: Mapping[str, DeviceSpec], shapes: Judged, chips: Judged
) -> KernelFit:
    """What belongs to a table's boosters, with spreads from rows that such fits had not seen."""
    low, high = _ranges(table)
    measured = sorted(set(zip(table.device.tolist(), table.compute.tolist(), strict=True)))
    return KernelFit(
        low=low,
        high=high,
        told=_spreads(table, shapes, chips, "told"),
        untold=_spreads(table, shapes, chips, "untold"),
        known=np.array([device_signature(devices[name], Compute(kind)) for name, kind in measured]),
        libraries=libraries(table.features, table.model),
    )


def _spreads(table: KernelTable, shapes: Judged, chips: Judged, which: str) -> tuple[Spread, ...]:
    """Of each situation."""
    known, new = _widths(table, shapes, which), _widths(table, chips, which)
    return tuple(Spread(known=k, new=n) for k, n in zip(known, new, strict=True))


def _widths(table: KernelTable, judged: Judged, which: str) -> list[float]:
    group = np.char.add(np.char.add(table.chip, " "), table.subset)[judged.rows]
    residual = getattr(judged, which)
    place = situations(table.model, table.features, table.compute)[judged.rows]
    # A situation that no row shows takes the width of all.
    parts = [place == i if (place == i).any() else place >= 0 for i in range(len(SITUATIONS))]
    return [grouped_quantile(residual[part], group[part]) for part in parts]
