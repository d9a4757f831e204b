"""GAISSA (E3): joules per image of Keras training, runs left out at random, then whole networks.

Kernel times are the step model's, as an answer's are; what the framework, the host and the input add is that
of the environment that the other networks' runs describe (`predictor.models.steps.job_time`). Watts come from
the power model on the same profile as any job's, with those durations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import TYPE_CHECKING

import numpy as np

from predictor.compose.time import price_program
from predictor.evaluation.energy_jobs import JobCell, is_zeus, trained_power
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.power.profile import JobProfile, Phase, job_profile, timed
from predictor.models.power.rows import LAUNCH_S, STEP_SHARES, PowerSample, as_measured, job_program
from predictor.models.steps.features import JobContext
from predictor.models.steps.job_time import Environment, MeasuredJob, fit_environment
from predictor.models.steps.step_time import StepTimeModel
from predictor.types import Mode, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

GAISSA = "gaissa-seaa2023-training"
BATCH = 32
"""Images a step, in all runs."""


def with_step_times(sample: PowerSample, op_time: OpTimeModel, step: StepTimeModel | None) -> PowerSample:
    """`sample` whose phases are priced as an answer is; its profile stays that of the power model."""
    _, subject, text = sample.job.split(" ", 2)
    return replace(
        sample,
        phases=tuple(
            Phase(share, _priced(subject, json.loads(text), mode, sample, op_time, step))
            for mode, share in STEP_SHARES.items()
        ),
    )


def _priced(
    subject: str,
    facts: dict[str, str],
    mode: Mode,
    sample: PowerSample,
    op_time: OpTimeModel,
    step: StepTimeModel | None,
) -> JobProfile:
    program, device = job_program(subject, facts, mode), sample.device
    job = JobContext(mode, Precision.parse(facts["precision"]), Runtime.EAGER)
    costs = price_program(program, device, op_time, step, job, fused_optimizer=True)
    return job_profile(program, costs.time_s, device, LAUNCH_S)


@dataclass(frozen=True, slots=True)
class ImageRun:
    """One GAISSA run: the sample that it repeats, watts, joules per image seen."""

    sample: PowerSample
    run: str
    power_w: float
    joules_per_image: float

    @property
    def iteration_s(self) -> float:
        """Seconds per batch, from the run's own meter."""
        return BATCH * self.joules_per_image / self.power_w


def image_runs(rows: pl.DataFrame, samples: Sequence[PowerSample]) -> tuple[ImageRun, ...]:
    """The runs of the corpus, each with the sample of its network and card."""
    by_cell = {(s.device_group, s.model_group): s for s in samples if not is_zeus(s)}
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    columns = ("device_group", "model_group", "configuration", "quantity", "value")
    for chip, network, text, quantity, value in rows.select(columns).sort(columns).iter_rows():
        facts = json.loads(text)
        entry = found.setdefault((chip, network, str(facts["run"])), {})
        entry[quantity] = value
        entry["images"] = float(facts["images"])
    return tuple(
        ImageRun(by_cell[chip, network], run, entry["average_power"], entry["energy"] / entry["images"])
        for (chip, network, run), entry in sorted(found.items())
    )


def image_cells(runs: Sequence[ImageRun], samples: Sequence[PowerSample]) -> Iterator[JobCell]:
    """Watts and joules per image: a fifth of the runs left out, scored per run; each network, per card."""
    for part in range(5):
        held = [run for position, run in enumerate(_shuffled(runs)) if position % 5 == part]
        names = {id(run) for run in held}
        rest = [run for run in runs if id(run) not in names]
        yield from _image_answers("run", "random", held, rest, samples)
    for network in sorted({run.sample.model_group for run in runs}):
        held = _means([run for run in runs if run.sample.model_group == network])
        rest = [run for run in runs if run.sample.model_group != network]
        others = [sample for sample in samples if sample.model_group != network]
        yield from _image_answers("model", network, held, rest, others)


def _shuffled(runs: Sequence[ImageRun]) -> list[ImageRun]:
    order = np.random.default_rng(20260).permutation(len(runs))
    return [runs[i] for i in order]


def _means(runs: Sequence[ImageRun]) -> list[ImageRun]:
    """One run per card: the mean of its repeats."""
    cells: dict[str, list[ImageRun]] = {}
    for run in runs:
        cells.setdefault(run.sample.device_group, []).append(run)
    return [
        ImageRun(
            group[0].sample,
            "mean",
            float(np.mean([run.power_w for run in group])),
            float(np.mean([run.joules_per_image for run in group])),
        )
        for group in cells.values()
    ]


def _image_answers(
    hold: str,
    group: str,
    held: Sequence[ImageRun],
    rest: Sequence[ImageRun],
    samples: Sequence[PowerSample],
) -> Iterator[JobCell]:
    seen = _cells(rest)
    training = [sample for sample in samples if is_zeus(sample)]
    training += [as_measured(replace(run.sample, power_w=run.power_w)) for run in seen]
    model = trained_power(training)
    environment = fit_environment([_measured_job(run) for run in seen])
    for run in held:
        sample = run.sample
        where = (sample.device_group, sample.model_group)
        paced = environment.profile(sample.phases, sample.device_group, BATCH)
        profile = timed(sample.profile, paced.iteration_s, paced.busy_s)
        watts = model.predict(profile, sample.device, sample.limit_w)
        yield JobCell(f"{hold}:power", group, *where, run.power_w, (watts.value, watts.low, watts.high))
        spread = hypot(_left(environment, seen), log(watts.high / watts.value), log(watts.value / watts.low))
        joules = watts.value * profile.iteration_s / BATCH
        answer = (joules, joules * exp(-spread), joules * exp(spread))
        yield JobCell(f"{hold}:energy", group, *where, run.joules_per_image, answer)
        known = as_measured(replace(sample, iteration_s=run.iteration_s))
        metered = model.predict(known.profile, sample.device, sample.limit_w)
        scale = run.iteration_s / BATCH
        yield JobCell(
            f"{hold}:energy with measured time",
            group,
            *where,
            run.joules_per_image,
            (scale * metered.value, scale * metered.low, scale * metered.high),
        )


def _measured_job(run: ImageRun) -> MeasuredJob:
    sample = run.sample
    return MeasuredJob(sample.phases, sample.device_group, BATCH, run.iteration_s, sample.busy_share)


def _left(environment: Environment, runs: Sequence[ImageRun]) -> float:
    """Log spread of times: what the trend leaves of jobs that it was fitted to, memory aside."""
    trends = [environment.trend_s(run.sample.phases, run.sample.device_group, BATCH) for run in runs]
    return max(abs(log(run.iteration_s / trend_s)) for run, trend_s in zip(runs, trends, strict=True))


def _cells(runs: Sequence[ImageRun]) -> list[ImageRun]:
    networks: dict[str, list[ImageRun]] = {}
    for run in runs:
        networks.setdefault(run.sample.model_group, []).append(run)
    return [mean for group in networks.values() for mean in _means(group)]
