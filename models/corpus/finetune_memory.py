"""The table of fine-tuning jobs with the physical floor of each, for evaluation and training.

Rows that ran out of memory have no measured bytes; the card's capacity is their lower bound.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.hardware.catalog import find_device
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.finetune import FinetuneRow, job_memory, read_rows
from predictor.models.memory.allocated import ALLOCATED_FEATURES, AllocatedJob, allocated_features
from predictor.parallel.memory_stages import StageMemory

if TYPE_CHECKING:
    import polars as pl

TABLE, FOLDER = "finetune_memory", "curated"


def finetune_table(folder: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """One row per job: ALLOCATED_FEATURES, floor_bytes, measured_bytes (null after OOM), keys."""
    import polars as pl

    rows, _ = read_rows(folder)
    known: dict[Hashable, tuple[StageMemory, float]] = {}
    found: list[dict[str, object]] = []
    for done, row in enumerate(rows):
        progress(TABLE, done, len(rows))
        key = (row.model, row.job, row.sequence, row.micro_batch)
        if key not in known:
            known[key] = job_memory(row)
        found.append(_record(row, *known[key]))
    progress(TABLE, len(rows), len(rows))
    return pl.DataFrame(found, infer_schema_length=None)


def _record(row: FinetuneRow, stage: StageMemory, library_bytes: float) -> dict[str, object]:
    plan = row.job.plan
    job = AllocatedJob(
        lines=stage.lines,
        library_bytes=library_bytes,
        moment=stage.moment,
        in_flight=stage.in_flight,
        replicas=plan.dp,
        zero=plan.zero,
        recompute=row.job.recompute,
        device_year=find_device(row.device).year,
        device_level=row.kind == "device",
    )
    values = (float(value) for value in allocated_features(job))
    return {
        "row_id": row.row_id,
        "tool": row.tool,
        "model": row.model,
        "method": row.method,
        "device": row.device,
        "sequence": row.sequence,
        "micro_batch": row.micro_batch,
        "has_length": row.has_length,
        "kind": row.kind,
        "oom": row.oom,
        "measured_bytes": row.peak_bytes,
        "floor_bytes": job.floor_bytes,
        **dict(zip(ALLOCATED_FEATURES, values, strict=True)),
    }
