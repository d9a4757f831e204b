"""Megatron-LM's own functional tests: peak memory of small models under every kind of plan, exact to 0.1 %.

A row is one test case, hardware and software (`golden`: the branch of the container images, and the day of
the commit). The value is torch's max_memory_allocated of the rank that writes the log, the last one: the
last stage of a pipeline, with the head and the loss. `models.corpus.megatron_jobs` makes a graph and a plan
of what the case's YAML says (`model_configs.jsonl.gz`).

Left out: rows without a configuration or whose golden file is that of another case (a new case starts with
the file it was made from, until it is recorded anew), reinforcement learning (inference engines share the
memory), multimodal models, distillation.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from predictor.errors import InvalidData

RUNS, CONFIGURATIONS = "megatron_golden_runs.csv.gz", "model_configs.jsonl.gz"
DEVICES: Mapping[str, str] = {
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100-SXM5-80GB": "h100-sxm-80gb",
    "GB200 (4 GPUs per node)": "gb200",
}
"""Device as the file names it -> catalogue id."""

STRUCTURE = (
    *("model_dir", "tp", "pp", "cp", "ep", "etp", "enc_tp", "layers", "enc_layers", "dec_layers", "hidden"),
    *("ffn_hidden", "heads", "kv_heads", "head_dim", "seq_len", "enc_seq_len", "dec_seq_len", "micro_batch"),
    *("global_batch", "fp16", "bf16", "fp8", "sequence_parallel", "dist_opt", "gqa", "transformer_impl"),
    *("untie", "overlap_grad_reduce", "overlap_param_gather", "tokenizer", "mcore", "n_experts", "moe_topk"),
    *("moe_ffn", "swiglu", "mla", "deterministic", "layers_per_vpp_stage", "recompute", "recompute_method"),
    *("recompute_num_layers", "ce_fusion", "vocab_size", "attention_backend", "megatron_fsdp", "cuda_graph"),
    *("enable_cuda_graph", "optimizer", "other_args"),
)
"""Columns that decide what a job is. Rows that agree in them leave an evaluation together."""

_Configuration: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]
"""(arguments, environment) of a case."""


@dataclass(frozen=True, slots=True)
class GoldenRun:
    """One measured case.

    Attributes:
        case: its name. kind: `gpt`, `moe` (a GPT with experts), `bert`, `t5` or `hybrid`.
        device: catalogue id. devices: ranks of the job.
        branch: `dev` or `lts`; golden: the file's name, which also tells the cluster.
        year: of the commit that recorded the value, with the part of the year that has passed.
        arguments, environment: of the command line, without the dashes.
        peak_bytes: max_memory_allocated. resident_bytes: memory_allocated between iterations.
        group: what an evaluation holds out together: all that decides the job, neither device nor software.
    """

    case: str
    kind: str
    device: str
    devices: int
    branch: str
    golden: str
    year: float
    arguments: Mapping[str, str]
    environment: Mapping[str, str]
    peak_bytes: float
    resident_bytes: float | None
    group: str


def read_runs(folder: Path) -> tuple[list[GoldenRun], dict[str, int]]:
    """The usable rows, and how many were left out by reason. Raises InvalidData when a file is absent."""
    import polars as pl

    for name in (RUNS, CONFIGURATIONS):
        if not (folder / name).is_file():
            raise InvalidData(f"{folder / name}: not found; it holds Megatron-LM's golden values")
    configurations = _configurations(folder / CONFIGURATIONS)
    table = pl.read_csv(folder / RUNS, infer_schema_length=None)
    table = table.filter(pl.col("mem_max_allocated_bytes").is_not_null()).sort(
        "date", "test_case", "golden", "config_sha", "mem_max_allocated_bytes"
    )
    runs: list[GoldenRun] = []
    skipped: dict[str, int] = {}
    first: dict[str, tuple[str, str]] = {}
    for row in table.iter_rows(named=True):
        structure = _structure(row)
        date, owner = first.setdefault(row["golden_sha"], (row["date"], structure))
        found = _run(row, date, configurations) if owner == structure else "golden file of another case"
        if isinstance(found, str):
            skipped[found] = skipped.get(found, 0) + 1
        else:
            runs.append(found)
    return runs, skipped


def _structure(row: Mapping[str, Any]) -> str:
    return json.dumps({name: row[name] for name in STRUCTURE if row.get(name) is not None}, sort_keys=True)


def _run(row: Mapping[str, Any], date: str, configurations: Mapping[str, _Configuration]) -> GoldenRun | str:
    """The run, or why it is left out."""
    if row["config_sha"] not in configurations:
        return "no configuration"
    arguments, environment = configurations[row["config_sha"]]
    kind = _kind(row, arguments)
    reason = _unlike(row, kind, arguments)
    if reason:
        return reason
    return GoldenRun(
        case=row["test_case"],
        kind=kind,
        device=DEVICES[row["device"]],
        devices=int(row["n_devices"]),
        branch="lts" if row["golden"].startswith("lts") else "dev",
        golden=row["golden"],
        year=_year(date),
        arguments=arguments,
        environment=environment,
        peak_bytes=float(row["mem_max_allocated_bytes"]),
        resident_bytes=row["mem_allocated_bytes"],
        group=_structure(row),
    )


def _kind(row: Mapping[str, Any], arguments: Mapping[str, str]) -> str:
    if "hybrid-override-pattern" in arguments or "hybrid-layer-pattern" in arguments:
        return "hybrid"
    kind = str(row["model_dir"])
    return "moe" if kind in ("gpt", "mixtral", "moe2.0") and "num-experts" in arguments else kind


def _unlike(row: Mapping[str, Any], kind: str, arguments: Mapping[str, str]) -> str | None:
    """Why a row is no training job of one of the models that are described; None where it is one."""
    if row["mode"] == "rl" or "perform-rl-step" in arguments:
        return "reinforcement learning"
    if kind.startswith("multimodal"):
        return "multimodal"
    if "export-kd-cfg" in arguments or "flextron" in arguments:
        return "distillation"
    return None if kind in ("gpt", "moe", "bert", "t5", "hybrid") else f"model {kind}"


def _year(date: str) -> float:
    year, month, day = (int(part) for part in date.split("-"))
    return year + (month - 1) / 12 + (day - 1) / 365


def _configurations(path: Path) -> dict[str, _Configuration]:
    found = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            found[entry["config_sha"]] = _sections(entry["yaml"])
    return found


# `  --num-layers: 12 # a remark`, one argument a line; the files use no other YAML but top-level sections.
_ENTRY = re.compile(r"^\s+(?:--)?(?P<name>[A-Za-z][\w.\-]*):\s*(?P<value>.*?)\s*(?:#.*)?$")


def _sections(text: str) -> _Configuration:
    found: dict[str, dict[str, str]] = {"MODEL_ARGS": {}, "ENV_VARS": {}}
    section: dict[str, str] | None = None
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].strip():
            section = found.get(line.split(":")[0])
        elif section is not None and (entry := _ENTRY.match(line)):
            section[entry["name"]] = entry["value"].strip("'\"")
    return found["MODEL_ARGS"], found["ENV_VARS"]
