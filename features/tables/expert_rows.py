"""Rows of grouped products: sorted tokens times the matrices of their experts, alone or as a whole layer.

What was measured is the layer of one rank: tokens sorted, two grouped products (gate and up in one), the
activation between them, and each token's results added up. What a network asks for is one of the products,
or the layer. Both are rows here: the first product's shape, and how many times its FLOPs the work holds.
Each matrix that a token touches is read once; a tile holds tokens of one expert only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from predictor.features.programs.work import Contraction, OpWork
from predictor.features.tables.kernel_facts import (
    PRODUCT_TILE_CYCLES,
    Facts,
    alignment,
    fill,
    start_time_s,
)
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import reached_matrix_rate

PRODUCT_KIND = "grouped_matmul"
PASSES: Mapping[str, float] = {PRODUCT_KIND: 1.0, "gated_experts": 1.5, "plain_experts": 2.0}
"""Kind of work -> its FLOPs over those of its first product (whose columns hold gate and up, where gated)."""

NAMES = (
    "log2_groups", "log2_rows", "log2_n", "log2_k", "log_waves", "fill", "log_memory_over_flops",
    "log_memory_over_tiles", "log_tile_share", "log_base", "log_compute", "log_memory",
    "log_bytes_over_cache", "align_n", "align_k", "row_fill", "log2_weight_bytes", "log2_ranks",
    "log_spread", "skew", "stack", "kernel",
)  # fmt: skip

_TILES: tuple[tuple[int, int, float], ...] = (
    (16, 64, 0.35), (16, 128, 0.45), (32, 128, 0.6), (64, 128, 0.85), (64, 256, 0.92), (128, 128, 0.95),
    (128, 256, 1.0), (256, 128, 1.0),
)  # fmt: skip
"""(rows, columns, share of the rate inside the tile)."""
# Kernels of a layer beside its first product: counting, sorting, gathering (and narrowing) rows, the
# activation (and narrowing again), the second product, the sum.
_STARTS_BESIDE = 8.0
_ROW_BYTES = 2.0


def are_experts(work: OpWork, device: DeviceSpec) -> bool:
    """Whether a work is a layer of experts, or a grouped product that waits for its matrices.

    One that waits for its FLOPs is a product like others: the layers' own kernels say less of it. On an H800,
    which neither saw, InferSim's grouped products of prefill are 13 % off as products, 60 % as shares of
    layers.
    """
    if work.kind != PRODUCT_KIND:
        return work.kind in PASSES
    read_s = work.parameter_bytes / device.memory_bytes_per_s
    return read_s * reached_matrix_rate(device, work.compute) > work.matrix_flops


def expert_columns(
    works: Sequence[OpWork], facts: Facts, device: DeviceSpec
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Columns by name and base_s, each (n,). Raises TypeError for works without a contraction."""
    groups, m, n, k = _shapes(works)
    passes = np.array([PASSES[work.kind] for work in works])
    cores, start_s = device.core_count, start_time_s(device)
    per_core = facts.rate / cores
    times = []
    for rows, cols, share in _TILES:
        waves = np.ceil(groups * np.ceil(m / rows) * np.ceil(n / cols) / cores)
        times.append(
            waves * (rows * cols * 2 * k / (per_core * share) + PRODUCT_TILE_CYCLES / device.clock_hz)
        )
    compute_s = passes * np.min(times, axis=0)
    left = np.maximum(facts.read - facts.weight, 1.0)
    memory_s = facts.memory_s(device, (left, facts.write))
    # A layer gathers its rows, reads and writes them around the activation, and adds them up.
    layer = passes > 1
    rows_bytes = _ROW_BYTES * facts.flops / (2 * k * n * passes)
    around = np.where(layer, rows_bytes * (3 * k + passes * n), 0.0)
    around_s = facts.traffic_s(device, around, facts.hot_share(around))
    starts = np.where(layer, 1 + _STARTS_BESIDE, 1.0)
    base_s = np.maximum(compute_s, memory_s) + around_s + starts * start_s
    tiles = groups * np.ceil(m / 64) * np.ceil(n / 128) / cores
    # Some kernels write rows of all tokens, wherever their experts are.
    spread = rows_bytes * facts.ranks * (n + k)
    spread_s = facts.traffic_s(device, spread, np.zeros(len(works)))
    columns = {
        "log2_groups": np.log2(groups),
        "log2_rows": np.log2(m),
        "log2_n": np.log2(n),
        "log2_k": np.log2(k),
        "log_waves": np.log(tiles),
        "fill": fill(tiles),
        **facts.product_columns(device, memory_s, compute_s, base_s),
        "align_n": alignment(n),
        "align_k": alignment(k),
        "row_fill": m / (np.ceil(m / 64) * 64),
        "log2_weight_bytes": np.log2(np.maximum(facts.weight, 1.0) / (groups * n * k * passes)),
        "log2_ranks": np.log2(facts.ranks),
        "log_spread": np.log(spread_s / base_s),
        "skew": facts.skew,
        "stack": facts.stack,
        "kernel": facts.kernel,
    }
    return columns, base_s


def _shapes(works: Sequence[OpWork]) -> FloatArray:
    """(4, n): groups, rows of each, columns, depth."""
    table = []
    for work in works:
        s = work.shape
        if not isinstance(s, Contraction):
            raise TypeError(f"{type(s).__name__} is no grouped product")
        table.append((s.batch, s.m, s.n, s.k))
    return np.maximum(np.array(table, dtype=np.float64).reshape(-1, 4), 1.0).T
