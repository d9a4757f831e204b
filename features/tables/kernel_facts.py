"""What the rows of every kernel model read: how a kernel was run, its work in columns, and its traffic.

A kernel that runs again and again on the same few operands finds them in the cache if they fit; in a network
weights come from memory, and what the op before wrote may still be in the cache. `Run.copies` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictor.features.programs.work import OpWork
from predictor.features.tables.rows import cache_bytes
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import reached_matrix_rate, reached_read_rate


@dataclass(frozen=True, slots=True)
class Run:
    """How a kernel was run.

    Attributes:
        stack: the software around it, `kernel` whose kernel it is; "" where nobody says.
        copies: sets of operands that take turns in a timing loop; 0: as a network leaves them.
        stores: whether an attention call also rotates queries and keys and stores keys and values.
        skew: exponent of the law by which tokens spread over experts, 0 for evenly; None where nobody says.
        ranks: devices that share a layer's experts; each sees the tokens of all.
    """

    stack: str = ""
    kernel: str = ""
    copies: int = 0
    stores: bool = False
    skew: float | None = None
    ranks: int = 1


STACKS = ("trtllm", "sglang", "vllm", "torch")
KERNELS = (
    "cublas", "cutlass", "deepgemm", "triton", "flashinfer", "plugin", "flash", "trtllm_gen", "own",
    "min_latency",
)  # fmt: skip
"""What the codes of a run index; `own` is the stack's, whatever it chose."""

_START_CYCLES = 3000.0
"""Cycles of an empty kernel in a graph: the smallest products take 1.7 to 2.5 µs, with their only tile."""

# Operands that take turns come from the cache while all sets fit in it; the last sets to fit are half lost.
_HOT_NONE, _HOT_WIDTH = 1.05, 0.4
# Bytes a core takes from the cache per cycle: the width of its data path.
_CACHE_BYTES_PER_CYCLE = 64.0
PRODUCT_TILE_CYCLES = 1200.0
"""Cycles in which a tile's first operands arrive and its results leave, while its core multiplies nothing."""
_ALIGNMENT_CAP = 128


def start_time_s(device: DeviceSpec) -> float:
    """Device time of an empty kernel in a graph."""
    return _START_CYCLES / device.clock_hz


@dataclass(frozen=True, slots=True)
class Facts:
    """What all models read of works and runs; each (n,)."""

    rate: FloatArray
    flops: FloatArray
    read: FloatArray
    weight: FloatArray
    write: FloatArray
    cache: float
    stack: FloatArray
    kernel: FloatArray
    copies: FloatArray
    stores: FloatArray
    skew: FloatArray
    ranks: FloatArray

    @classmethod
    def of(cls, works: Sequence[OpWork], device: DeviceSpec, runs: Sequence[Run]) -> Facts:
        """Of works that ran so, in order."""
        rates = {
            compute: reached_matrix_rate(device, compute) for compute in {work.compute for work in works}
        }

        def column(values: Sequence[float]) -> FloatArray:
            return np.array(values, dtype=np.float64)

        return cls(
            rate=column([rates[work.compute] for work in works]),
            flops=np.maximum(column([work.matrix_flops for work in works]), 1.0),
            read=np.maximum(column([work.read_bytes for work in works]), 1.0),
            weight=column([work.parameter_bytes for work in works]),
            write=np.maximum(column([work.write_bytes for work in works]), 1.0),
            cache=cache_bytes(device),
            stack=column([code(STACKS, run.stack) for run in runs]),
            kernel=column([code(KERNELS, run.kernel) for run in runs]),
            copies=column([run.copies for run in runs]),
            stores=column([run.stores for run in runs]),
            skew=column([np.nan if run.skew is None else run.skew for run in runs]),
            ranks=column([run.ranks for run in runs]),
        )

    def memory_s(self, device: DeviceSpec, parts: Sequence[FloatArray]) -> FloatArray:
        """(n,) time of the traffic; `parts` are the bytes that may be in the cache when a network runs."""
        moved = self.read + self.write
        loose = np.sum(parts, axis=0)
        rereads = np.where(self.copies > 0, self.copies, 2.0)
        resident = np.where(self.copies > 0, moved, loose)
        hot = self.hot_share(rereads * resident) * resident
        return self.traffic_s(device, moved, hot / moved)

    def hot_share(self, touched: FloatArray) -> FloatArray:
        """(n,) share of a kernel's operands in the cache, where `touched` bytes pass between two reads."""
        share: FloatArray = np.clip((_HOT_NONE - touched / self.cache) / _HOT_WIDTH, 0.0, 1.0)
        return share

    def product_columns(
        self,
        device: DeviceSpec,
        memory_s: FloatArray,
        compute_s: FloatArray,
        base_s: FloatArray,
    ) -> dict[str, FloatArray]:
        """Columns that every product has: its parts against each other, its FLOPs, a start and the cache."""
        start_s, whole_s = start_time_s(device), self.flops / self.rate
        return {
            "log_memory_over_flops": np.log(memory_s / whole_s),
            "log_memory_over_tiles": np.log(memory_s / compute_s),
            "log_tile_share": np.log(whole_s / compute_s),
            "log_base": np.log(base_s / start_s),
            "log_compute": np.log(compute_s / start_s),
            "log_memory": np.log(memory_s / start_s),
            "log_bytes_over_cache": np.log((self.read + self.write) / self.cache),
        }

    @staticmethod
    def traffic_s(device: DeviceSpec, moved: FloatArray, hot: FloatArray) -> FloatArray:
        """(n,) time to move bytes of which the share `hot` is in the cache."""
        memory = reached_read_rate(device)
        cache = max(memory, _CACHE_BYTES_PER_CYCLE * device.core_count * device.clock_hz)
        time_s: FloatArray = moved * ((1 - hot) / memory + hot / cache)
        return time_s


def code(names: Sequence[str], name: str) -> float:
    """A name's place, NaN for one that is not there."""
    # Trees send a missing value where it does best on average: an unknown library is a typical one.
    return float(names.index(name)) if name in names else np.nan


def alignment(sizes: FloatArray) -> FloatArray:
    """(n,) log2 of the largest power of two that divides each size, capped."""
    whole = sizes.astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, _ALIGNMENT_CAP).astype(np.float64)))


def fill(waves: FloatArray) -> FloatArray:
    """(n,) share of the last wave's slots, and of those before, that work fills."""
    return waves / np.ceil(waves)
