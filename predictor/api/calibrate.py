"""From a few measured jobs to an overlay bundle whose answers agree with them: `calibrate(jobs, device)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.api.predictor import Predictor
from predictor.compose.calibrated import calibration_sample
from predictor.compose.plan_cost import is_plain
from predictor.errors import InvalidData, PerfcastError
from predictor.hardware.catalog import default_cluster, find_cluster, find_device
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.bundle import Bundle, TrainedModel, write_overlay
from predictor.models.device_calibration import (
    FACTORS,
    DeviceCalibration,
    Prior,
    Sample,
    fit_calibration,
    predicted_s,
    prior_calibration,
    stored_calibrations,
)
from predictor.models.device_calibration import MODEL_NAME as DEVICE_MODEL
from predictor.models.plans.network_calibration import (
    MODEL_NAME as NETWORK_MODEL,
)
from predictor.models.plans.network_calibration import (
    NetworkCalibration,
    fit_network,
    link_numbers,
    stored_networks,
)
from predictor.models.plans.plan_calibration import MODEL_NAME as PLANS_MODEL
from predictor.models.plans.plan_calibration import ClusterPlans, fit_plan_calibration
from predictor.models.profiling.rows import TimedJob, job_graph
from predictor.parallel.plan import Plan
from predictor.parallel.plan_text import parse_plan
from predictor.request import PredictionRequest

FloatArray = NDArray[np.float64]

LEAST_PLANS = 6
"""Measured plans from which on more is fitted than the device and its links."""
PRIOR_PATH = Path(__file__).parents[1] / "models" / "data" / "calibration_prior.json"
"""Widths learned on held-out devices; written by benchmarks/calibration_prior.py."""


@dataclass(frozen=True, slots=True)
class CalibratedJob:
    """A measured job with its prediction before and after; `left_out_s` is that of the other jobs alone."""

    job: TimedJob
    before_s: float
    after_s: float
    left_out_s: float | None


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """What `calibrate` found; id and folder of the overlay where one was written.

    `network` is None without jobs of several devices, `plans` with fewer than LEAST_PLANS jobs that split the
    model or its batch.
    """

    device: str
    calibration: DeviceCalibration
    jobs: tuple[CalibratedJob, ...]
    network: NetworkCalibration | None = None
    plans: ClusterPlans | None = None
    bundle: str = ""
    path: Path | None = None

    @property
    def factors(self) -> dict[str, float]:
        """Factor on predicted time by name."""
        from math import exp

        found = {name: exp(value) for name, value in zip(FACTORS, self.calibration.mean, strict=True)}
        return found if self.network is None else found | self.network.factors


def load_prior(path: Path = PRIOR_PATH) -> Prior:
    """The packaged prior. Raises InvalidData."""
    try:
        return Prior.from_json(json.loads(path.read_text(encoding="utf-8"))["prior"])
    except (OSError, ValueError, KeyError) as error:
        raise InvalidData(f"{path}: is no calibration prior ({error!r})", file=path) from None


def calibrate(
    jobs: Sequence[TimedJob],
    device: str | DeviceSpec,
    *,
    cluster: str | ClusterSpec | None = None,
    bundle: str | Path | None = None,
    out: Path | None = None,
    prior: Prior | None = None,
) -> CalibrationResult:
    """Fits the factors of a device, and of a cluster's links, to measured jobs.

    Jobs of one device tell of the device, jobs with a plan of several devices also of the links; `cluster`
    is what those ran on, by default nodes of eight on the device's own links. With `out` writes a bundle that
    `predict` takes; earlier calibrations of the same device and links are replaced, others are kept. Raises
    InvalidData naming the line of a job that cannot be priced, UnknownName, InvalidBundle, OutputNotWritable.
    """
    base = Bundle.load(bundle)
    spec = device if isinstance(device, DeviceSpec) else find_device(device)
    others = [found for found in stored_calibrations(base) if not found.is_of(spec)]
    networks = stored_networks(base)
    predictor = Predictor(base, calibrations=others, networks=networks)
    prior = prior or load_prior()
    planned = [(job, _plan(job)) for job in jobs]
    alone = [job for job, plan in planned if _runs_alone(plan)]
    samples = [job_sample(predictor, job, spec) for job in alone]
    found = fit_calibration(samples, spec, prior) if samples else prior_calibration(spec, prior)
    report = _report(alone, samples, spec, prior, found)
    network = None
    if shared := [(job, plan) for job, plan in planned if not _runs_alone(plan)]:
        where = _resolved_cluster(cluster, spec, max(plan.device_count for _, plan in shared))
        networks = [item for item in networks if not item.is_of(where)]
        predictor = predictor.with_calibrations(others, networks)
        asked = [(job, job_request(job, plan, spec, where)) for job, plan in shared]
        found, network, more = _with_network(predictor, others, asked, where, found, prior)
        report += more
    elif not samples:
        raise InvalidData("calibration: no measured jobs; give at least one row with a time")
    plans = None
    if shared and network is not None:
        tuned = predictor.with_calibrations([*others, found], [*networks, network])
        plans, report = _with_plans(tuned, asked, spec, where, report)
    result = CalibrationResult(spec.id, found, report, network, plans)
    if out is None:
        return result
    models = {DEVICE_MODEL: TrainedModel(params={"devices": [item.to_json() for item in [*others, found]]})}
    kept = networks if network is None else [*networks, network]
    if kept:
        models[NETWORK_MODEL] = TrainedModel(params={"clusters": [item.to_json() for item in kept]})
    if plans is not None:
        models[PLANS_MODEL] = TrainedModel(params={"clusters": [plans.to_json()]})
    return replace(result, bundle=write_overlay(out, base, models), path=out)


def job_request(
    job: TimedJob, plan: Plan, device: DeviceSpec, cluster: ClusterSpec | None = None
) -> PredictionRequest:
    """The question whose answer a job measured. Raises InvalidData naming its line."""
    parts = plan.dp * plan.microbatches
    if job.batch % parts:
        raise InvalidData(f"{_where(job)}: batch {job.batch} is no multiple of dp x microbatches = {parts}")
    try:
        return PredictionRequest(
            job_graph(job.graph, job.batch // parts, job.mode),
            device,
            batch=job.batch,
            mode=job.mode,
            precision=job.precision,
            optimizer=job.effective_optimizer,
            runtime=job.runtime,
            plan=plan,
            cluster=cluster,
        )
    except PerfcastError as error:
        raise InvalidData(f"{_where(job)}: {error.message}") from None


def job_sample(predictor: Predictor, job: TimedJob, device: DeviceSpec) -> Sample:
    """A measured job of one device as the fit sees it. Raises InvalidData naming its line."""
    request = job_request(job, Plan(), device)
    try:
        program, costs = predictor.priced(request)
    except PerfcastError as error:
        raise InvalidData(f"{_where(job)}: {error.message}") from None
    return calibration_sample(program, costs, job.runtime, job.time_s)


def _plan(job: TimedJob) -> Plan:
    try:
        return parse_plan(job.plan)
    except PerfcastError as error:
        raise InvalidData(f"{_where(job)}: {error.message}") from None


def _runs_alone(plan: Plan) -> bool:
    return plan.device_count == 1 and is_plain(plan)


def _where(job: TimedJob) -> str:
    return f"line {job.line}: {job.graph}" if job.line else job.graph


def _resolved_cluster(cluster: str | ClusterSpec | None, device: DeviceSpec, count: int) -> ClusterSpec:
    if cluster is None:
        return default_cluster(device, count)
    return find_cluster(cluster) if isinstance(cluster, str) else cluster


def _with_network(
    predictor: Predictor,
    others: Sequence[DeviceCalibration],
    jobs: Sequence[tuple[TimedJob, PredictionRequest]],
    cluster: ClusterSpec,
    device: DeviceCalibration,
    prior: Prior,
) -> tuple[DeviceCalibration, NetworkCalibration, tuple[CalibratedJob, ...]]:
    """The device's factors moved on by jobs of several devices, and those of the links."""
    links = link_numbers(cluster)

    def log_time(logs: FloatArray) -> FloatArray:
        network = NetworkCalibration(links, tuple(logs[1:]), (0.0, 0.0), 0)
        other = predictor.with_calibrations([*others, device.moved(float(logs[0]))], [network])
        return np.log([_time_s(other, job, request) for job, request in jobs])

    before_s = [_time_s(predictor, job, request) for job, request in jobs]
    width = float(np.sqrt(device.covariance[0, 0]))
    found = fit_network(log_time, [job.time_s for job, _ in jobs], width, prior)
    calibration = device.moved(float(found.mean[0]), float(found.covariance[0, 0]), len(jobs))
    has_others = len(jobs) + device.rows > 1
    report = []
    for i, (job, _) in enumerate(jobs):
        after_s, left_out_s = (float(np.exp(logs[i])) for logs in (found.log_time, found.left_out))
        report.append(CalibratedJob(job, before_s[i], after_s, left_out_s if has_others else None))
    return calibration, found.network(cluster), tuple(report)


def _with_plans(
    predictor: Predictor,
    jobs: Sequence[tuple[TimedJob, PredictionRequest]],
    device: DeviceSpec,
    cluster: ClusterSpec,
    report: tuple[CalibratedJob, ...],
) -> tuple[ClusterPlans | None, tuple[CalibratedJob, ...]]:
    """What is left of jobs that split the model, as a function of their plans; the report with it."""
    split = [(job, request) for job, request in jobs if not is_plain(request.plan)]
    if len(split) < LEAST_PLANS:
        return None, report
    resolved = [predictor._resolve(request, needs_graph=True) for _, request in split]
    composed = [predictor._pricing.composed(each) for each in resolved]
    bare_s = np.array([time.iteration.value for time, _ in composed])
    points = [point for _, point in composed]
    ratio = np.log(np.array([job.time_s for job, _ in split]) / bare_s)
    fitted = fit_plan_calibration(points, ratio.tolist())
    after_s, left_out_s = (
        bare_s * np.exp(logs) for logs in (fitted.log_factors(points), fitted.left_out(ratio.tolist()))
    )
    place = {id(job): index for index, (job, _) in enumerate(split)}
    found = tuple(
        replace(item, after_s=float(after_s[index]), left_out_s=float(left_out_s[index]))
        if (index := place.get(id(item.job))) is not None
        else item
        for item in report
    )
    return ClusterPlans.of(device, predictor.links.measured(cluster), fitted), found


def _time_s(predictor: Predictor, job: TimedJob, request: PredictionRequest) -> float:
    try:
        return predictor.predict(request).iteration_time_s.value
    except PerfcastError as error:
        raise InvalidData(f"{_where(job)}: {error.message}") from None


def _report(
    jobs: Sequence[TimedJob],
    samples: Sequence[Sample],
    device: DeviceSpec,
    prior: Prior,
    found: DeviceCalibration,
) -> tuple[CalibratedJob, ...]:
    rows = []
    for place, (job, sample) in enumerate(zip(jobs, samples, strict=True)):
        rest = [*samples[:place], *samples[place + 1 :]]
        left_out = predicted_s(sample, fit_calibration(rest, device, prior)) if rest else None
        rows.append(CalibratedJob(job, predicted_s(sample), predicted_s(sample, found), left_out))
    return tuple(rows)
