"""Peak memory of timm training jobs, model families left out, through the public Predictor.

Every fold of whole families is predicted by a bundle whose memory model never saw them, from the exported
graph.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np

from predictor.api import Predictor
from predictor.errors import PerfcastError
from predictor.evaluation.held_out import predictor_with
from predictor.evaluation.rows import EvaluationRow, scored_rows
from predictor.models.bundle import Bundle
from predictor.models.corpus.build import Progress, read_source, silent
from predictor.models.corpus.memory_features import GRAPH_FOLDER, TABLE, graph_files
from predictor.models.memory.peak import MODEL_NAME
from predictor.models.memory.training import folds, memory_rows, train_memory
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer

SUITE = "memory"
HOLD = "model family"
# Families with fewer rows get no row of their own.
_LARGE_FAMILY = 80

_Measured: TypeAlias = tuple[str, str, str, int, bool, float]
"""(model, family, device, batch, autotuner peak, bytes)."""


@dataclass(frozen=True, slots=True)
class MemoryCell:
    """One measured peak and our answer; bytes.

    `autotuner_peak`: the reading caught kernels that an autotuner tried once (models/corpus/gpumemnet.py).
    """

    subject: str
    family: str
    device: str
    batch: int
    autotuner_peak: bool
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
    rows, files = memory_rows(table, autotuner_peaks=True), graph_files(root / GRAPH_FOLDER)
    columns = ("subject", "model_group", "device", "batch", "autotuner_peak")
    keys = list(zip(*(table[name] for name in columns), strict=True))
    trainable = ~table["autotuner_peak"].to_numpy()
    with TemporaryDirectory() as folder:
        jobs: list[_Job] = []
        for number, held in enumerate(folds(rows)):
            path = Path(folder) / f"fold{number}"
            predictor_with(bundle, {MODEL_NAME: train_memory(rows.take(~held & trainable))}, path)
            jobs += _jobs(
                path, files, [(*keys[i], float(rows.measured_bytes[i])) for i in np.flatnonzero(held)]
            )
        cells: list[MemoryCell] = []
        # A forked child would inherit OpenMP's locks from the trainings above and wait for ever.
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
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
    for subject, family, device, batch, is_peak, measured in job.cells:
        request = PredictionRequest(
            graph=graph, device=device, batch=batch, mode=Mode.TRAIN, optimizer=Optimizer.MOMENTUM
        )
        try:
            peak = predictor.predict(request).device_peak_bytes
        except PerfcastError:
            # The table holds models that were read once; one that no longer can counts as absent.
            continue
        found.append(
            MemoryCell(subject, family, device, batch, is_peak, measured, peak.value, peak.low, peak.high)
        )
    return found


def memory_evaluation_rows(cells: Sequence[MemoryCell]) -> list[EvaluationRow]:
    """Errors and interval coverage over all rows, per batch size, of large families, and of autotuner peaks.

    Autotuner peaks are scored apart and in no other group.
    """
    plain = [cell for cell in cells if not cell.autotuner_peak]
    rows = _rows(plain, "all", goal_mean=0.05, goal_median=0.03)
    for batch in sorted({cell.batch for cell in plain}):
        rows += _rows([cell for cell in plain if cell.batch == batch], f"batch:{batch}")
    for family, count in sorted(Counter(cell.family for cell in plain).items()):
        if count >= _LARGE_FAMILY:
            rows += _rows([cell for cell in plain if cell.family == family], f"family:{family}")
    return rows + _rows([cell for cell in cells if cell.autotuner_peak], "autotuner peaks")


def _rows(
    cells: Sequence[MemoryCell], group: str, goal_mean: float | None = None, goal_median: float | None = None
) -> list[EvaluationRow]:
    return scored_rows(
        [c.measured_bytes for c in cells],
        [(c.predicted_bytes, c.low_bytes, c.high_bytes) for c in cells],
        id="J4",
        suite=SUITE,
        hold=HOLD,
        group=group,
        goal_mean=goal_mean,
        goal_median=goal_median,
    )
