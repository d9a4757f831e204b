"""Iteration time on one device: model families, chips and models left out of every whole-model source.

Fits are those of training (predictor.models.step_training), scored on their tables. T5 learns from timm's own
rows alone: other sources hold networks of the families that are left out. T1 to T4 learn from a thinned table
(every THINNING-th row of crowded sources), so that each of fifteen fits takes seconds; a chip that is left
out is priced by an op-level model that never saw it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.neusight import read_cells
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, coverage_row, error_rows
from predictor.features.tiles import FloatArray
from predictor.hardware.catalog import find_device
from predictor.models.aggregate_kernels import FAMILY as KERNELS
from predictor.models.aggregate_rows import AggregateTable, aggregate_table, joined_tables
from predictor.models.aggregate_training import Fitted
from predictor.models.bundle import Bundle
from predictor.models.calibration import Spread, grouped_quantile
from predictor.models.corpus import neusight_cells, timm
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.op_rows import load_tables
from predictor.models.op_time import OpTimeModel
from predictor.models.op_training import fit_op_time
from predictor.models.step_time import DEVICE
from predictor.models.step_training import (
    CALIBRATION,
    SETTINGS,
    fit_table,
    group_folds,
    held_out_log_times,
    step_tables,
)
from predictor.models.train import OP_DEVICES, OP_SOURCE, SEED
from predictor.types import Runtime

SUITE = "time"
THINNING = 8
_CROWDED = 4000
_FOLDS = 5
_DRAWS = 5
_WORST = 20
_ADA = "rtx4090"
_ANCHOR = "rtx3090"

BoolArray = NDArray[np.bool_]
TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Held:
    """Iterations with the log times of fits that never saw their group."""

    table: AggregateTable
    log_time: FloatArray

    @property
    def residual(self) -> FloatArray:
        """(r,) log of predicted over measured."""
        return self.log_time - self.table.log_time

    @property
    def error(self) -> FloatArray:
        """(r,) absolute relative error."""
        return np.abs(np.expm1(self.residual))

    def take(self, chosen: BoolArray) -> Held:
        """The chosen iterations."""
        return Held(self.table.take(chosen), self.log_time[chosen])


def time_suite(
    root: Path, corpus: Path, bundle: Bundle, progress: Progress = silent
) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows T1 to T6 and T11, and the worst cases. Raises InvalidData: corpus incomplete."""
    op_time = OpTimeModel.from_bundle(bundle)
    tables = step_tables(corpus, op_time, find_device, seed=SEED, progress=progress)
    families = {name: _families(table, name, progress) for name, table in tables.items()}
    known = _joined(list(families.values()))
    rows = _family_rows(known)
    ada, fitted = _chip(tables[DEVICE], _ADA, SEED)
    rows += _ada_rows(ada, fitted, tables[DEVICE])
    light = tables[DEVICE].take(_thinned(tables[DEVICE]))
    models = _models(light, progress)
    rows += _model_rows(models, root)
    chips = _chips(light, corpus, root, progress)
    rows += _chip_rows(chips, root)
    rows += _coverage_rows(families, _joined([ada, chips]), tables)
    return rows, [_worst(known)]


def _joined(parts: Sequence[Held]) -> Held:
    return Held(joined_tables([part.table for part in parts]), np.concatenate([p.log_time for p in parts]))


def _families(table: AggregateTable, name: str, progress: Progress) -> Held:
    """timm rows, each by a fit without its family."""
    own = table.take(table.source == timm.SOURCE)
    fold = group_folds(own.text("family"), _FOLDS, SEED)
    return Held(own, held_out_log_times(own, fold, find_device, SETTINGS[name], SEED, progress=progress))


def configurations(table: AggregateTable) -> TextArray:
    """(r,) chip, mode, runtime, layout and framework version of each iteration."""
    return np.array(
        [
            f"{row.device_group} {row.mode} {row.runtime} {row.layout} {row.framework_version:.2f}"
            for row in table.rows
        ]
    )


def _family_rows(held: Held) -> list[EvaluationRow]:
    rows = _errors("T5", "family", "timm", held, goals=(0.07, 0.045))
    groups = np.array([text.rsplit(" ", 1)[0] for text in configurations(held.table)])
    for group in np.unique(groups):
        rows += _errors("T5", "family", str(group), held.take(groups == group))
    orders = [_rank_correlation(held.take(part)) for part in _parts(configurations(held.table))]
    rows.append(
        EvaluationRow(
            "T5",
            SUITE,
            "family",
            "timm, least inside a configuration",
            "spearman",
            min(orders),
            0.95,
            len(orders),
        )
    )
    taus = [_kendall(held.take(part)) for part in _parts(held.table.text("family"), least=10)]
    rows.append(
        EvaluationRow(
            "T5", SUITE, "family", "timm, mean of families", "kendall", float(np.mean(taus)), None, len(taus)
        )
    )
    return rows


def _parts(groups: TextArray, least: int = 2) -> list[BoolArray]:
    return [groups == name for name in np.unique(groups) if (groups == name).sum() >= least]


def _rank_correlation(held: Held) -> float:
    ranks = [
        np.argsort(np.argsort(values)) for values in (_per_sample(held, held.log_time), _per_sample(held))
    ]
    table: FloatArray = np.atleast_2d(np.corrcoef(np.array(ranks, dtype=np.float64)))
    return float(table[0, 1])


def _per_sample(held: Held, log_time: FloatArray | None = None) -> FloatArray:
    batch = np.log([row.batch for row in held.table.rows])
    return (held.table.log_time if log_time is None else log_time) - batch


def _kendall(held: Held) -> float:
    x, y = _per_sample(held, held.log_time), _per_sample(held)
    same = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    pairs = len(x) * (len(x) - 1)
    return float(same.sum() / pairs)


def _chip(table: AggregateTable, chip: str, seed: int) -> tuple[Held, Fitted]:
    """All timm iterations on a chip, by a fit without the chip in any source; and that fit."""
    chips = table.text("device_group")
    fitted = fit_table(table.take(chips != chip), find_device, CALIBRATION[DEVICE], seed)
    own = table.take((chips == chip) & (table.source == timm.SOURCE))
    return Held(own, fitted.log_times(own, find_device)), fitted


def _ada_rows(held: Held, fitted: Fitted, table: AggregateTable) -> list[EvaluationRow]:
    groups = configurations(held.table)
    rows = _errors("T6", "device", "rtx4090, nothing measured", held, goals=(0.10, None))
    scaled = _scaled(held, groups, 5)
    rows += error_rows(
        scaled, id="T6", suite=SUITE, hold="device", group="rtx4090, 5 rows a configuration", goal_mean=0.07
    )
    anchored = _anchored(held, fitted, table)
    errors = _scaled(anchored, configurations(anchored.table), 20)
    rows += error_rows(
        errors, id="T6", suite=SUITE, hold="device", group="rtx4090, anchored, 20 rows", goal_mean=0.045
    )
    return rows


def _scaled(held: Held, groups: TextArray, count: int) -> FloatArray:
    """Errors after one factor a group from `count` measured rows, which are not scored; several draws."""
    random = np.random.default_rng(SEED)
    errors = []
    for part in _parts(groups, least=2 * count):
        residual = held.residual[part]
        for _ in range(_DRAWS):
            order = random.permutation(len(residual))
            seen, rest = order[:count], order[count:]
            errors.append(np.abs(np.expm1(residual[rest] - np.median(residual[seen]))))
    return np.concatenate(errors)


def _anchored(held: Held, fitted: Fitted, table: AggregateTable) -> Held:
    """The same graphs measured on the older card: its time, times the ratio of two predictions.

    Both predictions come from the fit that never saw the new card; the older card's time is per sample and
    from the same mode, layout and, as near as there is one, framework version.
    """
    old = table.take((table.text("device_group") == _ANCHOR) & (table.source == timm.SOURCE))
    predicted = fitted.log_times(old, find_device)
    best: dict[tuple[str, str, str], tuple[float, float]] = {}
    for i, row in enumerate(old.rows):
        key = (row.graph, str(row.mode), str(row.layout))
        if key not in best or row.framework_version > best[key][1]:
            best[key] = (float(old.log_time[i] - predicted[i]), row.framework_version)
    shift = np.array(
        [best.get((row.graph, str(row.mode), str(row.layout)), (np.nan, 0.0))[0] for row in held.table.rows]
    )
    usable = ~np.isnan(shift)
    part = held.take(usable)
    return Held(part.table, part.log_time + shift[usable])


def _thinned(table: AggregateTable) -> BoolArray:
    _, source, count = np.unique(table.source, return_inverse=True, return_counts=True)
    place = np.arange(len(table))
    kernels = table.text("family") == KERNELS
    return np.asarray((count[source] < _CROWDED) | kernels | (place % THINNING == 0))


def _models(light: AggregateTable, progress: Progress) -> Held:
    """NeuSight cells, each by a fit without its model."""
    cells = light.source == neusight_cells.SOURCE
    names = light.text("model")
    found = np.zeros(len(light))
    chosen = np.unique(names[cells])
    for done, name in enumerate(chosen):
        progress("models left out", done, len(chosen))
        inside = cells & (names == name)
        fitted = fit_table(light.take(~inside), find_device, CALIBRATION[DEVICE], SEED)
        found[inside] = fitted.log_times(light.take(inside), find_device)
    return Held(light.take(cells), found[cells])


def _published(table: AggregateTable, root: Path) -> BoolArray:
    """(r,) whether NeuSight published a prediction of the cell."""
    known = {
        (cell.device_id, cell.model, cell.mode == "train", cell.sequence, cell.batch, cell.option)
        for cell in read_cells(root / "neusight")
        if "neusight" in cell.published_s and cell.option in ("", "fusion")
    }
    return np.array(
        [
            (
                row.device,
                row.model,
                row.mode == "train",
                int(row.graph.rsplit("-", 1)[1]),
                row.batch,
                "fusion" if row.runtime is Runtime.COMPILED else "",
            )
            in known
            for row in table.rows
        ]
    )


def _is_eager(table: AggregateTable) -> BoolArray:
    return np.array([row.runtime is Runtime.EAGER for row in table.rows])


def _model_rows(held: Held, root: Path) -> list[EvaluationRow]:
    table = held.table
    eager, own = _is_eager(table), np.isin(table.text("device"), OP_DEVICES)
    scored = own & eager & _published(table, root)
    rows = _errors("T1", "model", "unfused, GPUs with operator data", held.take(scored), goals=(0.05, None))
    for device in np.unique(table.text("device")[scored]):
        part = scored & (table.text("device") == device)
        rows += _errors("T1", "model", str(device), held.take(part))
    return rows + _errors("T3", "model", "compiled", held.take(~eager), goals=(0.08, None))


def _chips(light: AggregateTable, corpus: Path, root: Path, progress: Progress) -> Held:
    """NeuSight cells, each by a fit without its chip, priced by an op-level model without it."""
    devices = {name: find_device(name) for name in OP_DEVICES}
    op_tables = load_tables(corpus, OP_SOURCE, devices)
    spreads = {family: Spread(1.0, 1.0) for family in op_tables}
    cells = light.source == neusight_cells.SOURCE
    names = sorted(set(light.text("device")[cells]))
    parts = []
    for done, name in enumerate(names):
        progress("chips left out", done, len(names))
        fitted = fit_table(
            light.take(light.text("device_group") != chip_of(name)), find_device, CALIBRATION[DEVICE], SEED
        )
        if name in devices:
            kept = {key: spec for key, spec in devices.items() if key != name}
            smaller = {family: table.take(table.device != name) for family, table in op_tables.items()}
            blind = OpTimeModel.from_trained(fit_op_time(smaller, kept, spreads, SEED))
            own = aggregate_table(
                neusight_cells.SOURCE, corpus, blind, find_device, keep=partial(_is_on, name)
            )
        else:
            own = light.take(cells & (light.text("device") == name))
        parts.append(Held(own, fitted.log_times(own, find_device)))
    return _joined(parts)


def _is_on(device: str, row: WholeModelRow) -> bool:
    return row.device == device


def _chip_rows(held: Held, root: Path) -> list[EvaluationRow]:
    table = held.table
    names, eager = table.text("device"), _is_eager(table)
    amd = np.char.startswith(names, "mi")
    scored = ~amd & eager & _published(table, root)
    rows = _errors("T2", "device", "every GPU in turn", held.take(scored), goals=(0.12, None))
    for name in np.unique(names[scored]):
        goal = 0.09 if name.startswith("l4") else None
        rows += _errors("T2", "device", str(name), held.take(scored & (names == name)), goals=(goal, None))
    rows += _errors("T4", "device", "AMD, the other card's labels", held.take(amd), goals=(0.10, 0.08))
    for name in np.unique(names[amd]):
        rows += _errors("T4", "device", str(name), held.take(names == name))
    return rows


def _coverage_rows(
    families: Mapping[str, Held], new: Held, tables: Mapping[str, AggregateTable]
) -> list[EvaluationRow]:
    """Intervals of 90 % whose half-widths come from groups that are not scored."""
    rows: list[EvaluationRow] = []
    for name, held in families.items():
        label = "known device, new family" if name == DEVICE else "known processor, new family"
        rows += _cross_coverage(held, held.table.text("family"), label, 1.25)
    rows += _cross_coverage(new, new.table.text("device_group"), "new device", 1.45)
    return rows


def _cross_coverage(held: Held, groups: TextArray, label: str, goal: float) -> list[EvaluationRow]:
    inside, widths = np.zeros(len(groups), dtype=np.bool_), np.zeros(len(groups))
    for name in np.unique(groups):
        own = groups == name
        widths[own] = grouped_quantile(held.residual[~own], groups[~own])
        inside[own] = np.abs(held.residual[own]) <= widths[own]
    rows = coverage_row(inside, id="T11", suite=SUITE, hold="group", group=label)
    width = float(np.exp(np.median(widths)))
    return [*rows, EvaluationRow("T11", SUITE, "group", label, "median_factor", width, goal, len(groups))]


def _errors(
    identity: str, hold: str, group: str, held: Held, goals: tuple[float | None, float | None] = (None, None)
) -> list[EvaluationRow]:
    rows = error_rows(
        held.error, id=identity, suite=SUITE, hold=hold, group=group, goal_mean=goals[0], goal_median=goals[1]
    )
    if rows:
        bias = float(held.residual.mean())
        rows.append(EvaluationRow(identity, SUITE, hold, group, "log_bias", bias, None, len(held.error)))
    return rows


def _worst(held: Held) -> Table:
    order = np.argsort(-np.abs(held.residual))[:_WORST]
    groups = configurations(held.table)
    lines = []
    for i in order:
        row = held.table.rows[i]
        seconds = np.exp([held.table.log_time[i], held.log_time[i]])
        lines.append(
            (
                row.graph,
                str(groups[i]),
                str(row.batch),
                f"{1e3 * seconds[0]:.1f}",
                f"{1e3 * seconds[1]:.1f}",
                f"{100 * (seconds[1] / seconds[0] - 1):+.0f} %",
            )
        )
    header = ("model", "configuration", "batch", "measured ms", "predicted ms", "error")
    return Table("Worst cases, family left out", header, tuple(lines))
