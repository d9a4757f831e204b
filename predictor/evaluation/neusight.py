"""The end-to-end cells of NeuSight (ASPLOS'25), each predicted from a graph and a catalogue device.

The bundle answers without its step model, so no end-to-end time was trained on; operator rows of five devices
were. L4 and AMD have none.
Training cells hold forward + backward without an optimizer step; fused cells ran compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from predictor.api import Predictor
from predictor.errors import InvalidData, PerfcastError
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows, scored_rows
from predictor.features.architectures import architecture
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.neusight import DEVICES
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Interval, Mode, Optimizer, Runtime

SUITE = "neusight"
HOLD = "end-to-end"
PUBLISHED = ("neusight", "habitat", "micro", "roofline")
"""The published predictors, by their column names."""
GOAL_MEAN, GOAL_MEDIAN = 0.104, 0.068
"""NeuSight's own errors on the cells that all published predictors answer."""

_LABELS = "e2e_labels.csv"
_PREDICTIONS = "e2e_predictions_of_published_predictors.csv"
_KEYS = ("device", "model", "mode", "seqlen", "batch", "option")
_UNFUSED, _FUSED, _AMD, _FOUR = "unfused", "fused", "amd", "four_devices"


@dataclass(frozen=True, slots=True)
class Cell:
    """One published measurement; times in seconds. `option` is empty, `fusion`, `dp4`, `tp4` or `pp4_1`.

    `passes_s`: the forward and the backward pass, timed apart; the second is 0 where there is none.
    """

    device: str
    model: str
    mode: str
    sequence: int
    batch: int
    option: str
    measured_s: float
    published_s: Mapping[str, float] = field(default_factory=dict)
    passes_s: tuple[float, float] = (0.0, 0.0)

    @property
    def group(self) -> str:
        """unfused and fused (one NVIDIA device), amd, or four_devices."""
        if self.option not in ("", "fusion"):
            return _FOUR
        if self.device.startswith("AMD"):
            return _AMD
        return _FUSED if self.option else _UNFUSED

    @property
    def is_compared(self) -> bool:
        """One of the unfused cells that every published predictor answers."""
        return self.group == _UNFUSED and all(name in self.published_s for name in PUBLISHED)

    @property
    def device_id(self) -> str:
        """Catalogue id."""
        return _DEVICE_IDS[self.device]


_DEVICE_IDS: Mapping[str, str] = {
    **{name.replace(" ", "_"): device for name, device in DEVICES.items()},
    "NVIDIA_A100-SXM4-40GB": "a100-sxm-40gb",
}


@dataclass(frozen=True, slots=True)
class Scored:
    """A cell with our answer, or with the reason why there is none."""

    cell: Cell
    time: Interval | None
    reason: str = ""


def read_cells(folder: Path) -> tuple[Cell, ...]:
    """All cells in the file's order. Raises InvalidData when the tables are absent."""
    import polars as pl

    for name in (_LABELS, _PREDICTIONS):
        if not (folder / name).is_file():
            raise InvalidData(f"{folder / name}: not found; give the folder that holds neusight/ as --root")
    options = pl.col("option").fill_null("")
    labels = pl.read_csv(folder / _LABELS).with_columns(options)
    predictions = pl.read_csv(folder / _PREDICTIONS).with_columns(options)
    published: dict[tuple[object, ...], dict[str, float]] = {}
    for row in predictions.iter_rows(named=True):
        published.setdefault(_key(row), {})[row["predictor"]] = row["e2e_latency_ms"] * 1e-3
    return tuple(
        Cell(
            device=row["device"],
            model=row["model"],
            mode=row["mode"],
            sequence=row["seqlen"],
            batch=row["batch"],
            option=row["option"],
            measured_s=row["e2e_latency_ms"] * 1e-3,
            published_s=published.get(_key(row), {}),
            passes_s=(row["fw_latency_ms"] * 1e-3, row["bwall_latency_ms"] * 1e-3),
        )
        for row in labels.iter_rows(named=True)
    )


def _key(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEYS)


def request_of(cell: Cell) -> PredictionRequest:
    """The question a user would ask for this cell. Raises InvalidData for tensor and pipeline parallelism."""
    if cell.option not in ("", "fusion", "dp4"):
        raise InvalidData(f"plan {cell.option}: only data parallel plans are priced")
    replicas = 4 if cell.option == "dp4" else 1
    training = cell.mode == "train"
    graph = architecture(cell.model, batch=cell.batch // replicas, sequence=cell.sequence, training=training)
    return PredictionRequest(
        graph=graph,
        device=cell.device_id,
        batch=cell.batch,
        mode=Mode.TRAIN if training else Mode.INFER,
        optimizer=Optimizer.NONE,
        runtime=Runtime.COMPILED if cell.option == "fusion" else Runtime.EAGER,
        plan=Plan(dp=replicas),
    )


def score_cells(
    cells: Sequence[Cell], predictor: Predictor, progress: Progress = silent
) -> tuple[Scored, ...]:
    """Our answers, in order; a cell that cannot be answered says why."""
    scored = []
    for done, cell in enumerate(cells):
        progress(SUITE, done, len(cells))
        try:
            scored.append(Scored(cell, predictor.predict(request_of(cell)).iteration_time_s))
        except PerfcastError as error:
            scored.append(Scored(cell, None, error.message))
    progress(SUITE, len(cells), len(cells))
    return tuple(scored)


def neusight_rows(scored: Sequence[Scored]) -> list[EvaluationRow]:
    """Errors on the compared cells beside the published predictors', then by group, device and mode."""
    compared = [item for item in scored if item.cell.is_compared]
    rows = _errors(compared, "all", goals=(GOAL_MEAN, GOAL_MEDIAN))
    for name in PUBLISHED:
        errors = absolute_errors(
            [item.cell.published_s[name] for item in compared], [item.cell.measured_s for item in compared]
        )
        rows += error_rows(errors, id="J3", suite=SUITE, hold=HOLD, group=f"published:{name}")
    for group in (_UNFUSED, _FUSED, _AMD, _FOUR):
        rows += _errors([item for item in scored if item.cell.group == group], group)
    for device in sorted({item.cell.device for item in compared}):
        rows += _errors([item for item in compared if item.cell.device == device], f"device:{device}")
    for mode in ("inf", "train"):
        rows += _errors([item for item in compared if item.cell.mode == mode], f"mode:{mode}")
    return rows


def _errors(
    items: Sequence[Scored], group: str, goals: tuple[float | None, float | None] = (None, None)
) -> list[EvaluationRow]:
    answered = [(item.cell, item.time) for item in items if item.time is not None]
    return scored_rows(
        [cell.measured_s for cell, _ in answered],
        [(time.value, time.low, time.high) for _, time in answered],
        id="J3",
        suite=SUITE,
        hold=HOLD,
        group=group,
        goal_mean=goals[0],
        goal_median=goals[1],
    )
