"""Peak memory of timm training jobs, model families left out, through the public Predictor.

Every fold of whole families is predicted by a bundle whose memory model never saw them, from the exported
graph.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from predictor.api import Predictor
from predictor.errors import PerfcastError
from predictor.evaluation.held_out import predictor_with
from predictor.evaluation.rows import EvaluationRow, absolute_errors, coverage_row, error_rows
from predictor.models.bundle import Bundle
from predictor.models.corpus.build import Progress, read_source, silent
from predictor.models.corpus.memory_features import GRAPH_FOLDER, TABLE, graph_files
from predictor.models.memory import MODEL_NAME
from predictor.models.memory_training import folds, memory_rows, train_memory
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer

SUITE = "memory"
HOLD = "model family"

_Measured: TypeAlias = tuple[str, str, str, int, float]
"""(model, family, device, batch, bytes)."""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """One measured peak and our answer; bytes."""

    subject: str
    family: str
    device: str
    batch: int
    measured_bytes: float
    predicted_bytes: float
    low_bytes: float
    high_bytes: float


@dataclass(frozen=True, slots=True)
class _Job:
    """One model's batches under one held-out bundle."""

    bundle: Path
    graph: Path
    cells: tuple[_Measured, ...]


def score_memory(
    root: Path, corpus: Path, bundle: Bundle, *, workers: int = 2, progress: Progress = silent
) -> tuple[MemoryCell, ...]:
    """Every row of the corpus' memory table predicted with its family held out.

    Args:
        root: folder of the raw sources (for the exported graphs).
        corpus: built corpus.
        bundle: its other models are used as they are.
        workers: processes.
    """
    table = read_source(corpus, TABLE)
    rows, files = memory_rows(table), graph_files(root / GRAPH_FOLDER)
    keys = list(zip(table["subject"], table["model_group"], table["device"], table["batch"], strict=True))
    with TemporaryDirectory() as folder:
        jobs: list[_Job] = []
        for number, held in enumerate(folds(rows)):
            path = Path(folder) / f"fold{number}"
            predictor_with(bundle, {MODEL_NAME: train_memory(rows.take(~held))}, path)
            jobs += _jobs(
                path, files, [(*keys[i], float(rows.measured_bytes[i])) for i in np.flatnonzero(held)]
            )
        cells: list[MemoryCell] = []
        with ProcessPoolExecutor(workers) as pool:
            for done, part in enumerate(pool.map(_score, jobs, chunksize=8)):
                cells += part
                progress(SUITE, done + 1, len(jobs))
    return tuple(sorted(cells, key=lambda cell: (cell.subject, cell.batch)))


def _jobs(bundle: Path, files: Mapping[str, Path], cells: Sequence[_Measured]) -> Iterator[_Job]:
    by_model: dict[str, list[_Measured]] = {}
    for cell in cells:
        by_model.setdefault(cell[0], []).append(cell)
    for model, own in sorted(by_model.items()):
        yield _Job(bundle, files[model], tuple(own))


_loaded: dict[Path, Predictor] = {}


def _score(job: _Job) -> list[MemoryCell]:
    if job.bundle not in _loaded:
        _loaded[job.bundle] = Predictor.load(job.bundle)
    predictor = _loaded[job.bundle]
    graph = predictor.add_graph(gzip.decompress(job.graph.read_bytes()))
    found = []
    for subject, family, device, batch, measured in job.cells:
        request = PredictionRequest(
            graph=graph, device=device, batch=batch, mode=Mode.TRAIN, optimizer=Optimizer.MOMENTUM
        )
        try:
            peak = predictor.predict(request).device_peak_bytes
        except PerfcastError:
            # The table holds models that were read once; one that no longer can counts as absent.
            continue
        found.append(MemoryCell(subject, family, device, batch, measured, peak.value, peak.low, peak.high))
    return found


def memory_evaluation_rows(cells: Sequence[MemoryCell]) -> list[EvaluationRow]:
    """Errors and interval coverage over all rows, and per batch size."""
    rows = _rows(cells, "all")
    for batch in sorted({cell.batch for cell in cells}):
        rows += _rows([cell for cell in cells if cell.batch == batch], f"batch:{batch}")
    return rows


def _rows(cells: Sequence[MemoryCell], group: str) -> list[EvaluationRow]:
    errors = absolute_errors([c.predicted_bytes for c in cells], [c.measured_bytes for c in cells])
    inside = [c.low_bytes <= c.measured_bytes <= c.high_bytes for c in cells]
    return [
        *error_rows(errors, id="J4", suite=SUITE, hold=HOLD, group=group),
        *coverage_row(inside, id="J4", suite=SUITE, hold=HOLD, group=group),
    ]
