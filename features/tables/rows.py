"""From works on a device to the rows a cost model reads: dimensionless numbers only, one schema a family.

Sizes enter as logarithms and as ratios to the device's own (cache, cores, ridge point); nothing names the
device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import Convolution, Family, OpWork, Rows
from predictor.features.tables.tiles import FloatArray, products, tile_efficiencies
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak, sustained_fraction, sustained_matrix_rate

FeatureMatrix = NDArray[np.float32]

_SCHEMA_VERSION = 5
_TILE_ROWS, _TILE_COLUMNS = 128, 128
# A device without a stated L2 is treated as one with 32 KiB per core, the least of the catalogue's GPUs.
_L2_PER_CORE_BYTES = 32 * 1024
_ALIGNMENT_CAP = 64
# Plain pipelines do no more FLOPs a core and cycle, in half precision on 64 lanes or in FP32 on 128.
_PLAIN_FLOPS_PER_CYCLE = 256.0

_PRODUCT_FAMILIES = frozenset({Family.MATMUL, Family.BATCHED_MATMUL, Family.CONVOLUTION})

DEVICE_FEATURES = ("log_sustained_fraction", "log_lanes")
_PRODUCT_FEATURES = (
    "log2_batch", "log2_m", "log2_n", "log2_k", "align_m", "align_n", "align_k", "log_memory_over_compute",
    "log_intensity", "log_waves", "wave_fill", "tile_fill_m", "tile_fill_n", "log_tile_0", "log_tile_1",
    "log_tile_2", "log_tile_3", "log_tile_4", "log_tile_over_memory", "matrix_units",
)  # fmt: skip
# Boards older than matrix units run other FP32 products too: Pascal loses a factor of 2 to 4 in deep ones,
# which V100, T4 and A100 do not. Without the fact their deep products took Pascal's time.
# No product sees the cache: operands within it are common on cards of 40 MB and more, and were tiny on the
# measured ones. Rows of a linear layer and points of a convolution grow with the batch. What they fill of
# a tile or a wave is in the floor; as features such facts made some batches dearer than larger ones, by up to
# half, and taught little that held on an unseen device (docs/adr/0008).
_OF_ROWS = frozenset({"align_m", "wave_fill", "tile_fill_m"})
_OF_POINTS = _OF_ROWS | {"log2_m", *(f"log_tile_{i}" for i in range(5))}
_MATMUL_PRODUCT = tuple(name for name in _PRODUCT_FEATURES if name not in _OF_ROWS)
_CONVOLUTION_PRODUCT = tuple(name for name in _PRODUCT_FEATURES if name not in _OF_POINTS)
_CONVOLUTION_FEATURES = ("taps", "log2_stride", "log2_in_channels", "log2_out_points", "pass")
_VECTOR_FEATURES = ("log_bytes_over_cache", "streams", "log2_elements_per_core")
_ROW_FEATURES = (*_VECTOR_FEATURES, "log2_columns", "log2_rows_per_core", "align_columns")

FEATURE_NAMES: Mapping[Family, tuple[str, ...]] = {
    Family.MATMUL: (*_MATMUL_PRODUCT, *DEVICE_FEATURES),
    Family.BATCHED_MATMUL: (*_PRODUCT_FEATURES, *DEVICE_FEATURES),
    Family.CONVOLUTION: (*_CONVOLUTION_PRODUCT, *_CONVOLUTION_FEATURES, *DEVICE_FEATURES),
    Family.ELEMENTWISE: (*_VECTOR_FEATURES, *DEVICE_FEATURES),
    Family.NORMALIZATION: (*_ROW_FEATURES, *DEVICE_FEATURES),
    Family.SOFTMAX: (*_ROW_FEATURES, *DEVICE_FEATURES),
}
"""Families with rows, and the name of every column."""


def schema_hash() -> str:
    """Hex digest that changes with any family's columns; a bundle trained under another one is refused."""
    text = f"{_SCHEMA_VERSION}|" + "|".join(
        f"{family}:{','.join(names)}" for family, names in sorted(FEATURE_NAMES.items())
    )
    return hashlib.sha256(text.encode()).hexdigest()


def device_features(device: DeviceSpec, compute: str) -> FloatArray:
    """(2,) logs: share of the rated peak that the power limit allows, FP32 lanes per core.

    Two, because training devices are few: further ratios (ridge point, cache per core) named the devices to
    the trees and made errors on a device left out larger.
    """
    lanes = device.vector_flops_per_s / (2 * device.core_count * device.clock_hz)
    return np.asarray(np.log([sustained_fraction(device, compute), lanes]))


def device_signature(device: DeviceSpec, compute: str) -> FloatArray:
    """(5,) logs of everything the rows and floors read from a device: equal signatures price alike."""
    rate = sustained_matrix_rate(device, compute)
    return np.log(
        [
            rate,
            device.memory_bytes_per_s,
            device.vector_flops_per_s,
            cache_bytes(device),
            device.core_count,
        ]
    )


def matrix_compute(family: Family, work: OpWork) -> Compute:
    """Arithmetic whose rate describes the device to `family`: vector families always see FP32 pipelines."""
    return work.compute if family in _PRODUCT_FAMILIES else Compute.FP32


def cache_bytes(device: DeviceSpec) -> float:
    """Last-level cache of the device, estimated where no document states it."""
    return device.l2_bytes or _L2_PER_CORE_BYTES * device.core_count


def feature_matrix(family: Family, works: Sequence[OpWork], device: DeviceSpec) -> FeatureMatrix:
    """(len(works), len(FEATURE_NAMES[family])) rows in the order of `works`.

    Raises KeyError for a family without rows, TypeError for a shape that is not the family's.
    """
    columns = _BUILDERS[family](works, device)
    kinds = [matrix_compute(family, work) for work in works]
    by_compute = {compute: device_features(device, compute) for compute in set(kinds)}
    tail = np.array([by_compute[compute] for compute in kinds]).reshape(len(works), len(DEVICE_FEATURES))
    return np.concatenate([np.stack(columns, axis=1), tail], axis=1).astype(np.float32)


def moved_bytes(works: Sequence[OpWork]) -> FloatArray:
    """(n,) bytes read and written, at least 1."""
    moved = np.maximum(np.array([work.moved_bytes for work in works], dtype=np.float64), 1.0)
    return np.asarray(moved, dtype=np.float64)


def _alignment(sizes: FloatArray) -> FloatArray:
    """log2 of the largest power of two that divides each size, capped."""
    whole = np.maximum(sizes, 1).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, _ALIGNMENT_CAP).astype(np.float64)))


def _product_facts(works: Sequence[OpWork], device: DeviceSpec) -> Mapping[str, FloatArray]:
    p = products(works)
    rate = np.array([sustained_matrix_rate(device, work.compute) for work in works])
    moved, cores = moved_bytes(works), device.core_count
    memory_s, compute_s = moved / device.memory_bytes_per_s, p.flops / rate
    efficiency = tile_efficiencies(p, cores)
    waves = p.batch * np.ceil(p.m / _TILE_ROWS) * np.ceil(p.n / _TILE_COLUMNS) / cores
    return {
        "log2_batch": np.log2(p.batch),
        "log2_m": np.log2(p.m),
        "log2_n": np.log2(p.n),
        "log2_k": np.log2(p.k),
        "align_m": _alignment(p.m),
        "align_n": _alignment(p.n),
        "align_k": _alignment(p.k),
        "log_memory_over_compute": np.log(memory_s / compute_s),
        "log_intensity": np.log(p.flops / moved),
        "log_waves": np.log(waves),
        "wave_fill": waves / np.ceil(waves),
        "tile_fill_m": p.m / (np.ceil(p.m / _TILE_ROWS) * _TILE_ROWS),
        "tile_fill_n": p.n / (np.ceil(p.n / _TILE_COLUMNS) * _TILE_COLUMNS),
        **{f"log_tile_{i}": np.log(efficiency[:, i]) for i in range(5)},
        "log_tile_over_memory": np.log(compute_s / efficiency.max(axis=1) / memory_s),
        "matrix_units": np.full(len(works), float(_has_matrix_units(device))),
    }


def _has_matrix_units(device: DeviceSpec) -> bool:
    rate = matrix_peak(device, Compute.FP16)
    plain = _PLAIN_FLOPS_PER_CYCLE * device.core_count * device.clock_hz
    return rate > 1.1 * max(plain, device.vector_flops_per_s)


_PASSES = ("forward", "data_gradient", "weight_gradient")


def _convolution_columns(works: Sequence[OpWork], device: DeviceSpec) -> list[FloatArray]:
    facts = []
    for work in works:
        shape = work.shape
        if not isinstance(shape, Convolution):
            raise TypeError(f"{type(shape).__name__} is no convolution")
        facts.append(
            (
                prod(shape.kernel),
                np.log2(prod(shape.strides)),
                np.log2(max(1, shape.in_channels)),
                np.log2(max(1, prod(shape.out_spatial))),
                _PASSES.index(shape.pass_name),
            )
        )
    columns = _product_facts(works, device)
    return [*(columns[name] for name in _CONVOLUTION_PRODUCT), *np.array(facts, dtype=np.float64).T]


def _matmul_columns(works: Sequence[OpWork], device: DeviceSpec) -> list[FloatArray]:
    columns = _product_facts(works, device)
    return [columns[name] for name in _MATMUL_PRODUCT]


def _batched_matmul_columns(works: Sequence[OpWork], device: DeviceSpec) -> list[FloatArray]:
    return list(_product_facts(works, device).values())


def _vector_columns(works: Sequence[OpWork], device: DeviceSpec) -> list[FloatArray]:
    moved = moved_bytes(works)
    element_bytes = np.array([work.element_bits / 8 for work in works])
    elements = np.array([_elements(work) for work in works], dtype=np.float64)
    return [
        np.log(moved / cache_bytes(device)),
        moved / (elements * element_bytes),
        np.log2(elements / device.core_count),
    ]


def _elements(work: OpWork) -> float:
    shape = work.shape
    if isinstance(shape, Rows):
        return float(max(1, shape.rows * shape.columns))
    return float(max(1, getattr(shape, "count", 1)))


def _row_columns(works: Sequence[OpWork], device: DeviceSpec) -> list[FloatArray]:
    shapes = []
    for work in works:
        if not isinstance(work.shape, Rows):
            raise TypeError(f"{type(work.shape).__name__} has no rows")
        shapes.append((max(1, work.shape.rows), max(1, work.shape.columns)))
    rows, columns = np.array(shapes, dtype=np.float64).reshape(-1, 2).T
    return [
        *_vector_columns(works, device),
        np.log2(columns),
        np.log2(rows / device.core_count),
        _alignment(columns),
    ]


_BUILDERS: Mapping[Family, Callable[[Sequence[OpWork], DeviceSpec], list[FloatArray]]] = {
    Family.MATMUL: _matmul_columns,
    Family.BATCHED_MATMUL: _batched_matmul_columns,
    Family.CONVOLUTION: _convolution_columns,
    Family.ELEMENTWISE: _vector_columns,
    Family.NORMALIZATION: _row_columns,
    Family.SOFTMAX: _row_columns,
}
