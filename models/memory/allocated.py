"""Learned correction of what an allocator hands out at the peak of a job under a plan, and its interval.

    allocated = physical floor * factor,   floor = tensors at the peak + what libraries hold,
    log(factor) from trees, within log(0.7) .. log(1.5)

The floor is the timeline's (predictor.parallel.memory_stages); the factor knows what the floor is made of,
the plan, how old the software is, and what is asked: what torch allocated, or what the device's monitor
shows without the runtime's context, which is what the allocator reserved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, log2, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.types import Interval, Recompute

FloatArray = NDArray[np.float64]

MODEL_NAME = "memory_allocated"
BOOSTER = "allocated_factor"
FACTOR_RANGE = (0.7, 1.5)
ALLOCATED_LINES: tuple[str, ...] = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "workspace",
    "communication_buffers",
)
"""What an allocator hands out, by kind."""
ALLOCATED_FEATURES: tuple[str, ...] = (
    "log_floor",
    *ALLOCATED_LINES,
    "library",
    "moment",
    "in_flight",
    "log_replicas",
    "log_tp",
    "log_pp",
    "log_cp",
    "log_ep",
    "virtual_stages",
    "zero",
    "sequence_parallel",
    "recompute",
    "half",
    "log_experts",
    "top_k",
    "device_year",
    "long_term_branch",
    "software_year",
    "device_level",
)
_MOMENTS = {"forward": 0.0, "backward": 1.0, "optimizer": 2.0}
_RECOMPUTE = {Recompute.NONE: 0.0, Recompute.SELECTIVE: 1.0, Recompute.FULL: 2.0}


@dataclass(frozen=True, slots=True)
class AllocatedJob:
    """What the correction sees of a job.

    Attributes:
        lines: bytes at the peak by name of predictor.models.memory.peak.LINES. library_bytes: beside them.
        moment: `forward`, `backward` or `optimizer`. in_flight: microbatches that hold activations then.
        replicas, tp, pp, cp, ep, virtual_stages, zero: of the plan.
        half: products in FP16 and not in BF16. experts, top_k: of a mixture, 0 without one.
        device_year: of the device; None for devices without one.
        long_term_branch: of the framework; None where that is unknown. software_year: with its fraction.
        device_level: what the allocator reserved, and not what it handed out.
    """

    lines: Mapping[str, float]
    library_bytes: float
    moment: str
    in_flight: int
    replicas: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    recompute: Recompute = Recompute.NONE
    half: bool = False
    experts: int = 0
    top_k: int = 0
    device_year: int | None = None
    long_term_branch: bool | None = None
    software_year: float | None = None
    device_level: bool = False

    @property
    def floor_bytes(self) -> float:
        """Tensors and libraries at the peak."""
        return float(sum(self.lines.values())) + self.library_bytes


def allocated_features(job: AllocatedJob) -> FloatArray:
    """One row in the order of ALLOCATED_FEATURES; nan for what is unknown."""
    floor = max(1.0, job.floor_bytes)
    branch = job.long_term_branch
    return np.array(
        [
            log(floor),
            *(job.lines.get(name, 0.0) / floor for name in ALLOCATED_LINES),
            job.library_bytes / floor,
            _MOMENTS[job.moment],
            float(job.in_flight),
            log2(job.replicas),
            log2(job.tp),
            log2(job.pp),
            log2(job.cp),
            log2(job.ep),
            float(job.virtual_stages),
            float(job.zero),
            float(job.sequence_parallel),
            _RECOMPUTE[job.recompute],
            float(job.half),
            log2(max(1, job.experts)),
            float(job.top_k),
            nan if job.device_year is None else float(job.device_year),
            nan if branch is None else float(branch),
            nan if job.software_year is None else job.software_year,
            float(job.device_level),
        ]
    )


class AllocatedModel:
    """Factor between the floor and what is allocated."""

    def __init__(self, params: Mapping[str, Any], booster: Any) -> None:
        self._booster = booster
        self._low = np.array(params["feature_low"], dtype=np.float64)
        self._high = np.array(params["feature_high"], dtype=np.float64)
        self.log_spread: Mapping[str, float] = params["log_spread"]

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> AllocatedModel | None:
        """None for a bundle without the model. Raises InvalidBundle: trained on other features."""
        params = bundle.matching(MODEL_NAME, features=ALLOCATED_FEATURES)
        return None if params is None else cls(params, bundle.booster(MODEL_NAME, BOOSTER))

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> AllocatedModel:
        """A model straight from training, without a bundle on disk."""
        return cls(trained.params, load_booster(trained.boosters[BOOSTER]))

    def factors(self, features: FloatArray) -> FloatArray:
        """(n,) factors of (n, len(ALLOCATED_FEATURES)) rows."""
        found = self._booster.inplace_predict(features.astype(np.float32)).astype(np.float64)
        factors: FloatArray = np.exp(np.clip(found, log(FACTOR_RANGE[0]), log(FACTOR_RANGE[1])))
        return factors

    def is_like_training(self, row: FloatArray) -> bool:
        """No number of the row lies outside those of training; what is unknown does not count."""
        return not bool(((row < self._low) | (row > self._high)).any())

    def predict(self, job: AllocatedJob) -> tuple[float, Interval]:
        """The factor, and what is allocated in bytes.

        Jobs unlike those of training stay uncorrected. Where nothing says which software runs, the interval
        is that of kinds of models and tools that were never seen.
        """
        row = allocated_features(job)
        known = self.is_like_training(row)
        factor = float(self.factors(row[None, :])[0]) if known else 1.0
        same = known and job.long_term_branch is not None
        spread = self.log_spread["known_kind" if same else "new_kind"]
        value = factor * job.floor_bytes
        return factor, Interval(value, value * exp(-spread), value * exp(spread))
