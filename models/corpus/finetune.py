"""Fine-tuning jobs of the curated tables: litgpt's configurations, Qwen's and torchtune's READMEs.

`curated/finetune_memory_time.csv` names a model, a method, a micro-batch and often a sequence length; what a
method is, each tool's recipes say (litgpt config_hub and finetune/*.py; Qwen finetune.py and its scripts of
2023; torchtune's single-device recipes). litgpt prints torch's max_memory_allocated in units of 1e9 bytes;
Qwen's values are of whole processes, summed over devices where there are several.

Left out: methods that are neither LoRA nor full (adapters of litgpt, GaLore, inference), rows without sizes,
and three full runs of litgpt (2024-09-27) that report fewer bytes than 16-bit weights, gradients and both
states of the AdamW that their configuration names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from predictor.errors import InvalidData
from predictor.features.architectures.from_config import from_config
from predictor.features.graph import Graph
from predictor.features.lowering.adapters import Adapters, adapt
from predictor.features.lowering.layers import segments
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import program_of
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.finetune_graphs import Loss, as_written, kept_inputs_bytes, with_loss
from predictor.parallel.memory_stages import RankMemory, StageMemory, stage_memories, worst_stage
from predictor.parallel.memory_weights import GradientBuffers
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Mode, Optimizer, Precision, Recompute
from predictor.units import GIGA

FILE = "finetune_memory_time.csv"
_MODELS = Path(__file__).with_name("finetune_models.toml")
LITGPT, QWEN, TORCHTUNE = "litgpt", "qwen", "torchtune"
_TOOLS = {"Lightning-AI/litgpt": LITGPT, "QwenLM/Qwen": QWEN, "pytorch/torchtune": TORCHTUNE}
_DEVICES = {
    "A10G": "a10g-pcie-24gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "A100 40GB (litgpt doc)": "a100-sxm-40gb",
    "A100 80GB": "a100-sxm-80gb",
}
_LINEAR = frozenset({"q", "k", "v", "o", "mlp"})
# Longest sample of the Alpaca set in litgpt's resource tables, which give no length.
_ALPACA_TOKENS = 1037


@dataclass(frozen=True, slots=True)
class FinetuneRow:
    """One published job.

    Attributes:
        tool: litgpt, qwen or torchtune. model: of finetune_models.toml. method: as printed.
        device: catalogue id. devices: that share the job. sequence, micro_batch: tokens and samples of a
            step.
        peak_bytes: per device; None where the job ran out of memory (`oom`).
        kind: `allocated` or `device`. has_length: the row itself says how long its samples are.
        job: what runs.
    """

    row_id: str
    tool: str
    model: str
    method: str
    device: str
    devices: int
    sequence: int
    micro_batch: int
    peak_bytes: float | None
    oom: bool
    kind: str
    has_length: bool
    job: FinetuneJob


@dataclass(frozen=True, slots=True)
class FinetuneJob:
    """How a tool trains.

    Attributes:
        adapters: None trains all weights. master_weights: FP32 copies, as DeepSpeed keeps them.
        written_out: norms and heads as written in Python.
        keeps_last: inputs of quantised products live on until the next iteration's loss takes the place of
            the last one's.
        loads_whole: a checkpoint is loaded into sharded weights: all are gathered beside the shards.
    """

    adapters: Adapters | None
    loss: Loss
    recompute: Recompute
    optimizer: Optimizer
    plan: Plan
    master_weights: bool = False
    written_out: bool = True
    keeps_last: bool = False
    loads_whole: bool = False


def read_rows(folder: Path) -> tuple[list[FinetuneRow], dict[str, int]]:
    """Usable rows, and how many were left out by reason. Raises InvalidData when the file is absent."""
    import polars as pl

    path = folder / FILE
    if not path.is_file():
        raise InvalidData(f"{path}: not found; it holds published fine-tuning jobs")
    rows: list[FinetuneRow] = []
    skipped: dict[str, int] = {}
    for row in pl.read_csv(path, infer_schema_length=None).iter_rows(named=True):
        found = _READERS[_TOOLS[row["source_repo"]]](row)
        if isinstance(found, str):
            skipped[found] = skipped.get(found, 0) + 1
        else:
            rows.append(found)
    return rows, skipped


def _row(row: Mapping[str, Any], job: FinetuneJob, kind: str, sequence: float, devices: int) -> FinetuneRow:
    names = _tables()["names"]
    model = row["model"] if row["model"] in names else f"{row['model']} {row['params']}"
    measured = None if row["mem_gb"] is None else float(row["mem_gb"]) * GIGA
    return FinetuneRow(
        row_id=row["row_id"],
        tool=_TOOLS[row["source_repo"]],
        model=names[model],
        method=row["method"],
        device=_DEVICES[row["device"]],
        devices=devices,
        sequence=int(sequence),
        micro_batch=int(row["micro_batch"]),
        peak_bytes=measured,
        oom=row["oom"] == 1,
        kind=kind,
        has_length=row["seq_len"] is not None,
        job=job,
    )


# litgpt's first configurations adapt queries and values; those written for these models adapt everything.
_ADAPTED_WHOLE = frozenset({"gemma-2b", "gemma-7b", "gemma-2-9b", "phi-2", "tiny-llama", "phi-3-mini"})
_NARROW = Adapters(32, frozenset({"q", "v"}))
_WHOLE = Adapters(8, _LINEAR | {"head"})
# The tables before config_hub: rank 8 on queries and values.
_TABLE = Adapters(8, frozenset({"q", "v"}))


_IMPOSSIBLE_DATE, _IMPOSSIBLE = "2024-09-27", frozenset({"llama-3.2-1b", "llama-3.2-3b", "phi-3-mini"})
# Micro-batches before a step; how many does not matter beyond the second.
_ACCUMULATED = 4


def _litgpt(row: Mapping[str, Any]) -> FinetuneRow | str:
    method = row["method"].lower()
    if not method.startswith(("lora", "qlora", "full")):
        return "neither LoRA nor full"
    table = row["seq_len"] is None
    name = row["model"] if not table else f"{row['model']} {row['params']}"
    model = _tables()["names"][name]
    devices = int(row["n_devices"])
    if method == "full":
        # One value for one and for four devices: it ran on one.
        devices = 1 if model == "tiny-llama" else devices
        plan = Plan(dp=devices, zero=3 if devices > 1 else 0, microbatches=_ACCUMULATED)
        job = FinetuneJob(None, Loss.CHUNKED, Recompute.NONE, Optimizer.ADAMW, plan, loads_whole=devices > 1)
        if row["source_date"] == _IMPOSSIBLE_DATE and model in _IMPOSSIBLE and row["mem_gb"] is not None:
            return "full run below its weights, gradients and states"
        return _row(row, job, "allocated", row["seq_len"], devices)
    adapters = _TABLE if table else _WHOLE if model in _ADAPTED_WHOLE else _NARROW
    quantize = "nf4" if method == "qlora" else method.partition("bnb.")[2].rstrip(")") or None
    if quantize is not None:
        adapters = replace(adapters, quantize=quantize, quantized_head=True)
    # Configurations that adapt say `devices: 1`, whatever machine the table names.
    devices = devices if table else 1
    plan = Plan() if devices == 1 else Plan(dp=devices, zero=3)
    recompute = Recompute.FULL if devices > 1 else Recompute.NONE
    job = FinetuneJob(
        adapters,
        Loss.CHUNKED_HEAD,
        recompute,
        Optimizer.ADAMW,
        plan,
        keeps_last=quantize is not None,
        loads_whole=devices > 1,
    )
    return _row(row, job, "allocated", row["seq_len"] or _ALPACA_TOKENS, devices)


def _qwen(row: Mapping[str, Any]) -> FinetuneRow | str:
    method = row["method"]
    devices = int(row["n_devices"])
    adapters = Adapters(64, _LINEAR, wide=True)
    if method == "Full-parameter":
        # The first edition of the table does not say how many; the next says 2.
        devices = 2 if row["model"] == "Qwen-7B" else 1
        plan = Plan(dp=devices, zero=3)
        job = FinetuneJob(None, Loss.SHIFTED, Recompute.FULL, Optimizer.ADAMW, plan, master_weights=True)
    elif method == "Q-LoRA":
        # Under DeepSpeed in FP16, which has no autocast and keeps FP32 copies of what it trains.
        adapters = Adapters(64, _LINEAR, quantize="int4")
        job = replace(_qwen_job(adapters, devices), loss=Loss.SHIFTED, master_weights=True)
    elif "emb" in method or row["source_date"] == _QWEN_FIRST:
        # The first edition trained embeddings and head with every LoRA, and did not say so.
        job = _qwen_job(replace(adapters, trained=frozenset({"embedding", "head"}), copies=True), devices)
    else:
        job = _qwen_job(adapters, devices)
    found = _row(row, job, "device", row["seq_len"], devices)
    return replace(found, peak_bytes=None if found.peak_bytes is None else found.peak_bytes / devices)


_QWEN_FIRST = "2023-10-07"


def _qwen_job(adapters: Adapters, devices: int) -> FinetuneJob:
    plan = Plan(dp=devices, zero=2 if devices > 1 else 0)
    return FinetuneJob(adapters, Loss.SHIFTED_FP32, Recompute.FULL, Optimizer.ADAMW, plan)


def _torchtune(row: Mapping[str, Any]) -> FinetuneRow | str:
    """The cumulative table of Llama 3.2 3B, where samples are packed to their full length."""
    notes = row["notes"] or ""
    batch, length = (5, 2048) if "Batch size:** 5" in notes else (2, 4096)
    method = row["method"].removeprefix("cumulative: ")
    lora = Adapters(8, frozenset({"q", "v", "mlp"}))
    jobs = {
        "+ Packed Dataset": FinetuneJob(
            None, Loss.PLAIN, Recompute.NONE, Optimizer.ADAMW, Plan(), written_out=True
        ),
        "+ Activation Checkpointing": FinetuneJob(
            None, Loss.CHUNKED, Recompute.FULL, Optimizer.ADAMW, Plan(), written_out=True
        ),
        "LoRA": FinetuneJob(lora, Loss.CHUNKED, Recompute.FULL, Optimizer.ADAMW, Plan()),
        "QLoRA": FinetuneJob(
            replace(lora, quantize="nf4-dq"), Loss.CHUNKED, Recompute.FULL, Optimizer.ADAMW, Plan()
        ),
    }
    if row["model"] != "Llama 3.2 3B" or method not in jobs:
        return "torchtune: sizes or techniques that no job of ours has"
    return _row({**row, "micro_batch": batch}, jobs[method], "allocated", length, 1)


_READERS = {LITGPT: _litgpt, QWEN: _qwen, TORCHTUNE: _torchtune}


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(_MODELS.read_text(encoding="utf-8"))


def job_graph(row: FinetuneRow) -> Graph:
    """The lowered graph of one micro-batch, loss and adapters included."""
    config = {**_tables()["models"][row.model], **_FIELDS.get(row.tool, {})}
    data = from_config(config, batch=row.micro_batch, sequence=row.sequence)
    graph = lower(read_graph(data, batch=row.micro_batch), precision=Precision.BF16, training=True)
    if row.job.written_out:
        graph = as_written(graph)
    graph = with_loss(graph, row.job.loss)
    return graph if row.job.adapters is None else adapt(graph, row.job.adapters)


# litgpt's head has a matrix of its own, and its GELU is one kernel.
_FIELDS = {LITGPT: {"tie_word_embeddings": False}}


def job_memory(row: FinetuneRow) -> tuple[StageMemory, float]:
    """Peak of the tensors of a device, and bytes that libraries hold beside them through the iteration."""
    job, graph = row.job, job_graph(row)
    program = program_of(
        graph,
        mode=Mode.TRAIN,
        precision=Precision.BF16,
        optimizer=job.optimizer,
        master_weights=job.master_weights,
        wide_gradients=False,
        recompute=job.recompute,
    )
    memory = RankMemory(RankProgram(program, graph, segments(graph)))
    buffers = _DEEPSPEED if job.master_weights else GradientBuffers()
    stages = stage_memories(memory, [memory.pieces], job.plan, training=True, buffers=buffers)
    kept = float(kept_inputs_bytes(graph)) if job.keeps_last else 0.0
    peak = worst_stage(stages)
    return _loading(memory, job.plan, peak) if job.loads_whole else peak, kept


def _loading(memory: RankMemory, plan: Plan, peak: StageMemory) -> StageMemory:
    """The moment when weights are whole beside their shards, if it needs more than training does."""
    whole = float(memory.weights.stage_sum(range(memory.pieces))[0].sum())
    size = whole * (1 + 1 / plan.shard_size)
    if size <= peak.peak_bytes:
        return peak
    return replace(peak, peak_bytes=size, lines={"parameters": size}, moment="forward", in_flight=0)


# DeepSpeed's gradients: 16 bits, resident.
_DEEPSPEED = GradientBuffers(resident=True, copied=False)
