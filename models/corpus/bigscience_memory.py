"""BigScience's sweeps of plans: peaks that its engineers noted, and jobs that ran out of memory.

Rows of `curated/distributed_training.csv.gz` (chronicles of tr3m, tr8 and tr11, 2021 and 2022) become
Megatron-LM jobs as its fork on DeepSpeed ran them: attention written out, layers recomputed, FP32 copies of
weights in the optimizer. In BF16 gradients are summed up in FP32, in FP16 they are not (DeepSpeed's
BF16_Optimizer and FP16_Optimizer). Notes give whole GB of the busiest device (`nvidia-smi`, context
included).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.errors import InvalidData
from predictor.features.architectures.megatron import AttentionKernel, MegatronConfig, Style
from predictor.features.dtype import DType
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.megatron_jobs import MegatronJob, rank_memory
from predictor.parallel.memory_stages import RankMemory, StageMemory, stage_memories, worst_stage
from predictor.parallel.memory_weights import GradientBuffers
from predictor.parallel.plan import Plan
from predictor.units import GIB

if TYPE_CHECKING:
    import polars as pl

TABLE, FOLDER = "bigscience_memory", "curated"
FILE, PUBLISHER = "distributed_training.csv.gz", "bigscience-workshop/bigscience"
_DEVICES = {
    "V100-SXM2-16GB": "v100-sxm-16gb",
    "V100-SXM2-32GB": "v100-sxm-32gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
}
# Where a row names no heads: tr11's choice for its widths.
_HEAD_DIM = 128
# DeepSpeed's default `reduce_bucket_size`, in elements of 16 bits; BF16_Optimizer has no such buckets.
_BUCKET_ELEMENTS = 5e8
_RANKS_KEPT = 4


def bigscience_table(folder: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """One row per job with a peak or without memory: floor_bytes, noted_bytes (null after OOM), oom, keys."""
    import polars as pl

    path = folder / FILE
    if not path.is_file():
        raise InvalidData(f"{path}: not found; it holds published distributed training")
    rows = pl.read_csv(path, infer_schema_length=None).filter(
        (pl.col("source_repo") == PUBLISHER)
        & (pl.col("mem_gib").is_not_null() | (pl.col("oom") == 1))
        & pl.all_horizontal(pl.col("layers", "hidden", "vocab", "tp", "pp", "dp").is_not_null())
    )
    ranks: dict[Hashable, RankMemory] = {}
    found: list[dict[str, object]] = []
    for done, row in enumerate(rows.iter_rows(named=True)):
        progress(TABLE, done, rows.height)
        job = _job(row)
        found.append(_record(row, _worst(job, ranks), sum(job.library_bytes.values())))
    progress(TABLE, rows.height, rows.height)
    return pl.DataFrame(found, infer_schema_length=None)


def _record(row: Mapping[str, Any], stage: StageMemory, library_bytes: float) -> dict[str, object]:
    oom = row["oom"] == 1
    return {
        "row_id": row["row_id"],
        "model": row["model"],
        "device": _DEVICES[row["device"]],
        "micro_batch": int(row["micro_batch"]),
        "tp": int(row["tp"]),
        "pp": int(row["pp"]),
        "dp": int(row["dp"]),
        "oom": oom,
        "stage": stage.stage,
        "moment": stage.moment,
        "floor_bytes": stage.peak_bytes + library_bytes,
        "noted_bytes": None if oom or row["mem_gib"] is None else float(row["mem_gib"]) * GIB,
    }


def _job(row: Mapping[str, Any]) -> MegatronJob:
    hidden, layers, tp = int(row["hidden"]), int(row["layers"]), int(row["tp"])
    heads = int(row["heads"] or hidden // _HEAD_DIM)
    # No stage is without a layer.
    stages = min(int(row["pp"]), layers)
    words = int(row["vocab"])
    narrow = row["precision"] == "fp16"
    config = MegatronConfig(
        style=Style.GPT,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=int(row["ffn_hidden"] or 4 * hidden),
        vocabulary=-(-words // (128 * tp)) * 128 * tp,
        sequence=int(row["seq_len"]),
        micro_batch=int(row["micro_batch"]),
        head_dim=hidden // heads,
        kv_heads=heads,
        positions=int(row["seq_len"]),
        dtype=DType.FLOAT16 if narrow else DType.BFLOAT16,
        tp=tp,
        engine=False,
        attention=AttentionKernel.LOCAL,
        # The pipeline keeps the scores in FP32, which the loss takes the exponential of.
        loss_copies=1,
        recomputed=frozenset({"layer"}) if row["recompute"] == "full" else frozenset(),
    )
    dp = int(row["dp"])
    plan = Plan(
        dp=dp,
        pp=stages,
        zero=1 if row["sharding"] == "ZeRO-1" and dp > 1 else 0,
        microbatches=max(1, int(row["global_batch"]) // (dp * config.micro_batch)),
    )
    return MegatronJob(
        config=config,
        plan=plan,
        layer_ends=tuple(layers * (stage + 1) // stages for stage in range(stages)),
        buffers=GradientBuffers(resident=True, wide=not narrow, copied=False),
        expert_shards=dp,
        library_bytes={"buckets": _BUCKET_ELEMENTS * 2.0} if narrow and plan.zero else {},
    )


def _worst(job: MegatronJob, ranks: dict[Hashable, RankMemory]) -> StageMemory:
    """The stage that needs most, of the job's rank."""
    key = (job.config, job.buffers.wide)
    if key not in ranks:
        while len(ranks) >= _RANKS_KEPT:
            ranks.pop(next(iter(ranks)))
        ranks[key] = rank_memory(job)
    memory = ranks[key]
    ends = [*(1 + end for end in job.layer_ends[:-1]), memory.pieces]
    stages = stage_memories(memory, ends, job.plan, training=True, buffers=job.buffers)
    return worst_stage(stages)
