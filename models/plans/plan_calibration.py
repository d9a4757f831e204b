"""A few measured iterations of one cluster turned into factors on composed times of its other plans.

    log(measured / composed) = c + f(stage) + h g(stage), a Gaussian process with a prior of physical sizes

A stage's own error depends on what its ranks run: ranks that share a weight, samples of a microbatch, size
of its kernels and products. Each has a smooth trend; together they jump, as tiles and algorithms do, so that
covariances fall off at once. How much of the iteration goes to gradients' exchange and bubbles has trends
too. `h` is the share of the iteration in which the last stage works, over the layers of a stage: the head
that only that stage has is wrong by what `g` says, a pipeline shows it, and without one it is part of f.
Length scales are found by marginal likelihood under a log-normal prior; with the few rows that users have,
that prior decides. `spread_out` picks the plans most worth measuring, before any is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.bundle import Bundle
from predictor.models.device_calibration import NORMAL_90
from predictor.models.device_identity import device_numbers, is_known
from predictor.models.plans.network_calibration import link_numbers
from predictor.models.plans.step_correction import StepFacts

_LAUNCH_S = 1e-5
_LAYERS = 8.0
"""Layers of a stage beside which a head of unit error shifts the iteration by its whole error."""
_TENTH = 10.0
"""A tenth of the iteration counts like a doubling of a size."""
_JOINT, _STAGE, _HEAD = 4, 6, 2
"""Columns of a stage that jump together, all of them, and those of the head."""
_LENGTH, _LENGTH_SPREAD = 0.85, 0.6
"""Prior median of length scales in doublings, and the width of its logarithm. Of 0.85 to 3, as the covariance
among a dozen, the best on eight clusters of other publishers; vTrain is judged and was not asked."""
_AMPLITUDES = np.log(np.array([0.1, 0.1, 0.1, 0.1]))
"""Prior medians of f together, f by column, g, and the constant."""
_NOISE = float(np.log(0.025))
_AMPLITUDE_SPREAD = 0.5
_STEPS, _REACH = 25, 4.0
_LEAST_NOISE = 1e-3
"""Rows measured twice never agree better."""
LEAST_ROWS = 3
MODEL_NAME = "plan_calibration"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """One iteration as the calibration sees it.

    Attributes:
        stage: (6,) log2 of tensor-parallel ranks, samples of a microbatch, kernel time and product time over
            that of a launch; tenths of the iteration in gradients' exchange and in bubbles.
        head: (2,) log2 of tensor-parallel ranks and kernel time. share: `h`.
    """

    stage: FloatArray
    head: FloatArray
    share: float


def plan_point(facts: StepFacts, layers: int) -> PlanPoint:
    """What the calibration reads of one composed iteration.

    Args:
        layers: of the whole model, 1 where none repeat.
    """
    kernel = np.log2(max(facts.kernel_s, 1e-12) / _LAUNCH_S)
    ways = np.log2(facts.tp)
    product = np.log2(max(facts.product_flops, 1e-12) / _LAUNCH_S)
    exchange, bubble = (
        _TENTH * facts.breakdown_s.get(part, 0.0) / max(facts.composed_s, 1e-30)
        for part in ("communication", "pipeline_bubble")
    )
    stage = (ways, np.log2(facts.samples), kernel, product, exchange, bubble)
    busy = facts.microbatches / (facts.microbatches + facts.pp - 1) if facts.pp > 1 else 0.0
    return PlanPoint(np.array(stage), np.array((ways, kernel)), busy * _LAYERS * facts.pp / max(layers, 1))


@dataclass(frozen=True, slots=True)
class _Points:
    stage: FloatArray
    head: FloatArray
    share: FloatArray

    @classmethod
    def of(cls, points: Sequence[PlanPoint]) -> _Points:
        return cls(
            np.array([point.stage for point in points]),
            np.array([point.head for point in points]),
            np.array([point.share for point in points]),
        )


def _start() -> FloatArray:
    return np.concatenate([np.full(_STAGE + _HEAD, np.log(_LENGTH)), _AMPLITUDES, [_NOISE]])


_SPREADS = np.concatenate([np.full(_STAGE + _HEAD, _LENGTH_SPREAD), np.full(5, _AMPLITUDE_SPREAD)])


def _covariance(left: _Points, right: _Points, chosen: FloatArray) -> FloatArray:
    """(n, m) prior covariance. `chosen`: logs of 6 + 2 length scales, 4 amplitudes and the noise."""
    together, single, head, constant = np.exp(2 * chosen[_STAGE + _HEAD : -1])
    stage = ((left.stage[:, None] - right.stage[None]) / np.exp(chosen[:_STAGE])) ** 2
    ends = ((left.head[:, None] - right.head[None]) / np.exp(chosen[_STAGE : _STAGE + _HEAD])) ** 2
    found = together * np.exp(-np.sqrt(stage[..., :_JOINT].sum(-1))) + single * np.exp(-stage / 2).mean(-1)
    found += head * np.outer(left.share, right.share) * np.exp(-ends.sum(-1) / 2)
    return np.asarray(found + constant)


@dataclass(frozen=True, slots=True)
class PlanCalibration:
    """Factors on composed times, from measured iterations."""

    points: _Points
    chosen: FloatArray
    weights: FloatArray

    def log_factors(self, points: Sequence[PlanPoint]) -> FloatArray:
        """(n,) log(expected / composed)."""
        return np.asarray(_covariance(_Points.of(points), self.points, self.chosen) @ self.weights)

    def log_spreads(self, points: Sequence[PlanPoint]) -> FloatArray:
        """(n,) log half-widths of the 90 % interval: what the measured rows leave open, and their scatter."""
        asked = _Points.of(points)
        across = _covariance(asked, self.points, self.chosen)
        known = _with_noise(_covariance(self.points, self.points, self.chosen), self.chosen)
        told = (across * np.linalg.solve(known, across.T).T).sum(axis=1)
        left = np.diag(_covariance(asked, asked, self.chosen)) - told
        return np.asarray(NORMAL_90 * np.sqrt(np.maximum(left, 0.0) + np.exp(2 * self.chosen[-1])))

    def left_out(self, log_ratio: Sequence[float]) -> FloatArray:
        """(n,) log(expected / composed) of each measured row from the others alone, at the same scales.

        Args:
            log_ratio: (n,) log(measured / composed) of the rows that it was fitted to.
        """
        known = _with_noise(_covariance(self.points, self.points, self.chosen), self.chosen)
        return np.asarray(log_ratio - self.weights / np.diag(np.linalg.inv(known)))


@dataclass(frozen=True, slots=True)
class ClusterPlans:
    """The calibration of a kind of device on a cluster's links, by their numbers: names change nothing."""

    device: tuple[float, ...]
    links: tuple[float, ...]
    calibration: PlanCalibration

    @classmethod
    def of(cls, device: DeviceSpec, cluster: ClusterSpec, calibration: PlanCalibration) -> ClusterPlans:
        """That of `device` in `cluster`, whose links are as calibrated."""
        return cls(tuple(device_numbers(device)), link_numbers(cluster), calibration)

    def is_of(self, device: DeviceSpec, cluster: ClusterSpec) -> bool:
        """Whether it is about such devices and links."""
        same = np.allclose(self.links, link_numbers(cluster), rtol=1e-6, atol=0.0)
        return bool(same) and is_known(device, np.array([self.device]))

    def to_json(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        found = self.calibration
        return {
            "device": list(self.device),
            "links": list(self.links),
            "stage": found.points.stage.tolist(),
            "head": found.points.head.tolist(),
            "share": found.points.share.tolist(),
            "chosen": found.chosen.tolist(),
            "weights": found.weights.tolist(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClusterPlans:
        """Inverse of `to_json`. Raises InvalidData: written by a version that read other columns."""
        if len(data["chosen"]) != len(_SPREADS):
            raise InvalidData(
                "plans of a cluster were calibrated by another version; calibrate anew with its rows "
                "(perfcast calibrate)"
            )
        points = _Points(*(np.array(data[name], dtype=np.float64) for name in ("stage", "head", "share")))
        calibration = PlanCalibration(points, np.array(data["chosen"]), np.array(data["weights"]))
        return cls(tuple(map(float, data["device"])), tuple(map(float, data["links"])), calibration)


def stored_plans(bundle: Bundle) -> list[ClusterPlans]:
    """Those of a bundle, none where it holds none."""
    if MODEL_NAME not in bundle.models:
        return []
    return [ClusterPlans.from_json(item) for item in bundle.params(MODEL_NAME)["clusters"]]


def fit_plan_calibration(points: Sequence[PlanPoint], log_ratio: Sequence[float]) -> PlanCalibration:
    """The calibration of measured iterations; the same rows give the same answer.

    Args:
        log_ratio: (n,) log(measured / composed).

    Raises InvalidData: fewer than LEAST_ROWS rows.
    """
    from scipy.optimize import minimize

    if len(points) < LEAST_ROWS:
        raise InvalidData(f"{len(points)} measured iterations; expected at least {LEAST_ROWS}")
    known, target, start = _Points.of(points), np.asarray(log_ratio, dtype=np.float64), _start()

    def loss(chosen: FloatArray) -> float:
        matrix = _with_noise(_covariance(known, known, chosen), chosen)
        lower = np.linalg.cholesky(matrix)
        white = np.linalg.solve(lower, target)
        prior = (((chosen - start) / _SPREADS) ** 2).sum() / 2
        return float(white @ white / 2 + np.log(np.diag(lower)).sum() + prior)

    bounds = list(zip(start - _REACH * _SPREADS, start + _REACH * _SPREADS, strict=True))
    chosen = np.asarray(
        minimize(loss, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}).x
    )
    matrix = _with_noise(_covariance(known, known, chosen), chosen)
    return PlanCalibration(known, chosen, np.asarray(np.linalg.solve(matrix, target), dtype=np.float64))


def _with_noise(matrix: FloatArray, chosen: FloatArray) -> FloatArray:
    return np.asarray(matrix + (np.exp(2 * chosen[-1]) + _LEAST_NOISE**2) * np.eye(len(matrix)))


def spread_out(
    points: Sequence[PlanPoint], count: int, offered: Sequence[int] | None = None
) -> NDArray[np.intp]:
    """(count,) the points that, once measured, leave the least expected error over all of `points`.

    Chosen one by one from their features alone: no measurement is needed.

    Args:
        offered: indices of those that could be measured; all by default.

    Raises InvalidData: fewer are offered than asked for.
    """
    known, start = _Points.of(points), _start()
    allowed = np.arange(len(points)) if offered is None else np.asarray(offered, dtype=np.intp)
    if len(allowed) < count:
        raise InvalidData(f"{len(allowed)} plans to choose from; expected at least {count}")
    left = _covariance(known, known, start)
    noise = float(np.exp(2 * start[-1]))
    picked: list[int] = []
    for _ in range(count):
        gain = (left**2).sum(axis=0) / (np.diag(left) + noise)
        score = np.full(len(points), -1.0)
        score[allowed] = gain[allowed]
        score[picked] = -2.0
        best = int(score.argmax())
        picked.append(best)
        left = left - np.outer(left[:, best], left[best]) / (left[best, best] + noise)
    return np.array(picked, dtype=np.intp)
