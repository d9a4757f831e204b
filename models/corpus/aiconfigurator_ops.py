"""Operator tables of aiconfigurator: kernels and layers of three stacks on seven systems, in CUDA graphs.

No host is in these times, so their scope is `kernel`; a GEMM is repeated five times in one graph, on operands
of its own each. Cleaning, by system, stack, kernel and types:
- a group whose fastest calls take over 20 µs a kernel was timed with its dispatch (none needs that long to
  start): rows below twice its fastest are dispatch, not work, and go;
- a row is too fast when it beats the rated FLOP/s, or the rated bandwidth on more than any cache holds. A
  group of which more than one row in fifty is too fast did less work than its rows say, and goes whole (the
  prefill of SGLang's TRT-LLM kernels on B200, decode with shared keys of TRT-LLM on A100 and L40S: whether
  heads share keys and whether queries are few divides groups further); in others such rows go one by one;
- equal keys are measured again under another tensor-parallel degree: their median stays.
Of the dense grids one shape in several is kept, the same on every system and stack (a hash of the shape).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work_json import work_to_json
from predictor.features.tables.rows import cache_bytes
from predictor.hardware.catalog import find_device
from predictor.hardware.sustained import matrix_peak
from predictor.models.corpus.aiconfigurator_layers import LAYER_TABLES, skew_of
from predictor.models.corpus.aiconfigurator_works import TABLES, Table
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "aiconfigurator-ops"
DEVICES: Mapping[str, str] = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "gb200": "gb200-superchip-186gb",
    "l40s": "l40s-pcie-48gb",
    "b60": "arc-pro-b60-24gb",
}
"""The publisher's systems -> catalogue ids."""

SLOW_START_S = 20e-6
"""A group whose fastest calls (0.5 % quantile) take longer a kernel holds dispatch."""
_START_QUANTILE = 0.005
_SEEN_THROUGH_DISPATCH = 2.0
_FAULTY_SHARE = 0.02
_BEYOND_CACHE = 2.5
_FEW_QUERIES = 32
# Their calls rotate queries and keys and store keys and values, too.
_STORING = frozenset({"prefill", "decode", "latent_prefill", "latent_decode"})
_PATHS = ("kv_cache_dtype",)

KERNELS: tuple[tuple[str, str], ...] = (
    ("flashinfer_trtllm_moe", "trtllm_gen"),
    ("flashinfer_trtllm_trtllm", "trtllm_gen"),
    ("moe_torch_flow_min_latency", "min_latency"),
    ("moe_torch_flow", "cutlass"),
    ("vllm_fused_moe", "triton"),
    ("delta_rule_flashinfer", "flashinfer"),
    # Of flash-linear-attention, written in Triton.
    ("chunk_gated_delta_rule", "triton"),
    ("triton", "triton"),
    ("deepgemm", "deepgemm"),
    ("trtllm_mha", "trtllm_gen"),
    ("trtllmprefill", "trtllm_gen"),
    ("trtllmdecode", "trtllm_gen"),
    ("trtllm_mla", "trtllm_gen"),
    ("cutlass", "cutlass"),
    ("sgl_kernel", "cutlass"),
    ("cutedsl", "cutlass"),
    ("weight_only", "plugin"),
    ("smooth_quant", "plugin"),
    ("flashinfer", "flashinfer"),
    ("flashmla", "flash"),
    ("flash", "flash"),
    ("fa3", "flash"),
)
"""Part of a `kernel_source` -> whose kernel it is, first match first."""

_GRID_COPIES = 5
"""A CUDA graph of the GEMM table holds five repetitions (SOURCE.md)."""
# Odd multipliers of a fixed integer hash, so that a corpus is the same everywhere.
_MIX, _MODULUS = 2654435761, 2**32


def read(folder: Path) -> Counted:
    """One `latency` row (s) per kept grid point, and what happened to the others."""
    import polars as pl

    frames, counts = [], {"available": 0}
    for table in (*TABLES, *LAYER_TABLES):
        frame, found = _read_table(folder, table)
        frames.append(frame)
        for reason, count in found.items():
            counts[reason] = counts.get(reason, 0) + count
    return Counted(pl.concat(frames), counts)


def kernel_of(kernel_source: str, precision: str, table: str) -> str:
    """Whose kernel ran; `own` where the stack chose and does not say."""
    name = kernel_source.lower()
    found = next((kernel for part, kernel in KERNELS if part in name), "own")
    # All three stacks hand plain products to torch, and torch to cuBLAS.
    return "cublas" if (found, precision, table) == ("own", "bfloat16", "gemm") else found


def _read_table(folder: Path, table: Table) -> tuple[pl.DataFrame, dict[str, int]]:
    import polars as pl

    frame = pl.read_parquet(folder / f"{table.file}.parquet")
    frame = _columns(frame.filter(pl.col("kernel_source").cast(pl.String).str.contains(table.part)), table)
    counts = {"available": frame.height}
    frame = frame.filter(~pl.col("single"))
    counts["prefill of one token: a step has rows of its own"] = counts["available"] - frame.height
    before = frame.height
    frame = frame.filter(_kept(frame, table))
    counts["another shape of the grid stands for it"] = before - frame.height
    group = ["system", "stack", "kernel", table.precision, *(name for name in _PATHS if name in table.keys)]
    works = _works(frame, table)
    frame = frame.join(works, on=table.keys, how="left", maintain_order="left")
    start_s = pl.col("latency").quantile(_START_QUANTILE).over(group)
    frame = frame.with_columns(dispatched=start_s > SLOW_START_S * table.kernels, start=start_s)
    dispatch = pl.col("dispatched") & (pl.col("latency") < _SEEN_THROUGH_DISPATCH * pl.col("start"))
    counts["dispatch hides the kernel"] = int(frame.select(dispatch.sum()).item())
    frame = frame.filter(~dispatch)
    frame = frame.with_columns(too_fast=pl.Series(_too_fast(frame, table)))
    paths = _paths(table)
    frame = frame.with_columns(**paths)
    faulty = pl.col("too_fast").mean().over([*group, *paths]) > _FAULTY_SHARE
    counts["its group skips work: too fast for the device"] = int(frame.select(faulty.sum()).item())
    frame = frame.filter(~faulty)
    counts["too fast for the device"] = int(frame["too_fast"].sum())
    frame = frame.filter(~pl.col("too_fast"))
    before = frame.height
    keys = ["system", "stack", "kernel", *table.keys]
    frame = frame.group_by(keys, maintain_order=True).agg(
        pl.col("latency").median(),
        pl.col("dispatched").first(),
        pl.col("work").first(),
        pl.col("family").first(),
    )
    counts["measured again: median taken"] = before - frame.height
    counts["used"] = frame.height
    return _conformed(frame, table), counts


def _columns(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The table's keys, filled where a file leaves them out, the kernel's maker and the latency in s."""
    import polars as pl

    frame = frame.with_columns(pl.col(pl.Categorical).cast(pl.String))
    defaults = {
        "num_key_value_heads": pl.col("num_heads") if "num_heads" in frame.columns else None,
        "kv_cache_dtype": pl.lit("bfloat16"),
        "step": pl.lit(0),
        "window_size": pl.lit(0.0),
        # An encoder sees all tokens; the other tables are causal.
        "causal": pl.lit(table.file != "encoder_attention_perf"),
        "gated": _gated(frame.columns),
        "precision": pl.lit("bfloat16"),
        "channels": _channels(frame.columns),
        "single": (pl.col("phase") == "context") & (pl.col("seq_len") == 1)
        if "phase" in frame.columns
        else pl.lit(False),
        # TensorRT-LLM and the older SGLang of the A100 keep states in 16 bits: with 32 they beat the memory.
        "state_bytes": pl.when((pl.col("stack") == "trtllm") | (pl.col("system") == "a100_sxm"))
        .then(2)
        .otherwise(4),
    }
    absent = [name for name in (*table.keys, "single") if name not in frame.columns]
    frame = frame.with_columns(**{name: defaults[name] for name in absent})
    if "window_size" in table.keys:
        frame = frame.with_columns(pl.col("window_size").fill_null(0.0))
    if table.file == "gemm_perf":
        # SGLang's 8-bit weights multiply 8-bit activations: its rates lie above the BF16 peak.
        integer = (pl.col("stack") == "sglang") & (pl.col("gemm_dtype") == "int8_wo")
        frame = frame.with_columns(
            gemm_dtype=pl.when(integer).then(pl.lit("sq")).otherwise(pl.col("gemm_dtype"))
        )
    sources = ["kernel_source", table.precision]
    pairs = frame.select(sources).unique(maintain_order=True)
    pairs = pairs.with_columns(
        kernel=pl.Series([kernel_of(name, kind, table.name) for name, kind in pairs.iter_rows()])
    )
    return frame.join(pairs, on=sources, how="left", maintain_order="left").select(
        "system", "stack", "kernel", "single", *table.keys, latency=pl.col("latency").cast(pl.Float64) * 1e-3
    )


def _gated(columns: Sequence[str]) -> pl.Expr:
    """Whether experts have a gate: all but those of the Nemotron-3 family, whatever the stack.

    With a third matrix 96 tokens would read 10 TB/s on a B200 that has 8.
    """
    import polars as pl

    if "inter_size" not in columns:
        return pl.lit(True)
    return ~((pl.col("topk") == 22) | (pl.col("inter_size") == 1856))


def _channels(columns: Sequence[str]) -> pl.Expr:
    """Width of a causal convolution: values, keys and queries; of Mamba-2, what enters the state."""
    import polars as pl

    if "nheads" in columns:
        return pl.col("nheads") * pl.col("head_dim") + 2 * pl.col("n_groups") * pl.col("d_state")
    if "num_k_heads" not in columns:
        return pl.lit(0)
    keys, values = (pl.col(f"num_{x}_heads") * pl.col(f"head_{x}_dim") for x in "kv")
    return 2 * keys + values


def _kept(frame: pl.DataFrame, table: Table) -> NDArray[np.bool_]:
    """Whether a row's shape is one of the kept: by its whole numbers, not by its types or stack."""
    state = np.full(frame.height, 2166136261, dtype=np.uint64)
    for name in table.keys:
        if frame.schema[name].is_numeric():
            state = (state ^ frame[name].to_numpy().astype(np.uint64)) * _MIX % _MODULUS
            state = state ^ (state >> np.uint64(15))
    kept: NDArray[np.bool_] = state % table.keep_one_of == 0
    return kept


def _works(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The work of every distinct key, as JSON, with its family, FLOPs, traffic and arithmetic."""
    import polars as pl

    distinct = frame.select(table.keys).unique(maintain_order=True)
    works = [table.work(row) for row in distinct.iter_rows(named=True)]
    return distinct.with_columns(
        work=pl.Series([canonical(work_to_json(work)) for work in works]),
        family=pl.Series([work.family.value for work in works]),
        flops=pl.Series([float(work.matrix_flops) for work in works]),
        moved=pl.Series([float(work.moved_bytes) for work in works]),
        compute=pl.Series([work.compute.value for work in works]),
    )


def _paths(table: Table) -> dict[str, pl.Expr]:
    """What else decides which code of a kernel runs, and so which rows are faulty together."""
    import polars as pl

    found = {}
    if "num_key_value_heads" in table.keys:
        found["shared_keys"] = pl.col("num_heads") > pl.col("num_key_value_heads")
    if "isl" in table.keys:
        found["few_queries"] = pl.col("isl") <= _FEW_QUERIES
    if "distribution" in table.keys:
        found["skewed"] = pl.col("distribution") != "balanced"
        found["shared_experts"] = pl.col("moe_ep_size") > 1
    return found


def _too_fast(frame: pl.DataFrame, table: Table) -> NDArray[np.bool_]:
    latency_s, flops, moved = (frame[name].to_numpy() for name in ("latency", "flops", "moved"))
    devices = {name: find_device(DEVICES[name]) for name in frame["system"].unique()}
    # What a device has no unit for runs at its BF16 rate.
    peaks = {
        (name, kind): max(matrix_peak(device, kind), matrix_peak(device, "bf16"))
        for name, device in devices.items()
        for kind in frame["compute"].unique()
    }
    peak = np.array([peaks[key] for key in frame.select("system", "compute").iter_rows()])
    bandwidth, cache = (
        np.array([values[name] for name in frame["system"]])
        for values in (
            {name: device.memory_bytes_per_s for name, device in devices.items()},
            {name: cache_bytes(device) for name, device in devices.items()},
        )
    )
    # What a layer reads once a call is still there in part when it is called again.
    held = cache if table.kernels > 1 else 0.0
    found: NDArray[np.bool_] = (flops > peak * latency_s) | (
        (moved > _BEYOND_CACHE * cache) & (moved - held > bandwidth * latency_s)
    )
    return found


def _conformed(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    import polars as pl

    # Layers of their own models count as no family of ops: nothing that learns single ops takes them for one.
    subject = pl.lit(table.name) if table in LAYER_TABLES else pl.col("family")
    copies = _GRID_COPIES if table.file == "gemm_perf" else 1
    stores = f'"stores":{"true" if table.name in _STORING else "false"}'
    ranks, skews = [""] * frame.height, [""] * frame.height
    if "distribution" in table.keys:
        ranks = [f'"ranks":{count},' for count in frame["moe_ep_size"]]
        skews = [f'"skew":{skew_of(name)},' for name in frame["distribution"]]
    configurations = [
        f'{{"copies":{copies},"kernel":"{kernel}",{shared}"set":"{table.name}",{skew}"stack":"{stack}",{stores},'
        f'"work":{work}}}'
        for kernel, stack, work, shared, skew in zip(
            frame["kernel"], frame["stack"], frame["work"], ranks, skews, strict=True
        )
    ]
    return frame.select(
        subject=subject,
        subject_kind=pl.lit("op"),
        device=pl.col("system").replace_strict(DEVICES),
        configuration=pl.Series(configurations),
        quantity=pl.lit("latency"),
        value=pl.col("latency"),
        unit=pl.lit("s"),
        scope=pl.when("dispatched").then(pl.lit("kernel_and_dispatch")).otherwise(pl.lit("kernel")),
        source=pl.lit(SOURCE),
        device_group=pl.col("system").replace_strict({name: chip_of(id) for name, id in DEVICES.items()}),
        model_group=subject,
    )
