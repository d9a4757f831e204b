"""What a search asks of the layer above: costs of a rank's microbatch, and the exact answer for a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.compose.rank_costs import IntArray, RankCosts
from predictor.parallel.plan import Plan

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Microbatch:
    """One microbatch of a rank.

    Attributes:
        columns: its costs by piece.
        kept_bytes: (k,) activations that each piece keeps for backward.
        weight_bytes: (3, k) weights, gradients and optimizer state by piece; dense and experts' together.
        memory_factor: what an allocator takes over what tensors need, at least 1.
        waits, power_w: (p,) lengths of an iteration over its kernels' time, ascending, and the mean draw of a
            device then; empty where energy is not asked for.
    """

    columns: RankCosts
    kept_bytes: FloatArray
    weight_bytes: FloatArray
    memory_factor: float
    waits: FloatArray
    power_w: FloatArray


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exact answer for one plan.

    Attributes:
        time_s: of one iteration. energy_j: of one iteration over all devices.
        peak_bytes: of the device that needs the most. breakdown_s: sums to `time_s`.
    """

    time_s: float
    energy_j: float
    peak_bytes: float
    breakdown_s: Mapping[str, float]


class CostSource(Protocol):
    """Costs of one model and job on one cluster; answers are remembered."""

    def microbatch(self, plan: Plan, samples: int) -> Microbatch | None:
        """Costs of a microbatch of `samples` on a rank of `plan`; None where the graph cannot be split so."""
        ...

    def fits(self, plan: Plan, ends: IntArray) -> bool:
        """Whether the plan, its graph cut at `ends`, fits in memory."""
        ...

    def outcome(self, plan: Plan) -> Outcome:
        """The exact answer. Raises InvalidPlan."""
        ...
