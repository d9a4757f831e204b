"""Board power of single kernels from aiconfigurator: one kernel replayed back to back for about a second.

Readings are 100 ms samples of the board, averaged; a window that also caught the ramp or the pause reads
low, never high, so what a kernel draws is the upper envelope of its neighbours:
- along each size axis a closing (largest of 5 neighbours, then least of 5) fills dips of up to two readings
  and leaves rises alone; rows that lie a tenth below it are drop-outs and go;
- tables of which a reading differs by more than ROUGHEST from the mean of its neighbours (median before
  cleaning, along the worse of its size axes) go whole: on them the envelope itself is guesswork;
- large TensorRT-LLM products on the B200 read 694 W where vLLM reads 980 W in the same time: biased, gone.
Modules of several kernels (latent attention with its products, sparse attention, state space) are left out:
their power is that of their parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import OpWork
from predictor.models.corpus.aiconfigurator_works import (
    STORAGE,
    attention_work,
    latent_decode_work,
    latent_prefill_work,
    linear_work,
)
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical
from predictor.models.power.kernel_power import sizes_of, tiles_of

if TYPE_CHECKING:
    import polars as pl

SOURCE = "aiconfigurator-power"
DEVICES: Mapping[str, str] = {"h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-sxm-180gb"}
"""The publisher's systems -> catalogue ids."""

ROUGHEST = 0.15
"""Median |log W - mean of both neighbours| above which a table is not used."""
_DROP_OUT = 0.9
_BIASED_S = 1e-4
_TILE = 128
_REACH = 2


@dataclass(frozen=True, slots=True)
class Kernel:
    """What a row asks of the device: FLOPs at `compute`, bytes, 128 x 128 tiles, stored bits, sizes."""

    compute: str
    flops: float
    moved_bytes: float
    tiles: float
    bits: float
    sizes: tuple[float, float, float]


Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PowerTable:
    """One file: the columns that fix a curve, the size along it, the type column, and of how many one stays.

    `shape`: what leaves together when a shape is held out.
    """

    name: str
    file: str
    family: str
    curve: tuple[str, ...]
    axis: str
    precision: str
    shape: tuple[str, ...]
    kernel: Callable[[Row], Kernel]
    keep_one_of: int = 1
    second_axis: str | None = None


def read(folder: Path) -> Counted:
    """One `average_power` row per kept reading, and what became of the others."""
    import polars as pl

    frames, counts = [], {"available": 0, "used": 0}
    for table in TABLES:
        frame, found = _read_table(folder, table)
        frames.append(frame)
        for reason, count in found.items():
            counts[reason] = counts.get(reason, 0) + count
    return Counted(pl.concat(frames), counts)


def _read_table(folder: Path, table: PowerTable) -> tuple[pl.DataFrame, dict[str, int]]:
    import polars as pl

    frame = pl.read_parquet(folder / f"{table.file}.parquet").with_columns(
        pl.col(pl.Categorical).cast(pl.String)
    )
    counts = {"available": frame.height}
    frame = _complete(frame, table)
    keys = ["system", "stack", "kernel_source", *table.curve]
    frame = frame.sort(*keys, table.axis, "latency").unique(
        [*keys, table.axis], keep="first", maintain_order=True
    )
    counts["measured again"] = counts["available"] - frame.height
    envelope, roughness = curves(frame.select(keys), frame["power"].to_numpy().astype(np.float64))
    frame = frame.with_columns(envelope=pl.Series(envelope))
    frame = _with_table_roughness(frame, keys, table, roughness)
    rough = pl.col("table_roughness") > ROUGHEST
    biased = (
        (pl.col("stack") == "trtllm")
        & (pl.lit(table.name) == "gemm")
        & (pl.col("latency") * 1e-3 > _BIASED_S)
    )
    dropped = pl.col("power") < _DROP_OUT * pl.col("envelope")
    for reason, condition in (
        (f"table rougher than {ROUGHEST:g}", rough),
        ("large TensorRT-LLM products, biased", biased),
        ("drop-out below the envelope", dropped),
    ):
        before = frame.height
        frame = frame.filter(~condition)
        counts[reason] = before - frame.height
    before = frame.height
    shapes = frame.select(table.shape).unique(maintain_order=True)
    kept = [crc32(repr(shape).encode()) % table.keep_one_of == 0 for shape in shapes.iter_rows()]
    frame = frame.join(shapes.filter(pl.Series(kept)), on=table.shape, how="semi")
    counts["another shape of the grid stands for it"] = before - frame.height
    counts["used"] = frame.height
    return _conformed(frame, table), counts


def _with_table_roughness(
    frame: pl.DataFrame, keys: list[str], table: PowerTable, along_axis: NDArray[np.float64]
) -> pl.DataFrame:
    """`table_roughness`: median over a table (system, stack, type) along the worse of its size axes."""
    import polars as pl

    group = ["system", "stack", table.precision]
    finite = pl.col("rough").filter(pl.col("rough").is_finite())
    found = frame.with_columns(rough=pl.Series(along_axis)).group_by(group).agg(finite.median())
    if table.second_axis is not None:
        others = [*(key for key in keys if key != table.second_axis), table.axis]
        crossed = frame.sort(*others, table.second_axis)
        rough = curves(crossed.select(others), crossed["power"].to_numpy().astype(np.float64))[1]
        second = crossed.with_columns(rough=pl.Series(rough)).group_by(group).agg(finite.median())
        found = pl.concat([found, second]).group_by(group).agg(pl.col("rough").max())
    found = found.with_columns(pl.col("rough").fill_null(1.0).alias("table_roughness")).drop("rough")
    return frame.join(found, on=group, how="left", maintain_order="left")


def _complete(frame: pl.DataFrame, table: PowerTable) -> pl.DataFrame:
    import polars as pl

    defaults: dict[str, pl.Expr] = {
        "kv_cache_dtype": pl.lit("bfloat16"),
        "step": pl.lit(0),
        "window_size": pl.lit(0.0),
        "causal": pl.lit(table.file != "encoder_attention_perf"),
    }
    if "num_heads" in frame.columns:
        defaults["num_key_value_heads"] = pl.col("num_heads")
    frame = frame.with_columns(
        **{name: value for name, value in defaults.items() if name not in frame.columns}
    )
    if "window_size" in frame.columns:
        frame = frame.with_columns(pl.col("window_size").fill_null(0.0))
    return frame


def curves(
    keys: pl.DataFrame, power_w: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(envelope in W, roughness) of readings sorted along their curves; roughness is NaN at the ends."""
    import polars as pl

    run = keys.select(pl.struct(keys.columns).rle_id()).to_series().to_numpy()
    edges = np.concatenate([[0], np.flatnonzero(np.diff(run)) + 1, [len(run)]])
    logs = np.log(power_w)
    envelope, rough = np.empty_like(logs), np.full_like(logs, np.nan)
    for start, stop in pairwise(edges):
        part = logs[start:stop]
        envelope[start:stop] = closing(part)
        rough[start + 1 : stop - 1] = np.abs(part[1:-1] - (part[:-2] + part[2:]) / 2)
    return np.exp(envelope), rough


def closing(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Morphological closing with a window of 5: fills dips of up to two values; never below `values`."""
    # Nothing lies beyond the ends: a curve that rises from its first value keeps it.
    beyond = np.pad(values, 2 * _REACH, constant_values=-np.inf)
    return _windowed(_windowed(beyond, np.max), np.min)


def _windowed(values: NDArray[np.float64], pick: Callable[..., Any]) -> NDArray[np.float64]:
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * _REACH + 1)
    return np.asarray(pick(windows, axis=1), dtype=np.float64)


def _conformed(frame: pl.DataFrame, table: PowerTable) -> pl.DataFrame:
    import polars as pl

    rows = frame.to_dicts()
    devices = [DEVICES[row["system"]] for row in rows]
    return pl.DataFrame(
        {
            "subject": [table.name] * len(rows),
            "subject_kind": ["op"] * len(rows),
            "device": devices,
            "configuration": [_configuration(row, table) for row in rows],
            "quantity": ["average_power"] * len(rows),
            "value": [float(row["power"]) for row in rows],
            "unit": ["W"] * len(rows),
            "scope": ["gpu_board"] * len(rows),
            "source": [SOURCE] * len(rows),
            "device_group": [chip_of(device) for device in devices],
            "model_group": [
                f"{table.name} " + " ".join(str(row[name]) for name in table.shape) for row in rows
            ],
        },
        schema_overrides={"value": pl.Float64},
    )


def _configuration(row: Row, table: PowerTable) -> str:
    kernel = table.kernel(row)
    return canonical(
        {
            "bits": kernel.bits,
            "compute": kernel.compute,
            "envelope_w": round(float(row["envelope"]), 2),
            "family": table.family,
            "flops": kernel.flops,
            "latency_s": float(row["latency"]) * 1e-3,
            "moved_bytes": kernel.moved_bytes,
            "power_limit_w": float(row["power_limit"]),
            "precision": str(row[table.precision]),
            "stack": str(row["stack"]),
            "table_roughness": round(float(row["table_roughness"]), 4),
            "sizes": kernel.sizes,
            "tiles": kernel.tiles,
            # Equal shapes on two kernels are two readings.
            "kernel": str(row["kernel_source"]),
            "axis": float(row[table.axis]),
            "curve": " ".join(str(row[name]) for name in table.curve),
        }
    )


def kernel_of_work(work: OpWork, bits: float) -> Kernel:
    """What a priced row asks of the device."""
    return Kernel(
        work.compute.value, float(work.flops), float(work.moved_bytes), tiles_of(work), bits, sizes_of(work)
    )


def _gemm(row: Row) -> Kernel:
    return kernel_of_work(linear_work(row), 8 * STORAGE[row["gemm_dtype"]].weight_bytes)


def _attention(row: Row) -> Kernel:
    return kernel_of_work(attention_work(row), 16.0 if row["kv_cache_dtype"] == "bfloat16" else 8.0)


def _latent_prefill(row: Row) -> Kernel:
    return kernel_of_work(latent_prefill_work(row), 16.0 if row["kv_cache_dtype"] == "bfloat16" else 8.0)


def _latent_decode(row: Row) -> Kernel:
    return kernel_of_work(latent_decode_work(row), 16.0 if row["kv_cache_dtype"] == "bfloat16" else 8.0)


# Arithmetic, bytes of an activation, bytes of a weight.
_EXPERT_STORAGE: Mapping[str, tuple[str, float, float]] = {
    "bfloat16": ("bf16", 2.0, 2.0),
    "fp8": ("fp8", 1.0, 1.0),
    "fp8_block": ("fp8", 1.03, 1.0),
    "nvfp4": ("fp4", 0.5625, 0.5625),
    "int4_wo": ("bf16", 2.0, 0.5),
    "w4a16_mxfp4": ("bf16", 2.0, 0.53),
    "w4a8_mxfp4_mxfp8": ("fp8", 1.03, 0.53),
}


def _experts(row: Row) -> Kernel:
    """Routed experts of one rank: gate, up and down (without a gate two products) on its share of rows."""
    compute, active_bytes, weight_bytes = _EXPERT_STORAGE[row["moe_dtype"]]
    products = 2 if "nongated" in row["kernel_source"] else 3
    hidden, inner = float(row["hidden_size"]), float(row["inter_size"]) / float(row["moe_tp_size"])
    held = float(row["num_experts"]) / float(row["moe_ep_size"])
    rows = float(row["num_tokens"]) * float(row["topk"]) / float(row["moe_ep_size"])
    # With rows spread evenly, this many experts see at least one.
    touched = held * (1.0 - np.exp(-rows / held))
    moved = (
        touched * hidden * inner * products * weight_bytes + rows * (2 * hidden + 3 * inner) * active_bytes
    )
    tiles = max(1.0, touched) * ceil(rows / max(1.0, touched) / _TILE) * ceil(inner / _TILE)
    sizes = (rows / max(1.0, touched), inner, hidden)
    return Kernel(compute, 2 * rows * hidden * inner * products, moved, tiles, 8 * weight_bytes, sizes)


_ATTENTION_CURVE = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size", "attn_dtype",
                    "kv_cache_dtype", "causal")  # fmt: skip
_HEADS = ("batch_size", "num_heads", "num_key_value_heads", "head_dim", "window_size")
_EXPERT_SHAPE = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")

TABLES: tuple[PowerTable, ...] = (
    PowerTable(
        "gemm", "gemm_perf", "matmul", ("gemm_dtype", "n", "k"), "m", "gemm_dtype", ("n", "k"), _gemm, 1
    ),
    PowerTable(
        "experts", "moe_perf", "experts",
        ("moe_dtype", *_EXPERT_SHAPE, "distribution"),
        "num_tokens", "moe_dtype", _EXPERT_SHAPE, _experts, 1,
    ),
    PowerTable(
        "prefill", "context_attention_perf", "attention", (*_ATTENTION_CURVE, "step"), "isl", "attn_dtype",
        _HEADS, _attention, 3, "batch_size",
    ),
    PowerTable(
        "decode", "generation_attention_perf", "attention", (*_ATTENTION_CURVE, "isl"), "step", "attn_dtype",
        _HEADS, _attention, 2, "batch_size",
    ),
    PowerTable(
        "encoder", "encoder_attention_perf", "attention", _ATTENTION_CURVE, "isl", "attn_dtype",
        ("batch_size", "num_heads", "head_dim"), _attention, 1, "batch_size",
    ),
    PowerTable(
        "latent_prefill", "context_mla_perf", "attention", ("mla_dtype", "kv_cache_dtype", "num_heads",
        "batch_size", "tp_size", "step"), "isl", "mla_dtype", ("num_heads", "batch_size"), _latent_prefill,
        1, "batch_size",
    ),
    PowerTable(
        "latent_decode", "generation_mla_perf", "attention", ("mla_dtype", "kv_cache_dtype", "num_heads",
        "batch_size", "tp_size", "isl"), "step", "mla_dtype", ("num_heads", "batch_size"), _latent_decode,
        1, "batch_size",
    ),
)  # fmt: skip
