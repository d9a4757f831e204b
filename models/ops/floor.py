"""The physical floor of an op on a device: no kernel of that work can be faster, whatever the library does.

    floor = max(matrix time, vector time, bytes / bandwidth) + kernels * start-up

Matrix time is FLOPs over the rate the power limit sustains, divided by the best tile's efficiency
(features/tables/tiles.py); a matrix times a vector fills no tile and runs on the plain pipelines. Vector time
is FLOPs over the FP32 pipelines. Learned models correct the floor, so what it gets right need not be learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import (
    IMAGE_CONVERSION,
    AttentionShape,
    Contraction,
    Convolution,
    Elements,
    Family,
    OpWork,
    Phase,
)
from predictor.features.tables.rows import moved_bytes
from predictor.features.tables.tiles import FloatArray, products, tile_efficiencies
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.hardware.sustained import has_tensor_cores, sustained_matrix_rate
from predictor.models.ops.recurrent import chain_s, is_chain

KERNEL_START_S = 2e-6
"""Device time of an empty kernel: 2 to 3 µs between back-to-back launches on every NVIDIA generation here."""

# Grouped convolutions run at 2.1 to 2.3 times their roofline (reference study on timm timings, RTX 4090).
_GROUPED_EFFICIENCY = 1 / 2.2
# Best fused attention forward kernels reach 50-73 % of the peak (Dao 2023, FlashAttention-2, A100).
_ATTENTION_EFFICIENCY = 0.6

# Philox 4x32-10, the generator of every framework's dropout: ten rounds of two 64-bit products, two sums and
# two three-way xors make four numbers; beside that conversion, comparison, scaling and indices. Slots of the
# integer pipeline a number, and its lanes on every NVIDIA core since Volta.
_RANDOM_SLOTS, _INTEGER_LANES = 36.0, 64.0

# Elements that a core turns into another order of axes in a cycle, at most (decision 0018).
_TURNED_PER_CYCLE = 1.4

BOUNDS = ("compute", "memory", "launch")


@dataclass(frozen=True, slots=True)
class Floors:
    """Floors of n works, each array (n,); `bound` indexes BOUNDS."""

    compute_s: FloatArray
    memory_s: FloatArray
    launch_s: FloatArray
    bound: NDArray[np.intp]

    @property
    def work_s(self) -> FloatArray:
        """(n,) the larger of compute and memory time, without start-up."""
        return np.maximum(self.compute_s, self.memory_s)

    @property
    def total_s(self) -> FloatArray:
        """(n,) the floor."""
        return self.work_s + self.launch_s


def floors(works: Sequence[OpWork], device: DeviceSpec) -> Floors:
    """Floors of all works in order. Views (no kernel, no bytes) cost 0, and so does what links carry."""
    matrix_flops = np.array([work.matrix_flops for work in works], dtype=np.float64)
    vector_flops = np.array([work.vector_flops for work in works], dtype=np.float64)
    rate = np.array([_matrix_rate(work, device) for work in works], dtype=np.float64)
    launches = np.array(
        [work.launch_count if runs_on(work, device) else 0 for work in works], dtype=np.float64
    )
    moved = np.where(launches > 0, moved_bytes(works), 0.0) if works else np.zeros(0)
    matrix_s = matrix_flops / (rate * matrix_efficiency(works, device)) if works else np.zeros(0)
    if device.kind is DeviceKind.GPU:
        untiled = np.array([is_vector_product(work) for work in works], dtype=np.bool_)
        matrix_s = np.where(untiled, np.minimum(matrix_s, matrix_flops / device.vector_flops_per_s), matrix_s)
    compute_s = np.maximum(matrix_s, vector_flops / device.vector_flops_per_s)
    drawn = np.array([_random_numbers(work) for work in works], dtype=np.float64)
    if device.kind is DeviceKind.GPU and drawn.any():
        slots_per_s = _INTEGER_LANES * device.core_count * device.clock_hz
        compute_s = np.maximum(compute_s, drawn * _RANDOM_SLOTS / slots_per_s)
    turned = np.array([_turned(work) for work in works], dtype=np.float64)
    if device.kind is DeviceKind.GPU and turned.any():
        compute_s = np.maximum(compute_s, turned / (_TURNED_PER_CYCLE * device.core_count * device.clock_hz))
    chains = [i for i, work in enumerate(works) if is_chain(work)] if device.kind is DeviceKind.GPU else []
    if chains:
        compute_s[chains] = chain_s([works[i] for i in chains], device)
    compute_s = np.where(launches > 0, compute_s, 0.0)
    memory_s = moved / device.memory_bytes_per_s
    launch_s = launches * KERNEL_START_S
    work_s = np.maximum(compute_s, memory_s)
    bound = np.where(launch_s > work_s, 2, np.where(memory_s > compute_s, 1, 0)).astype(np.intp)
    return Floors(compute_s, memory_s, launch_s, bound)


def _random_numbers(work: OpWork) -> int:
    """How many numbers a kernel draws: one for each element that a dropout may drop."""
    drops = work.kind == "dropout" and work.phase is Phase.FORWARD
    return work.shape.count if drops and isinstance(work.shape, Elements) else 0


def _turned(work: OpWork) -> int:
    """How many elements a conversion of images moves."""
    is_conversion = work.kind == IMAGE_CONVERSION
    return work.shape.count if is_conversion and isinstance(work.shape, Elements) else 0


def is_absent(work: OpWork, device: DeviceSpec) -> bool:
    """Whether the device never runs the work: a conversion of images where no tensor core reads them.

    Conversions are in every program, so that programs stay free of devices.
    """
    return work.kind == IMAGE_CONVERSION and not has_tensor_cores(device)


def runs_on(work: OpWork, device: DeviceSpec) -> bool:
    """Whether the work takes time of the device.

    Exchanges between ranks do not (predictor.parallel prices them on links), nor does what is absent.
    """
    return work.family is not Family.COMMUNICATION and not is_absent(work, device)


def matrix_efficiency(works: Sequence[OpWork], device: DeviceSpec) -> FloatArray:
    """(n,) share of the sustained matrix rate that the shape of each work can use, in (0, 1]."""
    efficiency = np.ones(len(works))
    if device.kind is not DeviceKind.GPU:
        # Tiles of a CPU or a systolic array are others; without data the plain roofline is the honest floor.
        return efficiency
    tiled = [i for i, work in enumerate(works) if isinstance(work.shape, Contraction | Convolution)]
    if tiled:
        selected = [works[i] for i in tiled]
        best = tile_efficiencies(products(selected), device.core_count).max(axis=1)
        grouped = np.array([_is_grouped(work) for work in selected])
        efficiency[tiled] = np.where(grouped, np.maximum(best, _GROUPED_EFFICIENCY), best)
        efficiency[[i for i in tiled if is_depthwise(works[i])]] = 1.0
    for i, work in enumerate(works):
        if isinstance(work.shape, AttentionShape):
            efficiency[i] = _ATTENTION_EFFICIENCY
    return efficiency


def _matrix_rate(work: OpWork, device: DeviceSpec) -> float:
    """Rate of the unit that can run a work: a depthwise convolution has no matrix to multiply."""
    if is_depthwise(work) and device.kind is DeviceKind.GPU:
        return device.vector_flops_per_s
    return sustained_matrix_rate(device, work.compute)


def is_depthwise(work: OpWork) -> bool:
    """A convolution of one input channel a group."""
    return isinstance(work.shape, Convolution) and work.shape.is_depthwise


def is_vector_product(work: OpWork) -> bool:
    """A product of one row or column, for which libraries have kernels of their own.

    Not so for 2 to 4: such batched products in FP32 (1,282 shapes, NeuSight's tables) take what 5 to 16 rows
    take, medians of 2.8 (V100) to 7 times (A100) their memory's time.
    """
    shape = work.shape
    return isinstance(shape, Contraction) and min(shape.m, shape.n) == 1


def _is_grouped(work: OpWork) -> bool:
    return isinstance(work.shape, Convolution) and work.shape.groups > 1
