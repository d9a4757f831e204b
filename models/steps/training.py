"""Trains the step model from every whole-model source of a corpus, and measures how far off it is.

Two models: of devices that kernels are launched on, and of processors; the first has a second booster for
devices that nobody timed. Half-widths of the intervals come from model families left out (devices that were
timed) and from chips left out in every source (new ones, by that second booster).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.models.bundle import Json, TrainedModel
from predictor.models.calibration import grouped_quantile
from predictor.models.corpus.build import Progress, missing_sources, silent
from predictor.models.corpus.whole_model import WholeModelRow, whole_model_rows
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.boosting import BoostSettings, Fitted, boosted, fit_aggregate
from predictor.models.steps.features import DEVICE_COLUMNS, RATIO_COLUMNS, schema_hash
from predictor.models.steps.harness import REFERENCES
from predictor.models.steps.kernels import FAMILY as KERNELS
from predictor.models.steps.kernels import kernel_table
from predictor.models.steps.rows import AggregateTable, aggregate_table, joined_tables
from predictor.models.steps.step_time import DEVICE, HOST, UNSEEN, TimedDevice
from predictor.types import Precision

FindDevice = Callable[[str], DeviceSpec]

SETTINGS: Mapping[str, BoostSettings] = {
    DEVICE: BoostSettings(rounds=300, depth=10, min_child_weight=6.0, hidden=DEVICE_COLUMNS, parallel=2),
    UNSEEN: BoostSettings(
        rounds=200, depth=6, min_child_weight=6.0, hidden=(*DEVICE_COLUMNS, *RATIO_COLUMNS)
    ),
    HOST: BoostSettings(rounds=300, depth=8),
}
"""What carries over to a chip that trees never saw is said by low ones, of shapes and jobs alone. Two deep
ones are averaged: errors are those of one, but times dip less from one shape to the next."""
CALIBRATION: Mapping[str, BoostSettings] = {
    DEVICE: BoostSettings(rounds=80, depth=8, min_child_weight=6.0, hidden=DEVICE_COLUMNS),
    HOST: SETTINGS[HOST],
}
"""Fewer rounds: errors of held-out rows hardly change after these."""
_OF_NEW: Mapping[str, BoostSettings] = {DEVICE: SETTINGS[UNSEEN], HOST: CALIBRATION[HOST]}
"""What answers for chips that nobody timed."""
FAMILY_FOLDS, CHIP_FOLDS = 4, 6
TRAINED = (
    "timm_benchmarks",
    "neusight-cells",
    "profiles",
    "lambda_pytorch",
    "pytorch_gpu_benchmark",
    "nvidia_dle_tables",
    "gavel",
    "detectron2_pycls",
)
"""Sources trained on. Those whose harness is timed along with the device teach devices, since what the
harness adds is fitted beside them (predictor.models.steps.harness)."""
JUDGED = REFERENCES | {"lambda_pytorch"}
"""Sources whose residuals say how far off an answer is: without a harness, or with one that is known."""
_CROWDED, _THINNING = 4000, 4
_CROWDING = 0.3
"""A cell of n rows counts as n^0.7: many rows of one harness say less than as many of many."""


def is_trained_on(row: WholeModelRow, find_device: FindDevice) -> bool:
    """One device that runs GPU kernels or is a processor, in a precision whose rates are known."""
    kind = find_device(row.device).kind
    return (
        row.devices == 1 and kind in (DeviceKind.GPU, DeviceKind.CPU) and row.precision is not Precision.FP64
    )


def step_tables(
    corpus: Path,
    op_time: OpTimeModel,
    find_device: FindDevice,
    *,
    seed: int,
    sources: Sequence[str] = TRAINED,
    keep: Callable[[WholeModelRow], bool] = lambda row: True,
    progress: Progress = silent,
) -> Mapping[str, AggregateTable]:
    """Training tables by DEVICE and HOST, of those of `sources` that the corpus holds, and kernels.

    Raises InvalidData when it holds none.
    """

    def is_wanted(row: WholeModelRow) -> bool:
        return keep(row) and is_trained_on(row, find_device)

    present = [
        name
        for name in sources
        if name not in missing_sources(corpus, sources)
        and any(is_wanted(row) for row in whole_model_rows(corpus, name))
    ]
    parts = [
        aggregate_table(
            name,
            corpus,
            op_time,
            find_device,
            keep=is_wanted,
            progress=progress,
        )
        for name in present
    ]
    kernels = kernel_table(corpus, op_time, find_device, seed, progress=progress)
    if parts and kernels is not None:
        parts.append(kernels)
    if not parts:
        raise InvalidData(f"{corpus}: no whole-model source; run `perfcast corpus build` first")
    table = joined_tables(parts)
    hosts = np.array([find_device(row.device).kind.is_host for row in table.rows])
    return {name: table.take(mask) for name, mask in ((DEVICE, ~hosts), (HOST, hosts)) if mask.any()}


def row_weights(table: AggregateTable) -> FloatArray:
    """(r,) weights, mean 1: the publisher's own, and less a row in crowded cells of one harness and chip."""
    own = np.array([row.weight for row in table.rows])
    cells = np.array(
        [
            f"{source} {row.device_group} {row.mode} {row.precision} {row.runtime}"
            for source, row in zip(table.source, table.rows, strict=True)
        ]
    )
    _, cell, count = np.unique(cells, return_inverse=True, return_counts=True)
    weight = own * count[cell] ** -_CROWDING
    return np.asarray(weight / weight.mean(), dtype=np.float64)


def group_folds(groups: NDArray[np.str_], count: int, seed: int) -> NDArray[np.intp]:
    """(r,) fold of each row: groups stay whole, folds get about equally many rows."""
    names, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(-(sizes + np.random.default_rng(seed).random(len(names))))
    fold, load = np.zeros(len(names), dtype=np.intp), np.zeros(count)
    for group in order:
        fold[group] = int(load.argmin())
        load[fold[group]] += sizes[group]
    return np.asarray(fold[index], dtype=np.intp)


def held_out_log_times(
    table: AggregateTable,
    fold: NDArray[np.intp],
    find_device: FindDevice,
    settings: BoostSettings,
    seed: int,
    *,
    progress: Progress = silent,
) -> FloatArray:
    """(r,) log times of every row, as timed by its source, from a fit to which its fold says nothing."""
    found = np.zeros(len(table))
    folds = np.unique(fold)
    if len(folds) < 2:
        raise InvalidData("all whole-model rows are of one group: nothing can be held out")
    refits = Refits(table, find_device, settings, seed)
    for done, number in enumerate(folds):
        progress("folds", done, len(folds))
        inside = fold == number
        found[inside] = refits.without(inside).log_times(table.take(inside), find_device, harness=True)
    progress("folds", len(folds), len(folds))
    return found


class Refits:
    """Fits of one table to which some of its rows say nothing; each starts from the fit of all."""

    def __init__(
        self, table: AggregateTable, find_device: FindDevice, settings: BoostSettings, seed: int
    ) -> None:
        """The table is kept; its prior is fitted on all rows, with a stump for a booster."""
        self._table, self._find, self._settings, self._seed = table, find_device, settings, seed
        self._weight = row_weights(table)
        self._start = fit_aggregate(
            table, find_device, replace(settings, rounds=1, depth=1), seed, weight=self._weight
        )

    def without(self, held: NDArray[np.bool_]) -> Fitted:
        """The fit without rows (r,)."""
        weight = np.where(held, 0.0, self._weight)
        return fit_aggregate(
            self._table, self._find, self._settings, self._seed, weight=weight, start=self._start
        )


def thinned(table: AggregateTable, one_in: int, crowded: int = _CROWDED) -> NDArray[np.bool_]:
    """(r,) all rows but, of sources with more than `crowded`, one in so many, the same every time."""
    names, source, count = np.unique(table.source, return_inverse=True, return_counts=True)
    del names
    marks = [f"{row.job} {row.batch} {row.device} {row.measured_s:.4g}" for row in table.rows]
    chosen = np.array([crc32(mark.encode()) % one_in == 0 for mark in marks])
    return np.asarray((count[source] < crowded) | chosen)


def fit_table(table: AggregateTable, find_device: FindDevice, settings: BoostSettings, seed: int) -> Fitted:
    """Prior and booster, rows weighted."""
    return fit_aggregate(table, find_device, settings, seed, weight=row_weights(table))


@dataclass(frozen=True, slots=True)
class _Held:
    """Log residuals, predicted over measured, of rows left out by family and by chip.

    `plain`: rows of sources without a harness; jobs of others are known to it when a chip is left out, but
    not when they are.
    """

    family: FloatArray
    chip: FloatArray
    source: NDArray[np.str_]
    chips: NDArray[np.str_]
    plain: NDArray[np.bool_]


def train_step_time(
    tables: Mapping[str, AggregateTable],
    find_device: FindDevice,
    seed: int,
    *,
    progress: Progress = silent,
) -> tuple[TrainedModel, dict[str, Json]]:
    """The stored model, and its errors on families and chips left out."""
    boosters: dict[str, bytes] = {}
    priors: dict[str, Json] = {}
    spreads: dict[str, Json] = {}
    metrics: dict[str, Json] = {}
    hidden: dict[str, Json] = {}
    for name, table in tables.items():
        light = table.take(thinned(table, _THINNING))
        held = _held(light, find_device, CALIBRATION[name], _OF_NEW[name], seed, progress)
        spreads[name] = {
            "known": grouped_quantile(held.family[held.plain], held.source[held.plain]),
            "new": grouped_quantile(held.chip, held.chips),
        }
        metrics[name] = {
            "held_out_families": _errors(held.family[held.plain]),
            "held_out_chips": _errors(held.chip),
            "rows": _counts(table),
        }
        fitted = fit_table(table, find_device, SETTINGS[name], seed)
        priors[name] = fitted.prior.to_json()
        stored = {name: fitted}
        if name == DEVICE:
            weight = row_weights(table)
            stored[UNSEEN] = boosted(fitted.prior, table, find_device, SETTINGS[UNSEEN], seed, weight)
        for trees, fit in stored.items():
            boosters[trees] = bytes(fit.booster.save_raw("ubj"))
            hidden[trees] = list(fit.hidden)
    timed = {name: timed_in(table.rows, find_device) for name, table in tables.items()}
    params: dict[str, Json] = {
        "feature_schema": schema_hash(),
        "priors": priors,
        "spreads": spreads,
        "timed": timed,
        "hidden": hidden,
    }
    return TrainedModel(boosters, params), metrics


def timed_in(rows: Iterable[WholeModelRow], find_device: FindDevice) -> list[Json]:
    """Devices and precisions in which whole iterations were timed; single kernels are not enough."""
    pairs = {(row.device, row.precision) for row in rows if row.family != KERNELS}
    return [TimedDevice.of(find_device(device), precision).to_json() for device, precision in sorted(pairs)]


def _held(
    table: AggregateTable,
    find_device: FindDevice,
    of_known: BoostSettings,
    of_new: BoostSettings,
    seed: int,
    progress: Progress,
) -> _Held:
    models = table.text("family") != KERNELS
    judged = models & np.isin(table.source, sorted(JUDGED))
    judged = judged if judged.any() else models
    residuals = []
    for name, folds, settings in (
        ("family", FAMILY_FOLDS, of_known),
        ("device_group", CHIP_FOLDS, of_new),
    ):
        groups = table.text(name)
        fold = group_folds(groups, min(folds, len(np.unique(groups))), seed)
        predicted = held_out_log_times(table, fold, find_device, settings, seed, progress=progress)
        residuals.append((predicted - table.log_time)[judged])
    by_family, by_chip = residuals
    source = table.source[judged]
    plain = np.isin(source, sorted(REFERENCES))
    plain = plain if plain.any() else ~plain
    return _Held(by_family, by_chip, source, table.text("device_group")[judged], plain)


def _errors(residual: FloatArray) -> dict[str, Json]:
    error = np.abs(np.expm1(residual))
    return {
        "mape": round(float(error.mean()), 6),
        "median": round(float(np.median(error)), 6),
        "n": int(error.size),
    }


def _counts(table: AggregateTable) -> dict[str, Json]:
    names, counts = np.unique(table.source, return_counts=True)
    return {str(name): int(count) for name, count in zip(names, counts, strict=True)}
