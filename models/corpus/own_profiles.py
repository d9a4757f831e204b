"""Rows that the profiler of perfcast measured itself, kept in the repository: models/data/profiles.

What one row holds: the median of single iterations of a graph that torch ran with random weights; inputs lie
on the device, training has the optimizer's step. Every row names its catalogue device.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from predictor.features.graph import Graph
from predictor.models.corpus.whole_model import ReadRows, measurements
from predictor.models.profiling.rows import job_graph, measured_row, read_jobs
from predictor.types import Mode

if TYPE_CHECKING:
    import polars as pl

SOURCE = "profiles"


def read_rows(folder: Path) -> ReadRows:
    """All rows of all tables."""
    jobs = [job for path in sorted(folder.glob("*.csv")) for job in read_jobs(path)]
    return ReadRows(tuple(measured_row(job) for job in jobs))


def read(folder: Path) -> pl.DataFrame:
    """The rows in the measurement schema."""
    return measurements(read_rows(folder).rows, SOURCE)


def graph(folder: Path, key: str, batch: int, mode: Mode) -> Graph:
    """The graph that a row names."""
    return job_graph(key, batch, mode)
