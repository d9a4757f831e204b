"""Trains learned times of collectives, and measures them on systems, link generations and sizes left out.

How far curves of other systems reach (Scales) is chosen by leaving out one training system after the other.
The trees learn what the curves of all other systems leave of each system; systems weigh by the root of their
rows, as some print three lines and others thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.models.booster import load_booster
from predictor.models.bundle import Json, TrainedModel
from predictor.models.plans.exchange_curves import (
    BOOSTER,
    REACH,
    SAME,
    Curves,
    ExchangeModel,
    ExchangeSpreads,
    Scales,
    curve_params,
    tree_columns,
)
from predictor.models.plans.exchange_rows import LINKS, OPS, ExchangeTable, FloatArray, exchange_table

if TYPE_CHECKING:
    import polars as pl

CANDIDATES = (
    Scales(rate=1.0, ranks=1.0, nodes=1.0, op=3.0, kind=8.0, timer=1.0),
    Scales(rate=0.6, ranks=0.5, nodes=1.0, op=10.0, kind=20.0, timer=4.0),
    Scales(rate=0.3, ranks=0.5, nodes=1.0, op=6.0, kind=8.0, timer=1.0),
    Scales(rate=0.3, ranks=0.5, nodes=1.0, op=6.0, kind=8.0, timer=4.0),
    Scales(rate=0.15, ranks=0.4, nodes=1.0, op=10.0, kind=20.0, timer=1.0),
    Scales(rate=0.15, ranks=0.4, nodes=1.0, op=10.0, kind=20.0, timer=4.0),
)
_UNKNOWN = ExchangeSpreads(0.0, 0.0, 0.0)
_ROUNDS = 60
QUANTILE = 0.9
_UNMEASURED_WIDTH = 1.0
_LARGE = 18.0
"""Intervals are those of exchanges of 256 KiB and more: smaller ones hardly show in an iteration."""


@dataclass(frozen=True, slots=True)
class _OutOfSystem:
    """(n,) mean of other systems' curves at each row, and (n,) distance of the nearest."""

    mean: FloatArray
    nearest: FloatArray


def fit_exchanges(table: ExchangeTable, seed: int) -> ExchangeModel:
    """Scales by systems left out in turn, then trees; intervals are not known yet."""
    found = [_out_of_system(table, scales) for scales in CANDIDATES]
    errors = [float(np.median(np.abs(item.mean - table.log_ratio))) for item in found]
    best = int(np.argmin(errors))
    booster = _trees(table, found[best], seed)
    return ExchangeModel(Curves.of(table), CANDIDATES[best], booster, _UNKNOWN)


def _out_of_system(table: ExchangeTable, scales: Scales) -> _OutOfSystem:
    curves = Curves.of(table)
    systems = np.array([facts.system for facts in table.curves])
    mean, nearest = np.zeros(len(table)), np.zeros(len(table))
    for number, facts in enumerate(table.curves):
        rows = np.flatnonzero(table.curve == number)
        distance = curves.distances(replace(facts, system=""), scales)
        distance = np.where(systems == facts.system, np.inf, distance)
        nearest[rows] = distance.min()
        mean[rows] = curves.mean(distance, table.log_size[rows])
    return _OutOfSystem(mean, nearest)


def _trees(table: ExchangeTable, base: _OutOfSystem, seed: int) -> Any:
    import xgboost

    columns = np.zeros((len(table), 12))
    for number, facts in enumerate(table.curves):
        rows = np.flatnonzero(table.curve == number)
        columns[rows] = tree_columns(
            facts, table.log_size[rows], base.mean[rows], float(base.nearest[rows[0]])
        )
    _, index, counts = np.unique(table.system, return_inverse=True, return_counts=True)
    weight = counts[index] ** -0.5
    matrix = xgboost.DMatrix(columns, table.log_ratio - base.mean, weight=weight)
    chosen = {
        "objective": "reg:absoluteerror",
        "max_depth": 3,
        "eta": 0.05,
        "subsample": 0.7,
        "colsample_bytree": 0.6,
        "lambda": 10.0,
        "base_score": 0.0,
        "seed": seed,
        "nthread": 1,
        "verbosity": 0,
    }
    return load_booster(bytes(xgboost.train(chosen, matrix, _ROUNDS).save_raw("ubj")))


@dataclass(frozen=True, slots=True)
class HeldOut:
    """(n,) log(predicted / measured) of each row without its group, (n,) distance of the nearest curve."""

    residual: FloatArray
    nearest: FloatArray


def held_out(table: ExchangeTable, group: NDArray[Any], seed: int, *, known: bool = False) -> HeldOut:
    """Every group predicted by a model that never saw it.

    Args:
        group: (n,) names. known: rows keep the name of their system (for sizes left out).
    """
    residual, nearest = np.zeros(len(table)), np.zeros(len(table))
    for name in np.unique(group):
        inside = group == name
        model = fit_exchanges(table.take(~inside), seed)
        for number in np.unique(table.curve[inside]):
            rows = np.flatnonzero(inside & (table.curve == number))
            facts = table.curves[number]
            facts = facts if known else replace(facts, system="")
            ratio, distance = model.log_ratios(facts, table.log_size[rows])
            residual[rows], nearest[rows] = ratio - table.log_ratio[rows], distance
    return HeldOut(residual, nearest)


def train_exchanges(frames: Iterable[pl.DataFrame], seed: int) -> tuple[TrainedModel, dict[str, Json]]:
    """The stored model, and its errors on systems and sizes left out."""
    table = exchange_table(frames)
    by_system = held_out(table, table.system, seed)
    by_size = held_out(table, table.octave, seed, known=True)
    model = fit_exchanges(table, seed)
    same, similar = half_widths(table, by_system.residual, by_system.nearest)
    large = table.log_size >= _LARGE
    spreads = ExchangeSpreads(
        known_system=_half_width(by_size.residual[large], table.system[large]),
        known_device=same,
        similar=similar,
    )
    params: dict[str, Json] = {
        "ops": list(OPS),
        "links": list(LINKS),
        "curves": curve_params(model.curves),
        "scales": asdict(model.scales),
        "spreads": asdict(spreads),
    }
    metrics: dict[str, Json] = {
        "rows": len(table),
        "held_out_systems": _median_error(by_system.residual),
        "held_out_sizes": _median_error(by_size.residual),
    }
    return TrainedModel({BOOSTER: bytes(model.booster.save_raw("ubj"))}, params), metrics


def half_widths(table: ExchangeTable, residual: FloatArray, nearest: FloatArray) -> tuple[float, float]:
    """90 % log half-widths on large exchanges: in nodes of devices that others timed, and all else in reach.

    Networks between nodes differ more than boards, so they count as similar at best.
    """
    large = table.log_size >= _LARGE
    same = large & is_timed_elsewhere(table, nearest)
    near = large & (nearest <= REACH) & ~same
    return _half_width(residual[same], table.system[same]), _half_width(residual[near], table.system[near])


def is_timed_elsewhere(table: ExchangeTable, nearest: FloatArray) -> NDArray[np.bool_]:
    """(n,) whether others timed such ranks of such a device in a node."""
    in_node = np.array([facts.nodes == 1 for facts in table.curves])[table.curve]
    return np.asarray(in_node & (nearest < SAME))


def _median_error(residual: FloatArray) -> float:
    return round(float(np.median(np.abs(np.expm1(residual)))), 6)


def _half_width(residual: FloatArray, system: NDArray[np.str_]) -> float:
    """Holds QUANTILE of the rows, systems weighing by the root of their rows; wide where there are none."""
    if not len(residual):
        return _UNMEASURED_WIDTH
    _, index, counts = np.unique(system, return_inverse=True, return_counts=True)
    values, weight = np.abs(residual), counts[index] ** -0.5
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(len(values) - 1, int(np.searchsorted(share, QUANTILE)))])
