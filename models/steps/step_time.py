"""Op times of a whole iteration as timed iterations teach them, and how far off their sum may be.

The op-level model knows single kernels; this one, trained on whole-model timings by the shares of the ops
(predictor.models.steps.boosting), corrects it for the job: layout, autocast, compiler, framework version,
backward kernels and devices that have no operator table. Answers are those of the booster on top of the
prior, never below what the rated peak allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import OpWork, has_images
from predictor.features.programs.work_table import work_table
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, Json, TrainedModel
from predictor.models.ops.op_time import OpCosts
from predictor.models.steps.features import (
    COMPUTE,
    JobContext,
    aggregate_features,
    classes,
    device_facts,
    hidden,
    parts,
    schema_hash,
)
from predictor.models.steps.host_prior import KIND as ADDITIVE
from predictor.models.steps.host_prior import HostPrior
from predictor.models.steps.op_base import op_base
from predictor.models.steps.prior import SAME_DEVICE, PricedOps, Prior, groups, specification
from predictor.models.steps.rows import REST_FRACTION
from predictor.models.steps.timed_kernels import timed_kernels
from predictor.models.steps.total import REST_FACTOR, launch_s
from predictor.types import Precision

MODEL_NAME = "step_time"
DEVICE, HOST = "device", "host"
"""Domains: devices that kernels are launched on, and processors. Each has a prior and a booster."""
UNSEEN = "unseen_device"
"""Booster of devices on which no iteration was timed, on top of DEVICE's prior."""
PEAK_SHARE = 0.8
"""No op is faster than this share of the time at the rated peak: consumer cards clock above their rating."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Corrected costs of n distinct works.

    Attributes:
        time_s: (n,) device time of one run. launch_s: host time per kernel launch.
        log_spread: log half-width of the 90 % interval of the iteration.
        known_device: whether iterations on this device in this precision were trained on.
    """

    time_s: FloatArray
    launch_s: float
    log_spread: float
    known_device: bool


@dataclass(frozen=True, slots=True)
class StepSpread:
    """Log half-widths of an iteration's 90 % interval by situation."""

    known: float
    new: float


@dataclass(frozen=True, slots=True)
class TimedDevice:
    """A device, by its numbers, whose iterations were timed in a precision."""

    vendor: str
    precision: str
    numbers: tuple[float, ...]

    @classmethod
    def of(cls, device: DeviceSpec, precision: Precision) -> TimedDevice:
        """`device` in `precision`."""
        return cls(str(device.vendor), precision.value, specification(device))

    def is_on(self, other: TimedDevice) -> bool:
        """Whether both are one device, in whatever precision."""
        near = max(abs(a - b) for a, b in zip(self.numbers, other.numbers, strict=True)) < SAME_DEVICE
        return near and self.vendor == other.vendor

    def to_json(self) -> Json:
        """Plain values."""
        return [self.vendor, self.precision, *self.numbers]


class StepTimeModel:
    """Corrects op times of a job. Immutable after loading; safe to share between threads."""

    def __init__(
        self,
        priors: Mapping[str, Prior | HostPrior],
        boosters: Mapping[str, Any],
        spreads: Mapping[str, StepSpread],
        timed: Mapping[str, Sequence[TimedDevice]],
        hidden_columns: Mapping[str, tuple[str, ...]],
    ) -> None:
        """All by domain; boosters and `hidden_columns`, those that their trees never saw, by UNSEEN, too."""
        self._hidden = hidden_columns
        self._timed = timed
        self._priors = priors
        self._boosters = boosters
        self._spreads = spreads

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> StepTimeModel | None:
        """None for a bundle without the model. Raises InvalidBundle: trained on other columns."""
        params = bundle.matching(MODEL_NAME, feature_schema=schema_hash())
        if params is None:
            return None
        return cls._of(params, {name: bundle.booster(MODEL_NAME, name) for name in params["hidden"]})

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> StepTimeModel:
        """A model straight from training."""
        return cls._of(trained.params, {name: load_booster(raw) for name, raw in trained.boosters.items()})

    @classmethod
    def _of(cls, params: Mapping[str, Any], boosters: Mapping[str, Any]) -> StepTimeModel:
        return cls(
            {name: _prior(prior) for name, prior in params["priors"].items()},
            boosters,
            {name: StepSpread(**spread) for name, spread in params["spreads"].items()},
            {
                name: tuple(TimedDevice(vendor, precision, tuple(n)) for vendor, precision, *n in timed)
                for name, timed in params["timed"].items()
            },
            {name: tuple(columns) for name, columns in params["hidden"].items()},
        )

    def covers(self, device: DeviceSpec) -> bool:
        """Whether timings of such devices were trained on."""
        return _domain(device) in self._priors

    def costs(
        self, works: Sequence[OpWork], count: FloatArray, costs: OpCosts, device: DeviceSpec, job: JobContext
    ) -> StepCosts:
        """Corrected costs of `works` that each run `count` times in one iteration of `job`.

        Raises KeyError for a device that is not covered.
        """
        domain = _domain(device)
        spread = self._spreads[domain]
        is_host = device.kind.is_host
        asked = TimedDevice.of(device, job.precision)
        precisions = {timed.precision for timed in self._timed[domain] if asked.is_on(timed)}
        known = asked.precision in precisions
        trees = domain if precisions or is_host else UNSEEN
        return StepCosts(
            time_s=self._times(works, count, costs, device, job, domain, trees),
            launch_s=0.0 if is_host else self._launch_s(job, domain),
            log_spread=spread.known if known else spread.new,
            known_device=known,
        )

    def _launch_s(self, job: JobContext, domain: str) -> float:
        usual = self._priors[domain].harness.launch_log(job.runtime, job.mode)
        return launch_s(job.runtime, job.mode) * float(np.exp(usual))

    def _times(
        self,
        works: Sequence[OpWork],
        count: FloatArray,
        costs: OpCosts,
        device: DeviceSpec,
        job: JobContext,
        domain: str,
        trees: str,
    ) -> FloatArray:
        import xgboost

        total = costs.floor_s * count
        listed = _listed(total) & (costs.floor_s > 0)
        time_s = REST_FACTOR * costs.floor_s
        if not listed.any():
            return time_s
        chosen = [work for work, keep in zip(works, listed, strict=True) if keep]
        if job.precision is Precision.BF16 and has_images(works):
            chosen, job = _in_fp16(chosen, job)
        table = work_table(chosen)
        prior, facts = self._priors[domain], device_facts(device)
        code = classes(table)
        start = op_base(table, costs.floor_s[listed], costs.time_s[listed], costs.unmeasured[listed], facts)
        log_share = np.log(total[listed] / total.sum())
        features = aggregate_features(table, log_share, start.log_learned, facts, job, code)
        pieces = parts(table, facts)
        ops = PricedOps(groups(code, table.phase), start.floor_s, start.log_learned, pieces)
        base = prior.log_multiplier(ops, job, device)
        margin = xgboost.DMatrix(hidden(features, self._hidden[trees]), base_margin=base, nthread=1)
        log_m = np.asarray(self._boosters[trees].predict(margin), dtype=np.float64)
        time_s[listed] = np.maximum(start.floor_s * np.exp(log_m), PEAK_SHARE * pieces[:, COMPUTE])
        return np.where(timed_kernels(works, costs.unmeasured, device), costs.time_s, time_s)


def _prior(data: Mapping[str, Any]) -> Prior | HostPrior:
    return HostPrior.from_json(data) if data["kind"] == ADDITIVE else Prior.from_json(data)


def _in_fp16(works: Sequence[OpWork], job: JobContext) -> tuple[list[OpWork], JobContext]:
    """What images in BF16 are corrected as: the same bytes, and the same units where there are any for BF16.

    No iteration in BF16 was timed. Trees that know it from products and attention alone made its pointwise
    kernels twice as long as FP16's; published runs of language models bear that out, of images nothing does.
    """
    narrow = {Compute.BF16: Compute.FP16}
    changed = [replace(work, compute=narrow.get(work.compute, work.compute)) for work in works]
    return changed, replace(job, precision=Precision.FP16)


def _domain(device: DeviceSpec) -> str:
    if device.kind.is_host:
        return HOST if device.kind is DeviceKind.CPU else ""
    return DEVICE if device.kind is DeviceKind.GPU else ""


def _listed(total: FloatArray) -> NDArray[np.bool_]:
    """(n,) all but the smallest works that make up REST_FRACTION of the sum."""
    order = np.argsort(total, kind="stable")
    share = np.cumsum(total[order]) / max(float(total.sum()), 1e-30)
    listed = np.zeros(len(total), dtype=np.bool_)
    listed[order] = share > REST_FRACTION
    return listed
