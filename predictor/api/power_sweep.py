"""Time, power and energy of a job over power caps and batches, and which of the choices nobody should take.

With readings of the same job (a cap, seconds per iteration, watts) the curve over caps is moved to them:
one measured run at the default limit says most of what the other caps will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot

from predictor.api.predictor import Predictor
from predictor.compose.interval import log_interval
from predictor.errors import InvalidRequest, PerfcastError
from predictor.models.power.board_power import Reading, limit_w
from predictor.models.power.cap import is_between
from predictor.request import PredictionRequest
from predictor.types import Interval

# 90th percentiles of the log errors of (seconds, watts), networks of measured jobs left out of the model:
# between two caps that were read, and beyond all of them (one reading, at the default limit).
BETWEEN_LOG_SPREADS = (0.046, 0.043)
BEYOND_LOG_SPREADS = (0.127, 0.080)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One cap and batch. Energy is per iteration over all devices, scope `device`.

    `batch` is the global one; 0 where the model's own is kept. `on_front`: no other point of the sweep needs
    less time per sample and less energy per sample.
    """

    power_limit_w: float
    batch: int
    samples: float
    iteration_time_s: Interval
    average_power_w: Interval
    energy_j: Interval
    fits: bool
    anchored: bool
    on_front: bool = False

    @property
    def time_per_sample_s(self) -> float:
        """Seconds per sample of the whole job."""
        return self.iteration_time_s.value / self.samples

    @property
    def energy_per_sample_j(self) -> float:
        """Joules per sample of the whole job."""
        return self.energy_j.value / self.samples


def power_sweep(
    predictor: Predictor,
    request: PredictionRequest,
    limits_w: Sequence[float],
    batches: Sequence[int] = (),
    readings: Mapping[int | None, Sequence[Reading]] | None = None,
) -> tuple[SweepPoint, ...]:
    """Every cap with every batch, by batch and cap; points that fit in memory compete for the front.

    Args:
        predictor: answers.
        request: the job; its own cap and batch are replaced.
        limits_w: caps per device in W; none: seven from the default limit down to 40 % of it.
        batches: global batches; none keeps the request's.
        readings: measured runs by batch (None: the request's).

    Raises InvalidRequest for a cap that is no number above 0, and what `predict` raises when every point
    fails.
    """
    points: list[SweepPoint] = []
    failures: list[PerfcastError] = []
    chosen: Sequence[int | None] = [*batches] or [request.batch]
    for batch in chosen:
        one = replace(request, batch=batch)
        try:
            points += _caps(predictor, one, limits_w, (readings or {}).get(batch, ()))
        except PerfcastError as error:
            failures.append(error)
    if not points:
        raise failures[0]
    return _with_front(points)


def default_limits_w(tdp_w: float) -> tuple[float, ...]:
    """Seven caps from 40 % of the default limit to all of it, in whole watts."""
    return tuple(float(round(tdp_w * share)) for share in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0))


def _caps(
    predictor: Predictor, request: PredictionRequest, limits_w: Sequence[float], readings: Sequence[Reading]
) -> list[SweepPoint]:
    job = predictor.power_job(request)
    limits = sorted({limit_w(job.device, cap) for cap in limits_w or default_limits_w(job.device.tdp_w)})
    points = []
    for cap in limits:
        answer = predictor.predict(replace(request, power_limit_w=cap))
        time, power = answer.iteration_time_s, answer.average_power_w
        energy = answer.energy_j
        if readings:
            seconds, watts = job.model.anchored(job.profile, job.device, readings, cap)
            between = is_between(cap, [limit_w(job.device, reading.power_limit_w) for reading in readings])
            of_time, of_power = BETWEEN_LOG_SPREADS if between else BEYOND_LOG_SPREADS
            time, power = log_interval(seconds, of_time), log_interval(min(watts, cap * 1.02), of_power)
            total = time.value * power.value * answer.device_count
            energy = log_interval(total, hypot(of_time, of_power))
        points.append(
            SweepPoint(
                power_limit_w=cap,
                batch=request.batch or 0,
                samples=answer.throughput_samples_per_s.value * answer.iteration_time_s.value,
                iteration_time_s=time,
                average_power_w=power,
                energy_j=energy,
                fits=answer.fits,
                anchored=bool(readings),
            )
        )
    return points


def _with_front(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    able = [point for point in points if point.fits]
    return tuple(
        replace(point, on_front=point.fits and not any(_dominates(other, point) for other in able))
        for point in points
    )


def _dominates(one: SweepPoint, other: SweepPoint) -> bool:
    time, energy = one.time_per_sample_s, one.energy_per_sample_j
    no_worse = time <= other.time_per_sample_s and energy <= other.energy_per_sample_j
    return no_worse and (time < other.time_per_sample_s or energy < other.energy_per_sample_j)


def check_limits(limits_w: Sequence[float]) -> tuple[float, ...]:
    """The caps as they are. Raises InvalidRequest for one that is not above 0."""
    for cap in limits_w:
        if not cap > 0:
            raise InvalidRequest(f"power limit {cap:g} W; expected watts above 0", field="power_limit_w")
    return tuple(limits_w)
