"""What the step model starts an op from: its floor inside a network, and what the op level says of it.

The op level answers for a kernel that was timed alone. Two things differ inside an iteration:

- What a kernel reads was mostly written by the one before, and part of it is still in the cache: half of a
  tensor as large as the cache. Kernels that were measured on such a device had their operands there already
  and keep their floors; what is written goes to memory in the end.
- Convolutions were measured as operators in FP32 alone. What that says of narrower ones on tensor cores
  misled on chips that nobody timed: by the prior alone 23 % on Lambda's GPUs left out, 12 % without.
  Conversions of images were never measured alone.

And some depthwise convolutions run as padded products (predictor.models.steps.features.runs_padded).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import IMAGE_CONVERSION, Family
from predictor.features.programs.work_table import (
    COMPUTES,
    FAMILIES,
    LAUNCHES,
    PARAMETER_BYTES,
    READ_BYTES,
    WRITE_BYTES,
    WorkTable,
)
from predictor.features.tables.table_facts import convolution_facts
from predictor.features.tables.tiles import FloatArray
from predictor.models.ops.floor import KERNEL_START_S
from predictor.models.steps.features import COMPUTE, DeviceFacts, parts, runs_padded


@dataclass(frozen=True, slots=True)
class OpBase:
    """Of n ops: floor_s (n,) of one run; log_learned (n,), the op level's time over its own floor."""

    floor_s: FloatArray
    log_learned: FloatArray


def op_base(
    table: WorkTable,
    floor_s: FloatArray,
    learned_s: FloatArray,
    unmeasured: NDArray[np.bool_],
    facts: DeviceFacts,
) -> OpBase:
    """The start of each op.

    Args:
        table: n works. floor_s, learned_s: (n,) floor and time of one run by the op level.
        unmeasured: (n,) those of which no such kernel was measured on such a device. facts: of the device.
    """
    in_network = np.where(unmeasured, _network_floor(table, floor_s, facts), floor_s)
    convolution = table.family == FAMILIES.index(Family.CONVOLUTION)
    silent = convolution & (table.compute != COMPUTES.index(Compute.FP32))
    silent |= table.kind == IMAGE_CONVERSION
    return OpBase(in_network, np.where(silent, 0.0, np.log(learned_s / floor_s)))


def _network_floor(table: WorkTable, floor_s: FloatArray, facts: DeviceFacts) -> FloatArray:
    """(n,) floors with what the cache still holds of the operands read from there."""
    n = table.numbers
    moved = np.maximum(n[:, READ_BYTES] + n[:, WRITE_BYTES], 1.0)
    operands = np.clip(n[:, READ_BYTES] - n[:, PARAMETER_BYTES], 0.0, moved)
    # A tensor is about half of what a kernel moves.
    hot = operands / (1.0 + 0.5 * moved / facts.cache)
    memory_s = (moved - hot) / facts.bandwidth + hot / facts.cache_bytes_per_s
    start_s = n[:, LAUNCHES] * KERNEL_START_S
    work_s = floor_s - start_s
    padded = runs_padded(table, convolution_facts(table))
    is_compute_bound = ~padded & (work_s > _ROUNDING * moved / facts.bandwidth)
    compute_s = np.where(is_compute_bound, work_s, parts(table, facts)[:, COMPUTE])
    network_s = np.maximum(compute_s, memory_s) + start_s
    return np.where(padded, network_s, np.minimum(floor_s, network_s))


_ROUNDING = 1.001
