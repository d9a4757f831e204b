"""Single operators: kernels on chips left out (T9), shapes left out on known devices (T10).

T9: every chip of the aiconfigurator tables is left out with its near-twin (H100 and H200; B200 and GB200) and
judged by boosters that saw the other chips only; `layer gemm` are vidur's products inside running layers,
`experts` whole layers of one rank, `state convolution` and `linear attention` the parts of layers with a
state. The library that ran is known, as a user knows what serves a model; rows that end in `library untold`
hide it. `twin known` leaves one board out alone. T10: shapes of the same tables and of NeuSight's, on devices
that the boosters know. Intervals are calibrated on the chips other than the judged one, by situation (types
below 16 bits, short kernels); the row `new chips` pools them; those of new shapes on the other half of the
shapes. Intel's B60, timed through its host, is apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, coverage_row, error_rows
from predictor.features.programs.work import Family
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.models.calibration import grouped_quantile
from predictor.models.corpus.build import Progress, read_index, silent
from predictor.models.ops.kernel_tables import TWINS, KernelTable, joined, load_kernel_tables
from predictor.models.ops.kernel_time import GENERAL, situations
from predictor.models.ops.kernel_training import (
    THIN,
    Judged,
    fit_booster,
    held_out_chips,
    held_out_shapes,
    judge,
)
from predictor.models.ops.op_rows import load_tables
from predictor.models.ops.op_training import SETTINGS, Residuals
from predictor.models.ops.op_training import held_out_shapes as vector_shapes
from predictor.models.train import KERNEL_DEVICES, KERNEL_SOURCES, OP_DEVICES, OP_SOURCE, SEED

SUITE = "ops"
_CHIP, _SHAPE = "chip and near-twin", "shape"
_GOAL: Mapping[str, float] = {"gemm": 0.10, "attention": 0.12}
_SHAPE_GOAL: Mapping[str, float] = {
    "gemm": 0.04,
    Family.MATMUL.value: 0.04,
    Family.ELEMENTWISE.value: 0.02,
    Family.NORMALIZATION.value: 0.06,
    Family.SOFTMAX.value: 0.06,
}
_APART = "arc-pro-b60-24gb"
# Latent attention (MLA) is reported beside attention: its kernels are of another kind.
_GROUPS: Mapping[str, str] = {
    "gemm": "gemm",
    # vidur's products inside running layers.
    "layer": "layer gemm",
    "prefill": "attention",
    "decode": "attention",
    "encoder": "attention",
    "latent_prefill": "latent attention",
    "latent_decode": "latent attention",
    "experts": "experts",
    "causal_conv": "state convolution",
    "delta_rule": "linear attention",
}

Bools = NDArray[np.bool_]


def score_kernels(corpus: Path, progress: Progress = silent) -> list[EvaluationRow]:
    """Rows of T9, and those of T10 that the same tables answer. Raises InvalidData: corpus incomplete."""
    devices = {name: find_device(name) for name in (*KERNEL_DEVICES, _APART)}
    tables = load_kernel_tables(corpus, KERNEL_SOURCES, devices)
    rows: list[EvaluationRow] = []
    for done, (model, table) in enumerate(tables.items()):
        progress(f"kernels: {model}", done, len(tables))
        known = table.take(table.device != _APART)
        apart = table.take(table.device == _APART)
        chips = held_out_chips(known, devices, SEED)
        rows += _chip_rows(known, chips, "told", "")
        rows += _chip_rows(known, chips, "untold", ", library untold")
        alone = replace(known, chip=known.device)
        twins = np.unique(known.device[np.isin(known.chip, list(TWINS.values()))]).tolist()
        judged = held_out_chips(alone, devices, SEED, only=twins)
        rows += _chip_rows(known, judged, "told", ", twin known")
        rows += _apart_rows(known, apart, devices)
        rows += _shape_rows(known, held_out_shapes(known, devices, SEED, folds=1))
    progress("kernels", len(tables), len(tables))
    return rows


def _chip_rows(table: KernelTable, judged: Judged, which: str, suffix: str) -> list[EvaluationRow]:
    residual = getattr(judged, which)
    device, chip = table.device[judged.rows], table.chip[judged.rows]
    kind = np.array([_GROUPS[name] for name in table.subset[judged.rows].tolist()])
    rows = []
    for group in dict.fromkeys(_GROUPS.values()):
        for name in np.unique(device[kind == group]).tolist():
            chosen = (kind == group) & (device == name)
            goal = _GOAL.get(group) if not suffix else None
            rows += _errors(residual[chosen], "T9", _CHIP, f"{group}:{name}{suffix}", goal)
    inside = _within(table, judged, residual, chip)
    for name in np.unique(chip).tolist():
        rows += _coverage(inside[chip == name], f"{table.model}:{name}{suffix}")
    return [*rows, *_coverage(inside, f"{table.model}: new chips{suffix}")]


def _within(
    table: KernelTable, judged: Judged, residual: FloatArray, side: NDArray[np.str_] | NDArray[np.intp]
) -> Bools:
    """(n,) whether intervals that the other sides' residuals give, by situation, hold the rows of a side."""
    group = np.char.add(table.chip[judged.rows], table.subset[judged.rows])
    place = situations(table.model, table.features, table.compute)[judged.rows]
    inside = np.zeros(len(residual), dtype=np.bool_)
    for name, code in sorted(set(zip(side.tolist(), place.tolist(), strict=True))):
        own, others = (side == name) & (place == code), (side != name) & (place == code)
        # What no other side shows is judged by all that they show.
        others = others if others.any() else side != name
        inside[own] = np.abs(residual[own]) <= grouped_quantile(residual[others], group[others])
    return inside


def _coverage(inside: Bools, group: str, hold: str = _CHIP) -> list[EvaluationRow]:
    return coverage_row(inside, id="T11", suite=SUITE, hold=hold, group=group)


def _apart_rows(
    known: KernelTable, apart: KernelTable, devices: Mapping[str, DeviceSpec]
) -> list[EvaluationRow]:
    if not len(apart):
        return []
    fitted = fit_booster(known, GENERAL, devices, SEED, thin=THIN)
    both = joined([known, apart])
    seen = both.device != _APART
    judged = judge(fitted, both, GENERAL, devices, np.flatnonzero(~seen), seen)
    return _errors(judged.told, "T9", _CHIP, f"{known.model}:{_APART}, apart", None)


def _shape_rows(table: KernelTable, judged: Judged) -> list[EvaluationRow]:
    kind = np.array([_GROUPS[name] for name in table.subset[judged.rows].tolist()])
    device = table.device[judged.rows]
    rows = []
    for group in dict.fromkeys(_GROUPS.values()):
        chosen = kind == group
        if not chosen.any():
            continue
        goal = _SHAPE_GOAL.get(group)
        rows += _errors(judged.told[chosen], "T10", _SHAPE, group, goal)
        for name in np.unique(device[chosen]).tolist():
            label = f"{group}:{name}, new shapes"
            rows += _errors(judged.told[chosen & (device == name)], "T10", _SHAPE, label, None)
    # Half of the shapes by the widths that the other half asks for.
    inside = _within(table, judged, judged.told, table.shape[judged.rows] % 2)
    return [*rows, *_coverage(inside, f"{table.model}: new shapes", _SHAPE)]


def score_vectors(corpus: Path, progress: Progress = silent) -> list[EvaluationRow]:
    """Rows of T10 on NeuSight's operators, family by family. Raises InvalidData: corpus incomplete."""
    tables = load_tables(corpus, OP_SOURCE, {name: find_device(name) for name in OP_DEVICES})
    rows: list[EvaluationRow] = []
    for done, (family, table) in enumerate(tables.items()):
        progress(f"shapes: {family}", done, len(tables))
        found = vector_shapes(table, SETTINGS[family], SEED)
        rows += _errors(found.value, "T10", _SHAPE, f"neusight {family}", _SHAPE_GOAL.get(family.value))
        rows += _vector_coverage(found, family)
    progress("shapes", len(tables), len(tables))
    return rows


def _vector_coverage(found: Residuals, family: Family) -> list[EvaluationRow]:
    """Coverage of half of the rows by the width that the other half asks for, and the reverse."""
    half = np.arange(len(found.value)) % 2 == 0
    inside = np.zeros(len(found.value), dtype=np.bool_)
    for judged in (half, ~half):
        width = grouped_quantile(found.value[~judged], found.group[~judged])
        inside[judged] = np.abs(found.value[judged]) <= width
    return coverage_row(inside, id="T11", suite=SUITE, hold=_SHAPE, group=f"neusight {family}")


def counts_table(corpus: Path) -> Table:
    """What became of the rows of each source."""
    lines = [
        (entry.source, reason, str(count))
        for entry in read_index(corpus)
        if entry.source in (*KERNEL_SOURCES, OP_SOURCE)
        for reason, count in (entry.counts or {"used": entry.rows}).items()
    ]
    return Table("Rows", ("source", "what became of them", "rows"), tuple(lines))


def _errors(
    residual: NDArray[np.float64], id: str, hold: str, group: str, goal: float | None
) -> list[EvaluationRow]:
    # Residuals are log(predicted / measured); errors are relative to the measured time.
    return error_rows(
        np.abs(np.expm1(residual)), id=id, suite=SUITE, hold=hold, group=group, goal_median=goal
    )
