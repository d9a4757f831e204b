"""Iteration time under a plan as published runs teach it: log(measured / composed) from shares and ratios.

    log t = log composed + mean of all sources + offset of the source, where it is known + trees(facts)

Every column is free of units: shares of the composed time, sizes of kernels in launch times, bandwidths over
that of the memory. Sources differ in what they do not publish (releases, fabrics, who tuned), so each has an
offset, shrunk to zero the more the fewer rows it has; a job of no known source gets none. Half-widths of the
90 % interval are those of sources, models or devices left out of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from predictor.features.tables.tiles import FloatArray
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel

MODEL_NAME = "step_correction"
BOOSTER = "trees"
LIMIT_LOG = 0.7
"""No correction doubles or halves a time: beyond that the composition, not the run, is at fault."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the correction knows of one iteration under a plan.

    Attributes:
        composed_s: the composed time; breakdown_s: sums to it.
        family_share: by op family, share of a microbatch's kernel time.
        product_rate: FLOP/s of matrix products over the 16-bit peak. product_flops: mean seconds of a
        product at that peak. kernel_s: mean time of a kernel. narrow: 1 with products in FP8, 2 in FP4.
        dp ... recompute: of the plan. samples: of a microbatch. nodes: machines it spans.
        ridge: FLOPs at the peak per byte of memory traffic. intra_ratio, inter_ratio: bandwidth of the links
        in a node and between nodes over that of the memory.
    """

    composed_s: float
    breakdown_s: Mapping[str, float]
    family_share: Mapping[str, float]
    product_rate: float
    product_flops: float
    kernel_s: float
    narrow: int
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    zero: int
    microbatches: int
    virtual_stages: int
    recompute: str
    samples: int
    nodes: int
    ridge: float
    intra_ratio: float
    inter_ratio: float


_PARTS = (
    *("backward", "optimizer", "host_launch", "communication", "tp_communication", "cp_communication"),
    *("ep_communication", "pp_communication", "pipeline_bubble"),
)
_FAMILIES = ("matmul", "batched_matmul", "attention", "elementwise", "normalization", "softmax", "copy")
_COUNTS = ("dp", "tp", "pp", "cp", "ep", "microbatches", "virtual_stages", "samples", "nodes")
_LAUNCH_S = 1e-5
COLUMNS = (
    *(f"share_{name}" for name in _PARTS),
    *(f"kernels_{name}" for name in _FAMILIES),
    *(f"log2_{name}" for name in _COUNTS),
    *("product_rate", "product_size", "kernel_size", "narrow", "zero", "recompute"),
    *("ridge", "intra_ratio", "inter_ratio", "tuned"),
)
_RECOMPUTE = {"none": 0.0, "selective": 1.0, "full": 2.0}


def columns_of(facts: StepFacts, *, tuned: bool) -> FloatArray:
    """(COLUMNS,) of one iteration.

    Args:
        tuned: the run is the best of many that were tried, as vendors publish.
    """
    total = max(facts.composed_s, 1e-30)
    values = [
        *(facts.breakdown_s.get(name, 0.0) / total for name in _PARTS),
        *(facts.family_share.get(name, 0.0) for name in _FAMILIES),
        *(np.log2(getattr(facts, name)) for name in _COUNTS),
        log(max(facts.product_rate, 1e-6)),
        log(max(facts.product_flops, 1e-12) / _LAUNCH_S),
        log(max(facts.kernel_s, 1e-12) / _LAUNCH_S),
        float(facts.narrow),
        float(facts.zero),
        _RECOMPUTE[facts.recompute],
        log(facts.ridge),
        log(max(facts.intra_ratio, 1e-6)),
        log(max(facts.inter_ratio, 1e-6)),
        float(tuned),
    ]
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Corrected:
    """A factor on the composed time, and the log half-width of the 90 % interval around the product."""

    factor: float
    log_spread: float


@dataclass(frozen=True, slots=True)
class StepSpreads:
    """Log half-widths: of jobs of no known source, and of known sources on models they did not publish."""

    new_source: float
    known_source: float


class StepCorrection:
    """Corrects composed times of plans. Immutable after loading; safe to share between threads."""

    def __init__(self, booster: Any, mean_log: float, general: Sequence[str], spreads: StepSpreads) -> None:
        """`general`: columns that the trees may read."""
        self._booster = booster
        self._mean_log = mean_log
        self._general = np.isin(np.array(COLUMNS), general)
        self._spreads = spreads

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> StepCorrection | None:
        """None for a bundle without the model. Raises InvalidBundle: trained on other columns."""
        params = bundle.matching(MODEL_NAME, columns=COLUMNS)
        return None if params is None else cls._of(params, bundle.booster(MODEL_NAME, BOOSTER))

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> StepCorrection:
        """A model straight from training."""
        return cls._of(trained.params, load_booster(trained.boosters[BOOSTER]))

    @classmethod
    def _of(cls, params: Mapping[str, Any], booster: Any) -> StepCorrection:
        return cls(booster, params["mean_log"], params["general"], StepSpreads(**params["spreads"]))

    def corrected(self, facts: StepFacts, *, tuned: bool = False) -> Corrected:
        """The factor for one iteration of a job of no known source."""
        table = columns_of(facts, tuned=tuned)[None, :]
        log_factor = float(self.log_factors(table)[0])
        return Corrected(
            factor=float(np.exp(np.clip(log_factor, -LIMIT_LOG, LIMIT_LOG))),
            log_spread=self._spreads.new_source,
        )

    def log_factors(self, table: FloatArray) -> FloatArray:
        """(n,) log factors of (n, COLUMNS), without offsets of sources."""
        known = np.where(self._general, table, 0.0)
        trees = np.asarray(self._booster.inplace_predict(known), dtype=np.float64)
        return np.asarray(self._mean_log + trees, dtype=np.float64)
