"""Fits and judges the op-time boosters: one per family, hyper-parameters chosen by leaving devices out.

The settings below were chosen on operator rows (leave-one-device-out and held-out shapes) and then frozen;
docs/adr/0008 says which whole-model errors were in sight meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import Family
from predictor.features.tables.rows import device_signature, schema_hash
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Json, TrainedModel
from predictor.models.calibration import COVERAGE, Spread, grouped_quantile
from predictor.models.ops.op_rows import OpTable
from predictor.models.ops.op_time import FamilyModel

FOLDS = 5
_RANGE_QUANTILE = 0.0005


@dataclass(frozen=True, slots=True)
class FitSettings:
    """XGBoost settings of one family."""

    rounds: int
    depth: int
    eta: float = 0.1
    subsample: float = 0.7
    columns: float = 0.8
    min_child_weight: float = 10.0
    ridge: float = 2.0

    def parameters(self, seed: int) -> dict[str, Any]:
        """For `xgboost.train`; one thread, so that sums run in one order and equal seeds give equal trees."""
        return {
            "tree_method": "hist",
            "objective": "reg:squarederror",
            "max_depth": self.depth,
            "eta": self.eta,
            "subsample": self.subsample,
            "colsample_bytree": self.columns,
            "min_child_weight": self.min_child_weight,
            "lambda": self.ridge,
            "nthread": 1,
            "seed": seed,
        }


_PRODUCTS = FitSettings(rounds=400, depth=7, eta=0.05)
_VECTORS = FitSettings(rounds=300, depth=5, columns=1.0)
SETTINGS: Mapping[Family, FitSettings] = {
    Family.MATMUL: _PRODUCTS,
    Family.BATCHED_MATMUL: _PRODUCTS,
    Family.CONVOLUTION: _PRODUCTS,
    Family.ELEMENTWISE: _VECTORS,
    Family.NORMALIZATION: _VECTORS,
    Family.SOFTMAX: _VECTORS,
}


@dataclass(frozen=True, slots=True)
class Residuals:
    """log(predicted / measured) of rows that the fit had not seen, with their groups."""

    value: FloatArray
    device: NDArray[np.str_]
    subset: NDArray[np.str_]

    @property
    def group(self) -> NDArray[np.str_]:
        """(n,) device and shape set: each pair counts alike in calibration, as it does in training."""
        return np.char.add(np.char.add(self.device, " "), self.subset)

    def metrics(self) -> dict[str, Json]:
        """Mean and median absolute percentage error and the number of rows, pooled and per device."""
        table: dict[str, Json] = {"all": _errors(self.value)}
        for name in np.unique(self.device):
            table[str(name)] = _errors(self.value[self.device == name])
        return table


def _errors(residual: FloatArray) -> dict[str, Json]:
    error = np.abs(np.expm1(residual))
    return {
        "mape": round(float(error.mean()), 6),
        "median": round(float(np.median(error)), 6),
        "n": int(error.size),
    }


def fit(table: OpTable, settings: FitSettings, seed: int) -> Any:
    """The booster of one family's table."""
    import xgboost

    matrix = xgboost.DMatrix(
        table.features, table.target, weight=table.weight / table.weight.mean(), nthread=1
    )
    return xgboost.train(settings.parameters(seed), matrix, settings.rounds)


def residuals(booster: Any, table: OpTable) -> Residuals:
    """Of a table that `booster` was not fitted on."""
    predicted = np.asarray(booster.inplace_predict(table.features), dtype=np.float64)
    return Residuals(predicted - table.target, table.device, table.subset)


def held_out_shapes(table: OpTable, settings: FitSettings, seed: int) -> Residuals:
    """Every row scored by a fit without its fold. A shape is in one fold on all devices."""
    fold = np.random.default_rng(seed).permutation(int(table.shape.max()) + 1)[table.shape] % FOLDS
    return _joined(
        [residuals(fit(table.take(fold != k), settings, seed), table.take(fold == k)) for k in range(FOLDS)]
    )


def held_out_devices(table: OpTable, settings: FitSettings, seed: int) -> Residuals:
    """Every row scored by a fit that never saw its device."""
    return _joined(
        [
            residuals(fit(table.take(table.device != name), settings, seed), table.take(table.device == name))
            for name in np.unique(table.device)
        ]
    )


def train_op_time(
    tables: Mapping[Family, OpTable],
    devices: Mapping[str, DeviceSpec],
    seed: int,
    kernels: TrainedModel | None = None,
) -> tuple[TrainedModel, dict[str, Json]]:
    """The stored model, and its metrics per family for held-out shapes and held-out devices.

    `kernels` is what predictor.models.ops.kernel_training gave; it is stored along.
    """
    spreads: dict[Family, Spread] = {}
    metrics: dict[str, Json] = {}
    for family, table in tables.items():
        settings = SETTINGS[family]
        shapes, unseen = held_out_shapes(table, settings, seed), held_out_devices(table, settings, seed)
        spreads[family] = Spread(
            known=grouped_quantile(shapes.value, shapes.group),
            new=grouped_quantile(unseen.value, unseen.group),
        )
        metrics[family.value] = {"held_out_shapes": shapes.metrics(), "held_out_devices": unseen.metrics()}
    return fit_op_time(tables, devices, spreads, seed, kernels), metrics


def fit_op_time(
    tables: Mapping[Family, OpTable],
    devices: Mapping[str, DeviceSpec],
    spreads: Mapping[Family, Spread],
    seed: int,
    kernels: TrainedModel | None = None,
) -> TrainedModel:
    """The stored model with given spreads; `devices` are those of the tables."""
    boosters: dict[str, bytes] = dict(kernels.boosters) if kernels else {}
    families: dict[str, Json] = {}
    for family, table in tables.items():
        low, high = np.quantile(table.features, [_RANGE_QUANTILE, 1 - _RANGE_QUANTILE], axis=0)
        model = FamilyModel(low.astype(np.float32), high.astype(np.float32), spreads[family])
        families[family.value] = model.to_json()
        boosters[family.value] = bytes(fit(table, SETTINGS[family], seed).save_raw("ubj"))
    params: dict[str, Json] = {
        "feature_schema": schema_hash(),
        "coverage": COVERAGE,
        "families": families,
        "known_devices": [
            [float(value) for value in device_signature(device, "fp32")] for device in devices.values()
        ],
        "kernels": dict(kernels.params) if kernels else {},
    }
    return TrainedModel(boosters, params)


def _joined(parts: Sequence[Residuals]) -> Residuals:
    return Residuals(
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.subset for part in parts]),
    )
