"""Training steps of NVIDIA's examples (Lambda, T7) and torchvision steps on six cards (T8), GPU held out.

Cells are asked through the public Predictor (suite `sources`), or come from fits without their chip (suite
`time`, predictor.evaluation.time_chips). Equal systems are one cell, their median. Rows of several GPUs and
of double precision are reported and have no goal: DataParallel copies the model at each step, which no plan
here describes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from predictor.api import Predictor
from predictor.errors import PerfcastError
from predictor.evaluation.few_rows import KnownCell
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, absolute_errors, scored_rows
from predictor.features.graph import Graph
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceKind
from predictor.models.corpus import lambda_pytorch, pytorch_gpu_benchmark
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.manifest import load_manifest
from predictor.models.corpus.whole_model import (
    READERS,
    WholeModelRow,
    reader,
    source_graph,
)
from predictor.models.device_calibration import Sample, predicted_s
from predictor.models.steps.rows import AggregateTable
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Precision

LAMBDA, TORCHVISION = lambda_pytorch.SOURCE, pytorch_gpu_benchmark.SOURCE
GOAL = 0.12
SUITE = "time"
THINNING = 8
"""One in so many timm rows is learned from, so that each fit takes seconds."""
_WORST = 20
_SEVERAL_GPUS = 150
"""About how many cells of several GPUs are asked."""

Answer = tuple[float, float, float]
"""Seconds: value, low, high."""


@dataclass(frozen=True, slots=True)
class ScoredCell:
    """Equal rows: one of them, their median time, and the answer or the reason why there is none.

    `sample`: the job for a calibration, where a fit answered.
    """

    row: WholeModelRow
    measured_s: float
    answer: Answer | None
    reason: str = ""
    sample: Sample | None = None


def cells_of(rows: Iterable[WholeModelRow]) -> list[tuple[WholeModelRow, float]]:
    """Rows that are one question, with the median of their times."""
    groups: dict[object, list[WholeModelRow]] = defaultdict(list)
    for row in rows:
        groups[row.job, row.batch, row.device, row.devices, row.framework_version].append(row)
    return [(group[0], float(np.median([row.measured_s for row in group]))) for group in groups.values()]


def zero_shot(
    source: str,
    root: Path,
    predictor: Predictor,
    *,
    keep: Callable[[WholeModelRow], bool] = lambda row: True,
    progress: Progress = silent,
) -> list[ScoredCell]:
    """Cells of a source asked through the public Predictor: all of one GPU, every few of several."""
    cells = _asked([row for row in reader(source).read_rows(root / source).rows if keep(row)])
    graphs: dict[object, Graph] = {}
    scored: list[ScoredCell] = []
    for done, (row, measured_s) in enumerate(cells):
        progress(f"zero-shot {source}", done, len(cells))
        key = (row.graph, row.batch, row.mode)
        if key not in graphs:
            graphs[key] = source_graph(source, root, *key)
        try:
            found = predictor.predict(request_of(row, graphs[key])).iteration_time_s
        except PerfcastError as error:
            scored.append(ScoredCell(row, measured_s, None, error.message))
        else:
            scored.append(ScoredCell(row, measured_s, (found.value, found.low, found.high)))
    progress(f"zero-shot {source}", len(cells), len(cells))
    return scored


def _asked(rows: Sequence[WholeModelRow]) -> list[tuple[WholeModelRow, float]]:
    """Equal jobs one after another, so that each program is built once."""
    cells = cells_of(rows)
    several = [cell for cell in cells if cell[0].devices > 1]
    chosen = [cell for cell in cells if cell[0].devices == 1]
    chosen += several[:: max(1, len(several) // _SEVERAL_GPUS)]
    return sorted(chosen, key=lambda cell: (repr(cell[0].job), cell[0].batch))


def request_of(row: WholeModelRow, graph: Graph) -> PredictionRequest:
    """The question a user would ask for a row; its graph holds the batch of one device."""
    major = int(row.framework_version)
    minor = round((row.framework_version - major) * 100)
    return PredictionRequest(
        graph,
        row.device,
        batch=row.batch * row.devices,
        mode=row.mode,
        precision=row.precision,
        optimizer=row.optimizer,
        runtime=row.runtime,
        layout=row.layout,
        plan=Plan(dp=row.devices),
        framework_version=f"{major}.{minor}" if row.framework_version else "",
    )


def is_asked(row: WholeModelRow) -> bool:
    """One GPU, in a precision whose rates are known."""
    return (
        row.devices == 1
        and row.precision is not Precision.FP64
        and find_device(row.device).kind is DeviceKind.GPU
    )


def sampled_cells(table: AggregateTable, samples: Sequence[Sample]) -> list[ScoredCell]:
    """Cells of a table whose jobs a fit answered, (r,) samples."""
    found = {id(row): sample for row, sample in zip(table.rows, samples, strict=True)}
    cells = []
    for row, measured_s in cells_of(table.rows):
        sample = replace(found[id(row)], measured_s=measured_s)
        cells.append(ScoredCell(row, measured_s, (predicted_s(sample),) * 3, sample=sample))
    return cells


def known_cells(cells: Iterable[ScoredCell]) -> list[KnownCell]:
    """The cells that a fit answered."""
    return [KnownCell(cell.row, cell.sample) for cell in cells if cell.sample is not None]


def machine_of(row: WholeModelRow) -> tuple[str, str]:
    """Device and, of torchvision's cards, the harness: its two had other hosts."""
    return row.device, pytorch_gpu_benchmark.harness_of(row)


def lambda_rows(cells: Sequence[ScoredCell], hold: str, goal: float | None) -> list[EvaluationRow]:
    """T7: the mean over GPUs of each one's mean error, every GPU, every task, and several GPUs together."""
    alone = [cell for cell in cells if cell.row.devices == 1]
    rows = _macro(alone, "T7", hold, "all", goal, lambda cell: cell.row.device)
    for device in sorted({cell.row.device for cell in alone}):
        rows += _errors([c for c in alone if c.row.device == device], "T7", hold, f"device:{device}")
    for task in sorted({cell.row.model for cell in alone}):
        rows += _errors([c for c in alone if c.row.model == task], "T7", hold, f"task:{task}")
    return rows + _errors([c for c in cells if c.row.devices > 1], "T7", hold, "several GPUs")


def torchvision_rows(cells: Sequence[ScoredCell], hold: str, goal: float | None) -> list[EvaluationRow]:
    """T8: both harnesses apart, every device and mode; double precision and DataParallel reported."""
    alone = [c for c in cells if c.row.devices == 1]
    scored = [c for c in alone if c.row.precision is not Precision.FP64]
    rows: list[EvaluationRow] = []
    for harness in pytorch_gpu_benchmark.HARNESSES:
        chosen = [c for c in scored if pytorch_gpu_benchmark.harness_of(c.row) == harness]
        rows += _errors(chosen, "T8", hold, f"harness {harness}", goal)
        for device in sorted({cell.row.device for cell in chosen}):
            rows += _errors(
                [c for c in chosen if c.row.device == device], "T8", hold, f"{harness}, device:{device}"
            )
    rows += _errors([c for c in alone if c.row.precision is Precision.FP64], "T8", hold, "double precision")
    return rows + _errors([c for c in cells if c.row.devices > 1], "T8", hold, "DataParallel")


def _macro(
    cells: Sequence[ScoredCell],
    id: str,
    hold: str,
    group: str,
    goal: float | None,
    part_of: Callable[[ScoredCell], str],
) -> list[EvaluationRow]:
    parts: dict[str, list[ScoredCell]] = defaultdict(list)
    for cell in cells:
        if cell.answer is not None:
            parts[part_of(cell)].append(cell)
    if not parts:
        return []
    means = [float(_absolute(part).mean()) for part in parts.values()]
    count = sum(map(len, parts.values()))
    return [
        EvaluationRow(id, SUITE, hold, f"{id} {hold}: {group}", "mape", float(np.mean(means)), goal, count)
    ]


def _absolute(cells: Sequence[ScoredCell]) -> np.ndarray:
    predicted = [cell.answer[0] for cell in cells if cell.answer is not None]
    return absolute_errors(predicted, [cell.measured_s for cell in cells if cell.answer is not None])


def _errors(
    cells: Sequence[ScoredCell], id: str, hold: str, group: str, goal: float | None = None
) -> list[EvaluationRow]:
    answered = [(cell.measured_s, cell.answer) for cell in cells if cell.answer is not None]
    rows = scored_rows(
        [measured for measured, _ in answered],
        [answer for _, answer in answered],
        id=id,
        suite=SUITE,
        hold=hold,
        group=f"{id} {hold}: {group}",
        goal_mean=goal,
    )
    exact = all(low == high for _, (_, low, high) in answered)
    return [row for row in rows if not (exact and row.metric == "coverage")]


def worst_cells(title: str, cells: Sequence[ScoredCell], count: int = _WORST) -> Table:
    """The cells that are furthest off, on a log scale."""
    answered = [cell for cell in cells if cell.answer is not None]
    answered.sort(key=lambda cell: -abs(np.log(_ratio(cell))))
    lines = [
        (
            cell.row.model,
            cell.row.device,
            str(cell.row.batch),
            cell.row.mode.value,
            cell.row.precision.value,
            f"{cell.row.framework_version:.2f}",
            f"{cell.measured_s * 1e3:.4g}",
            f"{_ratio(cell):.2f}",
        )
        for cell in answered[:count]
    ]
    header = ("model", "device", "batch", "mode", "precision", "torch", "measured ms", "predicted / measured")
    return Table(title, header, tuple(lines))


def _ratio(cell: ScoredCell) -> float:
    return cell.answer[0] / cell.measured_s if cell.answer is not None else float("nan")


def counts_table(root: Path, sources: Iterable[str]) -> Table:
    """Rows of each source: available, used, and left out by reason."""
    manifest = load_manifest()
    lines: list[tuple[str, ...]] = []
    for name in sources:
        found = reader(name).read_rows(manifest[name].folder(root))
        dropped: Mapping[str, int] = found.dropped
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in dropped.items()) or "none"
        lines.append((name, f"{found.available:,}", f"{len(found.rows):,}", reasons))
    return Table("Rows by source", ("source", "available", "used", "left out"), tuple(lines))


def source_suite(
    root: Path, bundle: Path | None, progress: Progress = silent
) -> tuple[list[EvaluationRow], list[Table]]:
    """Both sources by the bundle, and the worst cells of each."""
    predictor = Predictor.load(bundle)
    rows: list[EvaluationRow] = []
    tables = [counts_table(root, READERS)]
    for source, rows_of in ((LAMBDA, lambda_rows), (TORCHVISION, torchvision_rows)):
        asked = zero_shot(source, root, predictor, progress=progress)
        rows += rows_of(asked, "bundle", None)
        alone = [cell for cell in asked if is_asked(cell.row)]
        tables.append(worst_cells(f"{source}: worst cells of the bundle", alone))
    return rows, tables
