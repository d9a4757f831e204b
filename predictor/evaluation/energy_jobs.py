"""Whole training jobs: watts with a device, network or workload left out (E2), joules per image (E3).

Watts come from the power model on profiles of predicted kernel times; the public Predictor gives the same
numbers (a test holds it). Energy per epoch with the measured time is watts with another name, so those rows
are the "measured time" ones; joules per image are with predicted time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import TYPE_CHECKING

import numpy as np

from predictor.evaluation.rows import EvaluationRow, scored_rows
from predictor.models.power.board_power import PowerModel
from predictor.models.power.rows import PowerSample, as_measured
from predictor.models.power.training import train_power
from predictor.models.steps.job_time import Environment, MeasuredJob, fit_environment

if TYPE_CHECKING:
    import polars as pl

SUITE = "energy"
GAISSA = "gaissa-seaa2023-training"
Answer = tuple[float, float, float]
"""(value, low, high)."""


@dataclass(frozen=True, slots=True)
class JobCell:
    """One measured number and our answer; `hold` says what the models never saw, `group` which of it."""

    hold: str
    group: str
    device: str
    subject: str
    measured: float
    answer: Answer
    situation: str = ""


def workload(sample: PowerSample) -> str:
    """Network and data set: what Zeus calls a workload."""
    facts = json.loads(sample.job.split(" ", 2)[2])
    return f"{sample.model_group}/{facts.get('dataset', 'images')}"


def is_zeus(sample: PowerSample) -> bool:
    """Zeus publishes epoch times, GAISSA none."""
    return sample.time_s > 0


HOLDS: Mapping[str, Callable[[PowerSample], str]] = {
    "workload": workload,
    "network": lambda sample: sample.model_group,
}


def power_cells(samples: Sequence[PowerSample]) -> Iterator[JobCell]:
    """Every Zeus reading by models without its workload, and without its network."""
    for hold, key in HOLDS.items():
        for group in sorted({key(sample) for sample in samples if is_zeus(sample)}):
            held = [sample for sample in samples if key(sample) == group and is_zeus(sample)]
            model = _power([sample for sample in samples if key(sample) != group])
            yield from power_answers(hold, group, held, model)


def power_answers(hold: str, group: str, held: Sequence[PowerSample], model: PowerModel) -> Iterator[JobCell]:
    """Answers of one model to the readings that it never saw."""
    for sample in held:
        answer = model.predict(sample.profile, sample.device, sample.limit_w)
        yield JobCell(
            hold,
            group,
            sample.device_group,
            sample.model_group,
            sample.power_w,
            (answer.value, answer.low, answer.high),
            model.situation(sample.profile, sample.device),
        )


def _power(samples: Sequence[PowerSample]) -> PowerModel:
    return PowerModel.from_trained(train_power(samples))


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
    model = _power(training)
    environment = fit_environment([_measured_job(run) for run in seen])
    for run in held:
        sample, batch = run.sample, BATCH
        where = (sample.device_group, sample.model_group)
        profile = environment.profile(sample.phases, sample.device_group, batch)
        watts = model.predict(profile, sample.device, sample.limit_w)
        yield JobCell(f"{hold}:power", group, *where, run.power_w, (watts.value, watts.low, watts.high))
        spread = hypot(_left(environment, seen), log(watts.high / watts.value), log(watts.value / watts.low))
        joules = watts.value * profile.iteration_s / batch
        answer = (joules, joules * exp(-spread), joules * exp(spread))
        yield JobCell(f"{hold}:energy", group, *where, run.joules_per_image, answer)
        known = as_measured(replace(sample, iteration_s=run.iteration_s))
        metered = model.predict(known.profile, sample.device, sample.limit_w)
        scale = run.iteration_s / batch
        yield JobCell(
            f"{hold}:energy with measured time",
            group,
            *where,
            run.joules_per_image,
            (scale * metered.value, scale * metered.low, scale * metered.high),
        )


BATCH = 32
"""Images a step, in all runs of GAISSA."""


def _measured_job(run: ImageRun) -> MeasuredJob:
    sample = run.sample
    return MeasuredJob(sample.phases, sample.device_group, BATCH, run.iteration_s, sample.busy_share)


def _left(environment: Environment, runs: Sequence[ImageRun]) -> float:
    """Log spread of times: what the trend leaves of jobs that it was fitted to, memory aside."""
    left = [
        abs(log(run.iteration_s / environment.trend_s(run.sample.phases, run.sample.device_group, BATCH)))
        for run in runs
    ]
    return max(left)


def _cells(runs: Sequence[ImageRun]) -> list[ImageRun]:
    networks: dict[str, list[ImageRun]] = {}
    for run in runs:
        networks.setdefault(run.sample.model_group, []).append(run)
    return [mean for group in networks.values() for mean in _means(group)]


_GOALS: Mapping[str, tuple[str, float | None]] = {
    "workload": ("E2", 0.15),
    "network": ("E2", None),
    "device": ("E2", 0.10),
    "run:power": ("E3", 0.02),
    "run:energy": ("E3", 0.06),
    "model:power": ("E3", None),
    "model:energy": ("E3", 0.12),
    "run:energy with measured time": ("E3", None),
    "model:energy with measured time": ("E3", None),
}


def job_rows(cells: Sequence[JobCell]) -> list[EvaluationRow]:
    """Errors and coverage over all cells of a kind, and per group left out."""
    rows: list[EvaluationRow] = []
    for hold in dict.fromkeys(cell.hold for cell in cells):
        own = [cell for cell in cells if cell.hold == hold]
        name, goal = _GOALS[hold]
        rows += _rows(own, name, hold, f"{hold}:all", goal)
        for group in sorted({cell.group for cell in own} - {"random"}):
            rows += _rows([cell for cell in own if cell.group == group], name, hold, f"{hold}:{group}", None)
    return rows


def _rows(
    cells: Sequence[JobCell], name: str, hold: str, group: str, goal: float | None
) -> list[EvaluationRow]:
    return scored_rows(
        [cell.measured for cell in cells],
        [cell.answer for cell in cells],
        id=name,
        suite=SUITE,
        hold=hold,
        group=group,
        goal_mean=goal,
    )
