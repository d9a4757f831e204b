"""Rows of kernels measured without a host: products on tensor cores, fused attention, experts, states.

Each row has a base time, what a kernel of that tiling hardly beats, and dimensionless features of how its
shape meets the device. Base and features take the FLOP/s that boards reach in their best products, not the
rated ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from predictor.features.dtype import Compute
from predictor.features.programs.work import (
    AttentionShape,
    Contraction,
    Convolution,
    Family,
    OpWork,
    Phase,
)
from predictor.features.tables import expert_rows, state_rows
from predictor.features.tables.kernel_facts import (
    KERNELS,
    PRODUCT_TILE_CYCLES,
    STACKS,
    Facts,
    Run,
    alignment,
    code,
    fill,
    start_time_s,
)
from predictor.features.tables.rows import FeatureMatrix
from predictor.features.tables.tiles import FloatArray, product_of
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.hardware.sustained import matrix_peak, sustained_matrix_rate

_SCHEMA_VERSION = 4


class KernelModel(StrEnum):
    """Which booster prices a work that no host is timed with."""

    PRODUCT = "tensor_product"
    ATTENTION = "attention"
    EXPERTS = "experts"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class KernelRows:
    """n works: features (n, columns), base_s (n,)."""

    features: FeatureMatrix
    base_s: FloatArray


KINDS = ("linear", "linear_block", "linear_weight_only")
"""How a product's weights are scaled; what is none of these counts as the first."""

# Results of the special function units per core and cycle, on every NVIDIA generation from 7.0 to 10.0
# (CUDA programming guide, throughput of arithmetic instructions).
_EXPONENTIALS_PER_CYCLE = 16.0
_ATTENTION_SHARE = 0.75
_OVERLAP = 0.5
_TILE_CYCLES = 2000.0
_STORE_STARTS = 2.0

_TILES: tuple[tuple[int, int, float], ...] = (
    (256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.97), (64, 256, 0.95), (256, 64, 0.95), (128, 64, 0.88),
    (64, 128, 0.9), (64, 64, 0.8), (64, 32, 0.6), (32, 64, 0.6), (16, 64, 0.4), (32, 32, 0.4),
    (16, 128, 0.45), (16, 256, 0.45),
)  # fmt: skip
"""(rows, columns, share of the rate inside the tile)."""
_PART_DEPTH = 256
# Serving stacks round activations to a narrow type before each product: 2 bytes read, 1 written an element.
_QUANTISED = frozenset({Compute.FP8, Compute.FP4, Compute.INT8})
_QUANTISED_BYTES = 3.0
_QUERY_TILE, _LEAST_QUERY_TILE, _KEY_TILE = 128, 16, 64
# FlashAttention's smallest tile: 64 queries, however few there are, by 128 keys.
_LEAST_FLASH_TILE, _FLASH_KEY_TILE = 64, 128
_KEY_PART = 512
_NEWER_KERNELS = frozenset({"hopper", "blackwell"})
"""Architectures for which TensorRT-LLM has attention kernels of its own generation."""


def kernel_model(work: OpWork, device: DeviceSpec) -> KernelModel | None:
    """The model of a work's kernel on a device; None: the kernel is not of these kinds."""
    if device.kind not in (DeviceKind.GPU, DeviceKind.EDGE) or not uses_matrix_units(work.compute, device):
        return None
    if work.family is Family.ATTENTION and isinstance(work.shape, AttentionShape):
        return KernelModel.ATTENTION
    if work.phase is Phase.FORWARD and isinstance(work.shape, Contraction | Convolution):
        if expert_rows.are_experts(work, device):
            return KernelModel.EXPERTS
        if work.kind in (state_rows.ATTENTION_KIND, state_rows.CONVOLUTION_KIND):
            return KernelModel.STATE
    return KernelModel.PRODUCT if work.family in (Family.MATMUL, Family.BATCHED_MATMUL) else None


def usual_run(model: KernelModel, work: OpWork) -> Run:
    """How a framework runs a work when nobody says: the vendor's product, a FlashAttention kernel."""
    if model is KernelModel.ATTENTION:
        return _FLASH
    if model is not KernelModel.PRODUCT:
        return _UNTOLD
    return _VENDOR if work.compute in _VENDOR_TYPES and work.kind != "linear_weight_only" else _UNTOLD


_UNTOLD, _FLASH, _VENDOR = Run(), Run(kernel="flash"), Run(kernel="cublas")
_VENDOR_TYPES = frozenset({Compute.BF16, Compute.FP16, Compute.TF32})


def uses_matrix_units(compute: Compute, device: DeviceSpec) -> bool:
    """Whether products in `compute` are of a narrow type that runs faster than on the plain pipelines."""
    wide = compute in (Compute.FP32, Compute.FP64)
    return not wide and matrix_peak(device, compute) > device.vector_flops_per_s


def kernel_rows(
    model: KernelModel,
    works: Sequence[OpWork],
    device: DeviceSpec,
    runs: Sequence[Run],
) -> KernelRows:
    """Rows of `works`, in order; `runs` says how each was run. Raises TypeError for the shape of another."""
    facts = Facts.of(works, device, runs)
    columns, base_s = _BUILDERS[model](works, facts, device)
    return KernelRows(np.stack([columns[name] for name in NAMES[model]], axis=1).astype(np.float32), base_s)


def schema_hash(models: Collection[KernelModel] = tuple(KernelModel)) -> str:
    """Hex digest that changes with the columns of these models."""
    columns = (f"{model}:{','.join(names)}" for model, names in NAMES.items() if model in models)
    return hashlib.sha256(f"{_SCHEMA_VERSION}|{'|'.join(columns)}".encode()).hexdigest()


def _overlapped(first: FloatArray, second: FloatArray) -> FloatArray:
    """Time of two units that run together, but wait for each other half of the shorter time."""
    return np.maximum(first, second) + _OVERLAP * np.minimum(first, second)


def _product_columns(
    works: Sequence[OpWork], facts: Facts, device: DeviceSpec
) -> tuple[dict[str, FloatArray], FloatArray]:
    shapes = [product_of(work.shape) for work in works]
    batch, m, n, k = np.maximum(
        np.array([(s.batch, s.m, s.n, s.k) for s in shapes], dtype=np.float64).reshape(-1, 4), 1.0
    ).T
    cores, start_s = device.core_count, start_time_s(device)
    right = np.where(facts.weight > 0, facts.weight, facts.read * n / (m + n))
    left = np.maximum(facts.read - right, 1.0)
    per_core = facts.rate / cores
    times = []
    for rows, cols, share in _TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / cols)
        parts = np.clip(np.floor(np.minimum(cores / tiles, k / _PART_DEPTH)), 1, None)
        waves = np.ceil(tiles * parts / cores)
        multiplied_s = rows * cols * 2 * (k / parts) / (per_core * share)
        times.append(waves * (multiplied_s + PRODUCT_TILE_CYCLES / device.clock_hz))
    # A few rows need no tile: the plain pipelines multiply them while the matrix streams by.
    times.append(facts.flops / device.vector_flops_per_s)
    compute_s = np.min(times, axis=0)
    memory_s = facts.memory_s(device, (left, facts.write))
    base_s = np.maximum(compute_s, memory_s) + start_s + _quantised_s(works, facts, device, batch * m * k)
    square = batch * np.ceil(m / 128) * np.ceil(n / 128) / cores
    wide = batch * np.ceil(m / 128) * np.ceil(n / 256) / cores
    columns = {
        "log2_batch": np.log2(batch),
        "log2_m": np.log2(m),
        "log2_n": np.log2(n),
        "log2_k": np.log2(k),
        "log_waves": np.log(square),
        "fill_128": fill(square),
        "fill_256": fill(wide),
        **facts.product_columns(device, memory_s, compute_s, base_s),
        "align_m": alignment(m),
        "align_n": alignment(n),
        "align_k": alignment(k),
        "log2_part_depth": np.log2(k / np.clip(np.floor(np.minimum(1 / square, k / _PART_DEPTH)), 1, None)),
        "row_fill": m / (np.ceil(m / 128) * 128),
        "log2_left_bytes": np.log2(left / (batch * m * k)),
        "log2_right_bytes": np.log2(right / (batch * n * k)),
        "scaling": np.array([code(KINDS, work.kind) if work.kind in KINDS else 0.0 for work in works]),
        "stack": facts.stack,
        "kernel": facts.kernel,
    }
    return columns, base_s


def _quantised_s(
    works: Sequence[OpWork], facts: Facts, device: DeviceSpec, elements: FloatArray
) -> FloatArray:
    """(n,) time of the kernel that makes a narrow left operand of as many 16-bit `elements`."""
    moved = _QUANTISED_BYTES * elements
    quantised_s = facts.traffic_s(device, moved, facts.hot_share(2 * moved)) + start_time_s(device)
    narrow = np.array([work.compute in _QUANTISED for work in works])
    return np.where(narrow, quantised_s, 0.0)


def _attention_columns(
    works: Sequence[OpWork], facts: Facts, device: DeviceSpec
) -> tuple[dict[str, FloatArray], FloatArray]:
    table = []
    for work in works:
        s = work.shape
        if not isinstance(s, AttentionShape):
            raise TypeError(f"{type(s).__name__} is no attention")
        table.append(
            (s.batch, s.heads, s.kv_heads, s.q_length, s.keys_seen, s.head_dim, s.value_dim, s.pairs,
             s.causal, s.window > 0, s.kv_length)
        )  # fmt: skip
    (batch, heads, kv_heads, queries, keys, width, value, pairs, causal, window, length) = np.maximum(
        np.array(table, dtype=np.float64).reshape(-1, 11), 0.0
    ).T
    kv_heads, queries, keys, pairs = (np.maximum(x, 1.0) for x in (kv_heads, queries, keys, pairs))
    cores, start_s = device.core_count, start_time_s(device)
    # Softmax leaves the matrix units idle often enough for the rated clock; products run into the watts.
    rate = np.array([sustained_matrix_rate(device, work.compute) for work in works])
    group = np.maximum(heads / kv_heads, 1.0)
    # Query heads of one key head share a tile where there are few queries.
    packed = queries * group < _QUERY_TILE
    rows = np.where(packed, queries * group, queries)
    flash = facts.kernel == KERNELS.index("flash")
    least = np.where(flash, _LEAST_FLASH_TILE, _LEAST_QUERY_TILE)
    tile = np.clip(2.0 ** np.ceil(np.log2(rows)), least, _QUERY_TILE)
    tiles = batch * np.where(packed, kv_heads, heads) * np.ceil(rows / tile)
    # Whole key tiles: the diagonal of a causal mask and the edges of a window are computed and thrown away.
    span = np.minimum(np.where(causal > 0, pairs / queries + tile / 2, pairs / queries), keys)
    parts = np.clip(np.floor(np.minimum(cores / tiles, span / _KEY_PART)), 1, None)
    key_tile = np.where(flash, _FLASH_KEY_TILE, _KEY_TILE)
    tile_keys = np.ceil(span / parts / key_tile) * key_tile
    waves = np.ceil(tiles * parts / cores)
    matrix_s = tile * tile_keys * 2 * (width + value) / (rate / cores * _ATTENTION_SHARE)
    exponential_s = tile * tile_keys / (_EXPONENTIALS_PER_CYCLE * device.clock_hz)
    tiled_s = waves * (_overlapped(matrix_s, exponential_s) + _TILE_CYCLES / device.clock_hz)
    whole_s = facts.flops / (rate * _ATTENTION_SHARE)
    kept = np.maximum(facts.read - 2 * batch * heads * queries * width, 1.0)
    # The layers' weights pass through the cache between a step's keys and the next step's reading of them.
    earlier = np.where(facts.copies == 0, kept * np.maximum(1 - queries / keys, 0.0), 0.0)
    moved_s = facts.memory_s(device, (facts.read - earlier, facts.write))
    # What stores the new keys and values before the kernel runs; TensorRT-LLM's also rotates the queries.
    rotated = np.where(facts.stack == STACKS.index("trtllm"), heads * width, 0.0)
    stored = np.where(facts.stores, 4.0 * batch * queries * (rotated + kv_heads * (width + value)), 0.0)
    stored_s = facts.traffic_s(device, stored, facts.hot_share(facts.read + facts.write + stored))
    memory_s = moved_s + stored_s
    starts = 1 + np.where(facts.stores, _STORE_STARTS, 0.0) + np.where(parts > 1, 1.0, 0.0)
    base_s = np.maximum(tiled_s, moved_s) + stored_s + starts * start_s
    square = tiles / cores
    # TensorRT-LLM's own choice is the kernel that others call elsewhere; boards before Hopper get older ones.
    newer = device.architecture.lower() in _NEWER_KERNELS
    chosen = (facts.kernel == KERNELS.index("own")) & (facts.stack == STACKS.index("trtllm")) & newer
    maker = np.where(chosen, float(KERNELS.index("trtllm_gen")), facts.kernel)
    columns = {
        "log2_batch": np.log2(batch),
        "log2_heads": np.log2(heads),
        "log2_group": np.log2(group),
        "log2_queries": np.log2(queries),
        "log2_keys": np.log2(keys),
        "log2_length": np.log2(length),
        "log2_width": np.log2(width),
        "align_width": alignment(width),
        "log2_value": np.log2(value),
        "causal": causal,
        "window": window,
        "log_waves": np.log(square),
        "fill": fill(square),
        "log_tiles_over_flops": np.log(tiled_s / whole_s),
        "log_memory_over_flops": np.log(memory_s / whole_s),
        "log_memory_over_tiles": np.log(memory_s / tiled_s),
        "log_base": np.log(base_s / start_s),
        "log_tiles": np.log(tiled_s / start_s),
        "log_memory": np.log(memory_s / start_s),
        "log_bytes_over_cache": np.log((facts.read + facts.write) / facts.cache),
        "log2_kept_bytes": np.log2(kept / (batch * kv_heads * keys * np.maximum(width, value))),
        "narrow": np.array([work.compute in (Compute.FP8, Compute.INT8) for work in works], dtype=np.float64),
        "stack": facts.stack,
        "kernel": maker,
    }
    return columns, base_s


_PRODUCT_NAMES = (
    "log2_batch", "log2_m", "log2_n", "log2_k", "log_waves", "fill_128", "fill_256", "log_memory_over_flops",
    "log_memory_over_tiles", "log_tile_share", "log_base", "log_compute", "log_memory",
    "log_bytes_over_cache", "align_m", "align_n", "align_k", "log2_part_depth", "row_fill",
    "log2_left_bytes", "log2_right_bytes", "scaling", "stack", "kernel",
)  # fmt: skip
_ATTENTION_NAMES = (
    "log2_batch", "log2_heads", "log2_group", "log2_queries", "log2_keys", "log2_length", "log2_width",
    "align_width", "log2_value", "causal", "window", "log_waves", "fill", "log_tiles_over_flops",
    "log_memory_over_flops", "log_memory_over_tiles", "log_base", "log_tiles",
    "log_memory", "log_bytes_over_cache", "log2_kept_bytes", "narrow", "stack", "kernel",
)  # fmt: skip
NAMES: Mapping[KernelModel, tuple[str, ...]] = {
    KernelModel.PRODUCT: _PRODUCT_NAMES,
    KernelModel.ATTENTION: _ATTENTION_NAMES,
    KernelModel.EXPERTS: expert_rows.NAMES,
    KernelModel.STATE: state_rows.NAMES,
}
"""Names of the columns; the last ones say how it was run and are missing where nobody says."""
RUN_COLUMNS: Mapping[KernelModel, int] = {
    KernelModel.PRODUCT: 2,
    KernelModel.ATTENTION: 2,
    KernelModel.EXPERTS: 3,
    KernelModel.STATE: 2,
}
"""How many of the last columns these are: the library, and how tokens spread over experts."""

_BUILDERS: Mapping[
    KernelModel,
    Callable[[Sequence[OpWork], Facts, DeviceSpec], tuple[dict[str, FloatArray], FloatArray]],
] = {
    KernelModel.PRODUCT: _product_columns,
    KernelModel.ATTENTION: _attention_columns,
    KernelModel.EXPERTS: expert_rows.expert_columns,
    KernelModel.STATE: state_rows.state_columns,
}
