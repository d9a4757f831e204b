"""InferSim's kernels on H20 and H800: FP8 products dense and grouped, attention of decoding and prefill.

What one row holds: the time of one kernel. Products are DeepGEMM's with block scales (their printed share of
the peak is that of FP8); a grouped row has two, up and down, over the experts of one GPU. Attention files are
named heads-keyheads-width. Left out: gated delta nets and the sparse attention's index scores, which are
several kernels of their own, and latent attention's prefill, whose row does not say how it was run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Family, OpWork, Phase
from predictor.features.programs.work_json import work_to_json
from predictor.models.corpus.aiconfigurator_works import (
    STORAGE,
    attention_work,
    latent_decode_work,
    linear_work,
)
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical

if TYPE_CHECKING:
    pass

SOURCE = "infersim_bench"
DEVICES: Mapping[str, str] = {"h20": "h20-sxm-96gb", "h800": "h800-sxm-80gb"}
"""Part of a path -> catalogue id."""
_TYPES = {"bf16": "bfloat16", "fp8": "fp8"}
# A table without a header: its first row stands in the place of column names.
_BARE = ("bf16", "bf16.1", "1", "1024", "25.4893", "0.009")
_OUT_BYTES = 2

Found = tuple[str, OpWork, float]
"""(kernel, work, seconds)."""


def read(folder: Path) -> Counted:
    """One `latency` row (s) per kernel, and what happened to the other lines."""
    import polars as pl

    raw = pl.read_csv(folder / "infersim_bench.csv", infer_schema_length=None)
    counts: Counter[str] = Counter(available=raw.height)
    rows: list[dict[str, object]] = []
    for record in raw.iter_rows(named=True):
        parts = record["path"].split("/")
        name = "/".join(part for part in parts[1:3] if part not in DEVICES)
        reader = _READERS.get(name)
        if reader is None:
            counts["several kernels, or not said how it ran"] += 1
            continue
        device = next(DEVICES[part] for part in parts if part in DEVICES)
        rows += [_row(device, name, *found) for found in reader(record, parts[-1].removesuffix(".csv"))]
    return Counted(pl.DataFrame(rows), counts)


def _gemm(record: Mapping[str, Any], name: str) -> Iterator[Found]:
    yield "deepgemm", linear_work({**record, "gemm_dtype": "fp8_block"}), record["latency_us"] * 1e-6


def _grouped(record: Mapping[str, Any], name: str) -> Iterator[Found]:
    experts, rows = int(record["num_local_experts"]), max(1, int(record["tokens_per_expert"]))
    hidden, inner = int(record["hidden_size"]), int(record["intermediate_size"])
    for m, k, n, column in ((rows, hidden, 2 * inner, "up_proj_us"), (rows, inner, hidden, "down_proj_us")):
        yield "deepgemm", _grouped_work(experts, m, k, n), record[column] * 1e-6


def _grouped_work(experts: int, m: int, k: int, n: int) -> OpWork:
    """`experts` products (m, k) x (k, n) of FP8 with block scales in one kernel."""
    stored = STORAGE["fp8_block"]
    weights = round(experts * n * k * stored.weight_bytes)
    return OpWork(
        family=Family.MATMUL,
        kind="grouped",
        phase=Phase.FORWARD,
        compute=Compute.FP8,
        shape=Contraction(experts, m, n, k),
        element_bits=8 * _OUT_BYTES,
        matrix_flops=2 * experts * m * n * k,
        vector_flops=0,
        read_bytes=round(experts * m * k * stored.activation_bytes) + weights,
        write_bytes=experts * m * n * _OUT_BYTES,
        parameter_bytes=weights,
    )


def _attention(record: Mapping[str, Any], name: str) -> Iterator[Found]:
    heads, key_heads, width = map(int, name.split("-"))
    if record["latency_us"] is None:
        record = dict(
            zip(
                ("dtype", "kv_dtype", "batch_size", "kv_len", "latency_us", "mfu"),
                (record[key] for key in _BARE),
                strict=True,
            )
        )
    prefill = record.get("seq_len")
    queries = int(prefill) if prefill else 1
    row = {
        "batch_size": record["batch_size"] or 1,
        "isl": queries,
        "step": 0 if prefill else int(record["kv_len"]) - 1,
        "num_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": width,
        "causal": True,
        "window_size": 0,
        "attn_dtype": _TYPES[record["dtype"]],
        "kv_cache_dtype": _TYPES[record.get("kv_dtype") or record["dtype"]],
    }
    yield "flash", attention_work(row), record["latency_us"] * 1e-6


def _latent(record: Mapping[str, Any], name: str) -> Iterator[Found]:
    heads, *_ = map(int, name.split("-"))
    row = {
        "batch_size": record["batch_size"],
        "step": int(record["kv_len"]) - 1,
        "num_heads": heads,
        "mla_dtype": _TYPES[record["dtype"]],
        "kv_cache_dtype": _TYPES[record["kv_dtype"]],
    }
    yield "flash", latent_decode_work(row), record["latency_us"] * 1e-6


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Iterator[Found]]] = {
    "gemm": _gemm,
    "grouped_gemm/decode": _grouped,
    "grouped_gemm/prefill": _grouped,
    "mha/decode": _attention,
    "mha/prefill": _attention,
    "mla/decode": _latent,
}
"""Folders of the benchmark -> how a line of them becomes kernels."""


def _row(device: str, name: str, kernel: str, work: OpWork, seconds: float) -> dict[str, object]:
    facts = {"copies": 1, "kernel": kernel, "set": name, "stack": "infersim", "stores": False}
    return {
        "subject": work.family.value,
        "subject_kind": "op",
        "device": device,
        "configuration": canonical({**facts, "work": work_to_json(work)}),
        "quantity": "latency",
        "value": seconds,
        "unit": "s",
        "scope": "kernel",
        "source": SOURCE,
        "device_group": chip_of(device),
        "model_group": work.family.value,
    }
