"""The training table of allocated memory: Megatron-LM's golden runs with the physical floor of each.

Building some hundred graphs and their timelines takes minutes, so the table is part of the built corpus.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import PerfcastError
from predictor.features.dtype import DType
from predictor.hardware.catalog import find_device
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.megatron_golden import GoldenRun, read_runs
from predictor.models.corpus.megatron_jobs import MegatronJob, job_of, last_stage, rank_memory
from predictor.models.memory.allocated import ALLOCATED_FEATURES, AllocatedJob, allocated_features
from predictor.parallel.memory_stages import RankMemory, StageMemory
from predictor.types import Recompute

if TYPE_CHECKING:
    import polars as pl

TABLE = "megatron_memory"
FOLDER = "megatron_golden"
# Ranks' memories that are kept at once: rows of a case follow one another.
_KEPT = 8


def megatron_table(folder: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """One row per run: ALLOCATED_FEATURES, floor_bytes, measured_bytes, group, kind, case, device."""
    import polars as pl

    runs, _ = read_runs(folder)
    found: list[dict[str, object]] = []
    ranks: dict[Hashable, RankMemory] = {}
    stages: dict[Hashable, StageMemory] = {}
    for done, run in enumerate(runs):
        progress(TABLE, done, len(runs))
        try:
            job = job_of(run)
            stage = _stage(job, ranks, stages)
        except PerfcastError as error:
            raise type(error)(f"{run.case} ({run.golden}): {error.message}") from error
        found.append(_record(run, job, stage))
    progress(TABLE, len(runs), len(runs))
    return pl.DataFrame(found, infer_schema_length=None)


def _stage(
    job: MegatronJob, ranks: dict[Hashable, RankMemory], stages: dict[Hashable, StageMemory]
) -> StageMemory:
    of_rank = (job.config, job.buffers.wide)
    key = (of_rank, job.plan, job.layer_ends, job.buffers, job.expert_shards)
    if key not in stages:
        if of_rank not in ranks:
            while len(ranks) >= _KEPT:
                ranks.pop(next(iter(ranks)))
            ranks[of_rank] = rank_memory(job)
        stages[key] = last_stage(job, ranks[of_rank])
    return stages[key]


def allocated_job(run: GoldenRun, job: MegatronJob, stage: StageMemory) -> AllocatedJob:
    """What the correction sees of a run."""
    config, experts = job.config, job.config.experts
    partly = Recompute.SELECTIVE if config.recomputed else Recompute.NONE
    return AllocatedJob(
        lines=stage.lines,
        library_bytes=sum(job.library_bytes.values()),
        moment=stage.moment,
        in_flight=stage.in_flight,
        replicas=job.plan.dp,
        tp=config.tp,
        pp=job.plan.pp,
        cp=config.cp,
        ep=experts.ep if experts else 1,
        virtual_stages=job.plan.virtual_stages,
        zero=job.plan.zero,
        sequence_parallel=config.sequence_parallel,
        recompute=Recompute.FULL if "layer" in config.recomputed else partly,
        half=config.dtype is DType.FLOAT16,
        experts=experts.count if experts else 0,
        top_k=experts.top_k if experts else 0,
        device_year=find_device(run.device).year,
        long_term_branch=run.branch == "lts",
        software_year=run.year,
    )


def _record(run: GoldenRun, job: MegatronJob, stage: StageMemory) -> dict[str, object]:
    seen = allocated_job(run, job, stage)
    values = (float(value) for value in allocated_features(seen))
    return {
        "case": run.case,
        "kind": run.kind,
        "group": run.group,
        "device": run.device,
        "measured_bytes": run.peak_bytes,
        "floor_bytes": seen.floor_bytes,
        **dict(zip(ALLOCATED_FEATURES, values, strict=True)),
    }
