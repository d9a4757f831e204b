"""From a few measured jobs to an overlay bundle whose answers agree with them: `calibrate(jobs, device)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from predictor.api.predictor import Predictor
from predictor.compose.calibrated import calibration_sample
from predictor.errors import InvalidData, PerfcastError
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Bundle, TrainedModel, write_overlay
from predictor.models.device_calibration import (
    FACTORS,
    MODEL_NAME,
    DeviceCalibration,
    Prior,
    Sample,
    fit_calibration,
    predicted_s,
    stored_calibrations,
)
from predictor.models.profiling.rows import TimedJob, job_graph
from predictor.request import PredictionRequest

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
    """What `calibrate` found; id and folder of the overlay where one was written."""

    device: str
    calibration: DeviceCalibration
    jobs: tuple[CalibratedJob, ...]
    bundle: str = ""
    path: Path | None = None

    @property
    def factors(self) -> dict[str, float]:
        """Factor on predicted time by name."""
        from math import exp

        return {name: exp(value) for name, value in zip(FACTORS, self.calibration.mean, strict=True)}


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
    bundle: str | Path | None = None,
    out: Path | None = None,
    prior: Prior | None = None,
) -> CalibrationResult:
    """Fits the device's factors to measured jobs; with `out` writes a bundle that `predict` takes.

    An earlier calibration of the same device in `bundle` is replaced, those of others are kept. Raises
    InvalidData naming the line of a job that cannot be priced, UnknownName, InvalidBundle, OutputNotWritable.
    """
    from predictor.hardware.catalog import find_device

    spec = device if isinstance(device, DeviceSpec) else find_device(device)
    base = Bundle.load(bundle)
    others = [found for found in stored_calibrations(base) if not found.is_of(spec)]
    predictor = Predictor(base, calibrations=others)
    prior = prior or load_prior()
    samples = [job_sample(predictor, job, spec) for job in jobs]
    found = fit_calibration(samples, spec, prior)
    result = CalibrationResult(spec.id, found, _report(jobs, samples, spec, prior, found))
    if out is None:
        return result
    stored = {"devices": [item.to_json() for item in [*others, found]]}
    identity = write_overlay(out, base, {MODEL_NAME: TrainedModel(params=stored)})
    return replace(result, bundle=identity, path=out)


def job_sample(predictor: Predictor, job: TimedJob, device: DeviceSpec) -> Sample:
    """A measured job as the fit sees it. Raises InvalidData naming its line."""
    try:
        request = PredictionRequest(
            job_graph(job.graph, job.batch, job.mode),
            device,
            mode=job.mode,
            precision=job.precision,
            optimizer=job.effective_optimizer,
            runtime=job.runtime,
        )
        program, costs = predictor.priced(request)
    except PerfcastError as error:
        where = f"line {job.line}: " if job.line else ""
        raise InvalidData(f"{where}{job.graph}: {error.message}") from None
    return calibration_sample(program, costs, job.runtime, job.time_s)


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
