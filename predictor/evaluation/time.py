"""Iteration time on one device: model families, chips and models left out of every whole-model source.

Fits are those of training (models/steps/training.py), scored on their tables. T5 learns from timm's own
rows alone: other sources hold networks of the families that are left out. T1 and T3 learn
from a thinned table; what chips left out say is predictor.evaluation.time_chips.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from predictor.evaluation.few_rows import KNOWN, calibrated_errors, known_rows, micro_rows
from predictor.evaluation.neusight import read_cells
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, coverage_row, error_rows
from predictor.evaluation.time_chips import (
    ADA,
    ADA_DEVICE,
    LAMBDA,
    TORCHVISION,
    ChipsHeld,
    chips_left_out,
)
from predictor.evaluation.time_held import (
    SUITE,
    BoolArray,
    Held,
    TextArray,
    configurations,
    held_rows,
    joined_held,
    parts_of,
)
from predictor.evaluation.time_passes import PASSES, pass_rows, pass_seconds
from predictor.evaluation.whole_model_sources import (
    GOAL,
    known_cells,
    lambda_rows,
    machine_of,
    torchvision_rows,
    worst_cells,
)
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.calibration import grouped_quantile
from predictor.models.corpus import neusight_cells, timm
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.device_calibration import Sample, learn_prior
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.rows import AggregateTable
from predictor.models.steps.step_time import DEVICE
from predictor.models.steps.training import (
    CALIBRATION,
    SETTINGS,
    Refits,
    fit_table,
    group_folds,
    step_tables,
    thinned,
)
from predictor.models.train import OP_DEVICES, SEED
from predictor.types import Runtime

THINNING = 8
_FOLDS = 5
_DRAWS = 5
_WORST = 20


def time_suite(
    root: Path, corpus: Path, bundle: Bundle, progress: Progress = silent
) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows T1 to T8 and T11, and the worst cases. Raises InvalidData: corpus incomplete."""
    op_time = OpTimeModel.from_bundle(bundle)
    chips = chips_left_out(corpus, op_time, progress)
    rows = _ada_rows(chips)
    rows += lambda_rows(chips.as_timed[LAMBDA], "device", GOAL)
    rows += torchvision_rows(chips.as_timed[TORCHVISION], "device", GOAL)
    for source, identity, rows_of in ((LAMBDA, "T7", lambda_rows), (TORCHVISION, "T8", torchvision_rows)):
        rows += rows_of(chips.plain[source], "device, harness unknown", None)
        rows += known_rows(known_cells(chips.as_timed[source]), identity, SUITE, machine_of)
    rows += _chip_rows(chips, root)
    tables = step_tables(corpus, op_time, find_device, seed=SEED, progress=progress)
    rows += _model_rows(*_models(tables[DEVICE], progress), root)
    families = {name: _families(table, name, progress) for name, table in tables.items()}
    known = joined_held(list(families.values()))
    rows += _family_rows(known)
    rows += _coverage_rows(families, chips)
    worst = [
        worst_cells(f"{source}: worst cells, GPU held out", chips.as_timed[source])
        for source in (LAMBDA, TORCHVISION)
    ]
    worst_ada = _worst("Worst cases, RTX 4090 left out", chips.ada)
    return rows, [_worst("Worst cases, family left out", known), worst_ada, *worst]


def _families(table: AggregateTable, name: str, progress: Progress) -> Held:
    """timm rows, each by a fit without its family."""
    own = table.take(table.source == timm.SOURCE)
    fold = group_folds(own.text("family"), _FOLDS, SEED)
    found = np.zeros(len(own))
    for number in range(_FOLDS):
        progress(f"families left out on {name}", number, _FOLDS)
        fitted = fit_table(own.take(fold != number), find_device, SETTINGS[name], SEED)
        found[fold == number] = fitted.log_times(own.take(fold == number), find_device)
    progress(f"families left out on {name}", _FOLDS, _FOLDS)
    return Held(own, found)


def _family_rows(held: Held) -> list[EvaluationRow]:
    rows = held_rows("T5", "family", "timm", held, goals=(0.07, 0.045))
    groups = np.array([text.rsplit(" ", 1)[0] for text in configurations(held.table)])
    for group in np.unique(groups):
        rows += held_rows("T5", "family", str(group), held.take(groups == group))
    orders = [_rank_correlation(held.take(part)) for part in parts_of(configurations(held.table))]
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
    taus = [_kendall(held.take(part)) for part in parts_of(held.table.text("family"), least=10)]
    rows.append(
        EvaluationRow(
            "T5", SUITE, "family", "timm, mean of families", "kendall", float(np.mean(taus)), None, len(taus)
        )
    )
    return rows


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


def _ada_rows(chips: ChipsHeld) -> list[EvaluationRow]:
    held = chips.ada
    rows = held_rows("T6", "device", "rtx4090, nothing measured", held, goals=(0.10, None))
    for runtime in (Runtime.EAGER, Runtime.COMPILED):
        part = np.array([row.runtime is runtime for row in held.table.rows])
        rows += held_rows("T6", "device", f"rtx4090, {runtime}, nothing measured", held.take(part))
    prior = learn_prior(_other_machines(chips))
    names = configurations(held.table)
    errors = calibrated_errors(chips.ada_samples, names, ADA_DEVICE, prior, 5, _DRAWS)
    rows += error_rows(
        errors, id="T6", suite=SUITE, hold="device", group="rtx4090, 5 rows a configuration", goal_mean=0.07
    )
    shift = _anchor_shifts(held, chips.anchor)
    runtimes = {row.runtime for row in chips.anchor.table.rows}
    alone = np.array([row.runtime not in runtimes for row in held.table.rows])
    parts = {}
    for label, chosen in (("runs with an anchor", ~np.isnan(shift)), ("compiled, no anchor", alone)):
        places = map(int, np.flatnonzero(chosen))
        samples = [_moved(chips.ada_samples[i], 0.0 if alone[i] else shift[i]) for i in places]
        parts[label] = calibrated_errors(samples, names[chosen], ADA_DEVICE, prior, 20, _DRAWS)
    for label, errors, goal in (
        ("anchored, 20 rows", np.concatenate(list(parts.values())), 0.045),
        *((f"anchored, 20 rows: {label}", errors, None) for label, errors in parts.items()),
    ):
        rows += error_rows(
            errors, id="T6", suite=SUITE, hold="device", group=f"rtx4090, {label}", goal_mean=goal
        )
    return rows


def _other_machines(chips: ChipsHeld) -> list[list[Sample]]:
    """Jobs of each machine that is no RTX 4090, as fits without its chip see them."""
    cells = [*chips.known, *(cell for found in chips.as_timed.values() for cell in known_cells(found))]
    machines: dict[Hashable, list[Sample]] = defaultdict(list)
    for cell in cells:
        if cell.row.device_group != ADA:
            machines[machine_of(cell.row)].append(cell.sample)
    return [samples for samples in machines.values() if len(samples) > KNOWN]


def _moved(sample: Sample, log: float) -> Sample:
    factor = float(np.exp(log))
    return replace(sample, kernel_s=sample.kernel_s * factor, host_s=sample.host_s * factor)


def _anchor_shifts(held: Held, old: Held) -> FloatArray:
    """(r,) log(measured / predicted) of the same graph on the older card, by the fit without the new one.

    Of the same mode, runtime, layout and, as near as there is one, framework version; NaN where it was not
    timed so.
    """
    best: dict[tuple[str, ...], tuple[float, float]] = {}
    for row, residual in zip(old.table.rows, old.residual, strict=True):
        key = _anchor_key(row)
        if key not in best or row.framework_version > best[key][1]:
            best[key] = (-float(residual), row.framework_version)
    return np.array([best.get(_anchor_key(row), (np.nan, 0.0))[0] for row in held.table.rows])


def _anchor_key(row: WholeModelRow) -> tuple[str, ...]:
    return row.graph, str(row.mode), str(row.runtime), str(row.layout)


def _models(table: AggregateTable, progress: Progress) -> tuple[Held, FloatArray]:
    """NeuSight cells, each by a fit without its model, of a thinned table; (r, 2) seconds of their passes."""
    light = table.take(thinned(table, THINNING))
    cells = light.source == neusight_cells.SOURCE
    names = light.text("model")
    found, passes_s = np.zeros(len(light)), np.zeros((len(light), len(PASSES)))
    chosen = np.unique(names[cells])
    refits = Refits(light, find_device, CALIBRATION[DEVICE], SEED)
    for done, name in enumerate(chosen):
        progress("models left out", done, len(chosen))
        inside = cells & (names == name)
        fitted, own = refits.without(inside), light.take(inside)
        found[inside], passes_s[inside] = fitted.log_times(own, find_device), pass_seconds(fitted, own)
    return Held(light.take(cells), found[cells]), passes_s[cells]


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


def _model_rows(held: Held, passes_s: FloatArray, root: Path) -> list[EvaluationRow]:
    table = held.table
    eager, own = _is_eager(table), np.isin(table.text("device"), OP_DEVICES)
    scored = own & eager & _published(table, root)
    rows = held_rows("T1", "model", "unfused, GPUs with operator data", held.take(scored), goals=(0.05, None))
    for device in np.unique(table.text("device")[scored]):
        part = scored & (table.text("device") == device)
        rows += held_rows("T1", "model", str(device), held.take(part))
    rows += pass_rows(table, passes_s, root)
    return rows + held_rows("T3", "model", "compiled", held.take(~eager), goals=(0.08, None))


def _chip_rows(chips: ChipsHeld, root: Path) -> list[EvaluationRow]:
    held, table = chips.cells, chips.cells.table
    names, eager = table.text("device"), _is_eager(table)
    amd = np.char.startswith(names, "mi")
    scored = ~amd & eager & _published(table, root)
    rows = held_rows("T2", "device", "every GPU in turn", held.take(scored), goals=(0.12, None))
    for name in np.unique(names[scored]):
        goal = 0.09 if name.startswith("l4") else None
        rows += held_rows("T2", "device", str(name), held.take(scored & (names == name)), goals=(goal, None))
    rows += known_rows(chips.known, "T2", SUITE, _device_of, least=10, goal=0.05)
    rows += micro_rows(chips.known, chips.micro, "T2", SUITE, goal=0.09)
    rows += held_rows("T4", "device", "AMD, the other card's labels", held.take(amd), goals=(0.10, 0.08))
    for name in np.unique(names[amd]):
        rows += held_rows("T4", "device", str(name), held.take(names == name))
    return rows


def _device_of(row: WholeModelRow) -> str:
    return row.device


def _coverage_rows(families: Mapping[str, Held], chips: ChipsHeld) -> list[EvaluationRow]:
    """Intervals of 90 % whose half-widths come from groups that are not scored."""
    rows: list[EvaluationRow] = []
    for name, held in families.items():
        label = "known device, new family" if name == DEVICE else "known processor, new family"
        rows += _cross_coverage(held, held.table.text("family"), label, 1.25)
    on_lambda = chips.timed.take(chips.timed.table.source == LAMBDA)
    new = joined_held([chips.ada, chips.cells, on_lambda])
    rows += _cross_coverage(new, new.table.text("device_group"), "new device", 1.45)
    hosts = chips.timed.take(chips.timed.table.source == TORCHVISION)
    label = "new device, small batches on an unknown host"
    return rows + _cross_coverage(hosts, hosts.table.text("device_group"), label, None)


def _cross_coverage(held: Held, groups: TextArray, label: str, goal: float | None) -> list[EvaluationRow]:
    names = np.unique(groups)
    if len(names) < 2:
        return []
    inside, widths = np.zeros(len(groups), dtype=np.bool_), np.zeros(len(groups))
    for name in names:
        own = groups == name
        widths[own] = grouped_quantile(held.residual[~own], groups[~own])
        inside[own] = np.abs(held.residual[own]) <= widths[own]
    rows = coverage_row(inside, id="T11", suite=SUITE, hold="group", group=label)
    # One group may hold most rows; the widths promise the share of an average group.
    alike = float(np.mean([inside[groups == name].mean() for name in names]))
    rows.append(
        EvaluationRow("T11", SUITE, "group", f"{label}, groups alike", "coverage", alike, None, len(names))
    )
    width = float(np.exp(np.median(widths)))
    return [*rows, EvaluationRow("T11", SUITE, "group", label, "median_factor", width, goal, len(groups))]


def _worst(title: str, held: Held) -> Table:
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
    return Table(title, header, tuple(lines))
