"""Board power while one kernel runs back to back: a law of utilisation, and trees on measured chips.

    demand   = (a + b u^p + c v^q) * t / (t + t0)     u, v: shares of peak FLOP/s and of peak bandwidth
    fraction = demand / (1 + demand^s)^(1/s)          the limit clips softly
    W        = floor + fraction * (limit - floor)     floor: clocks up, hardly any work

One law holds for products, experts and attention of 4, 8 and 16 bits: fitted on one chip it is 7 % off on the
other (H200, from the B200). Trees of the same dimensionless facts correct it on chips that were measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import AttentionShape, Contraction, Family, OpWork
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.device_identity import is_known
from predictor.models.power.board_power import idle_power_w

FloatArray = NDArray[np.float64]

MODEL_NAME = "kernel_power"
FAMILIES = ("matmul", "experts", "attention")
FEATURES: tuple[str, ...] = (
    "log_compute_utilisation",
    "log_memory_utilisation",
    "log_kernel_over_launch",
    "log_tiles_per_core",
    "bits",
    "log_matrix_over_vector",
    "log_intensity",
    "log_bytes_over_cache",
    "reads_low",
    "log2_rows",
    "log2_columns",
    "log2_depth",
    "log_law",
)
_LAUNCH_S = 5e-6
_TINY = 1e-6
_CACHE_BYTES = 5e7
_TILE = 128


@dataclass(frozen=True, slots=True)
class KernelLaw:
    """Parameters of the law; `floor`: power with clocks up over the limit. `start_us`: t0."""

    base: float
    compute: float
    memory: float
    compute_power: float
    memory_power: float
    start_us: float
    sharpness: float
    floor: float

    def fraction(self, rows: KernelRows) -> FloatArray:
        """(n,) watts over the limit."""
        demand = (
            self.base
            + self.compute * rows.compute_utilisation**self.compute_power
            + self.memory * rows.memory_utilisation**self.memory_power
        )
        demand = demand * rows.time_s / (rows.time_s + 1e-6 * self.start_us)
        clipped = demand / (1.0 + demand**self.sharpness) ** (1.0 / self.sharpness)
        return np.asarray(self.floor + clipped * (1.0 - self.floor), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Facts of n kernels on one device or several, arrays (n,).

    `rows`, `columns`, `depth`: m, n and k of a product; queries, keys and head size of attention.
    """

    compute_utilisation: FloatArray
    memory_utilisation: FloatArray
    time_s: FloatArray
    tiles_per_core: FloatArray
    bits: FloatArray
    matrix_over_vector: FloatArray
    intensity: FloatArray
    bytes_over_cache: FloatArray
    reads_low: FloatArray
    rows: FloatArray
    columns: FloatArray
    depth: FloatArray

    def take(self, index: NDArray[Any]) -> KernelRows:
        """The rows at `index`."""
        return KernelRows(*(getattr(self, name)[index] for name in self.__slots__))

    def features(self, law: FloatArray) -> NDArray[np.float32]:
        """(n, len(FEATURES)) given the law's fractions (n,)."""
        logs = [
            np.log(np.maximum(values, _TINY))
            for values in (
                self.compute_utilisation,
                self.memory_utilisation,
                self.time_s / _LAUNCH_S,
                self.tiles_per_core,
            )
        ]
        tail = [np.log(values) for values in (self.matrix_over_vector, self.intensity, self.bytes_over_cache)]
        sizes = [np.log2(np.maximum(values, _TINY)) for values in (self.rows, self.columns, self.depth)]
        columns = [*logs, self.bits, *tail, self.reads_low, *sizes, np.log(law)]
        return np.stack(columns, axis=1).astype(np.float32)


def kernel_rows(works: Sequence[OpWork], time_s: FloatArray, device: DeviceSpec) -> KernelRows:
    """Facts of works that take `time_s` (n,) on a device."""
    flops = np.array([work.flops for work in works], dtype=np.float64)
    moved = np.maximum(np.array([work.moved_bytes for work in works], dtype=np.float64), 1.0)
    peak = np.array([matrix_peak(device, work.compute) for work in works], dtype=np.float64)
    launches = np.array([max(1, work.launch_count) for work in works], dtype=np.float64)
    seconds = np.maximum(time_s, 1e-9)
    sizes = np.array([sizes_of(work) for work in works], dtype=np.float64).reshape(-1, 3)
    return KernelRows(
        compute_utilisation=flops / peak / seconds,
        memory_utilisation=moved / device.memory_bytes_per_s / seconds,
        time_s=seconds / launches,
        tiles_per_core=np.array([tiles_of(work) for work in works]) / device.core_count,
        bits=np.array([stored_bits(work) for work in works], dtype=np.float64),
        matrix_over_vector=peak / device.vector_flops_per_s,
        intensity=np.maximum(flops, 1.0) / moved,
        bytes_over_cache=moved / (device.l2_bytes or _CACHE_BYTES),
        reads_low=np.zeros(len(works)),
        rows=sizes[:, 0],
        columns=sizes[:, 1],
        depth=sizes[:, 2],
    )


def tiles_of(work: OpWork) -> float:
    """Independent 128 x 128 tiles of a product's output; query tiles x heads of attention; else 64 KiB."""
    shape = work.shape
    if isinstance(shape, Contraction):
        return float(shape.batch * ceil(shape.m / _TILE) * ceil(shape.n / _TILE))
    if isinstance(shape, AttentionShape):
        return float(shape.batch * shape.heads * ceil(shape.q_length / _TILE))
    return max(1.0, work.moved_bytes / 65536)


def sizes_of(work: OpWork) -> tuple[float, float, float]:
    """(m, n, k) of a product; queries, keys seen and head size of attention; elements, 1, 1 of others."""
    shape = work.shape
    if isinstance(shape, Contraction):
        return float(shape.m), float(shape.n), float(shape.k)
    if isinstance(shape, AttentionShape):
        return float(shape.q_length), float(shape.kv_length), float(shape.head_dim)
    return max(1.0, work.moved_bytes / 4), 1.0, 1.0


def stored_bits(work: OpWork) -> float:
    """Bits of a weight where a product has them, else of an element."""
    shape = work.shape
    weights = getattr(shape, "n", 0) * getattr(shape, "k", 0) * getattr(shape, "batch", 1)
    if work.parameter_bytes and weights:
        return min(32.0, max(4.0, 8.0 * work.parameter_bytes / weights))
    return float(work.element_bits)


class KernelPowerModel:
    """Watts of single kernels. Immutable after loading."""

    def __init__(self, params: Mapping[str, Any], boosters: Mapping[str, Any]) -> None:
        """`params` as training wrote them; a booster per family."""
        self.law = KernelLaw(**params["law"])
        self._boosters = boosters
        self._devices = np.array(params["devices"], dtype=np.float64)
        self.log_spread: Mapping[str, float] = params["log_spread"]

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> KernelPowerModel:
        """Raises InvalidBundle when the bundle holds none."""
        names = bundle.boosters(MODEL_NAME)
        return cls(bundle.params(MODEL_NAME), {name: bundle.booster(MODEL_NAME, name) for name in names})

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> KernelPowerModel:
        """A model straight from training."""
        return cls(trained.params, {name: load_booster(blob) for name, blob in trained.boosters.items()})

    def watts(self, works: Sequence[OpWork], time_s: FloatArray, device: DeviceSpec) -> FloatArray:
        """(n,) board power while each work's kernels run; between idle and the default limit."""
        family = np.array([_FAMILY.get(work.family, "") for work in works])
        return self.watts_of(kernel_rows(works, time_s, device), family, device)

    def watts_of(self, rows: KernelRows, family: NDArray[np.str_], device: DeviceSpec) -> FloatArray:
        """(n,) watts of rows whose booster is named by `family` (n,); the law alone where none is."""
        fraction = self.law.fraction(rows)
        if is_known(device, self._devices):
            for name, booster in self._boosters.items():
                index = np.flatnonzero(family == name)
                if index.size:
                    features = rows.take(index).features(fraction[index])
                    fraction[index] *= np.exp(np.asarray(booster.inplace_predict(features), np.float64))
        return np.clip(fraction * device.tdp_w, idle_power_w(device), device.tdp_w)


_FAMILY: Mapping[Family, str] = {
    Family.MATMUL: "matmul",
    Family.BATCHED_MATMUL: "experts",
    Family.ATTENTION: "attention",
}
