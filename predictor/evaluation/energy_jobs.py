"""Whole training jobs: watts with a device, network or workload left out (E2).

Watts come from the power model on profiles of predicted kernel times; the public Predictor gives the same
numbers (a test holds it). Energy per epoch with the measured time is watts with another name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from predictor.evaluation.rows import EvaluationRow, scored_rows
from predictor.models.power.board_power import PowerModel
from predictor.models.power.rows import PowerSample
from predictor.models.power.training import train_power

SUITE = "energy"
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
            model = trained_power([sample for sample in samples if key(sample) != group])
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


def trained_power(samples: Sequence[PowerSample]) -> PowerModel:
    """The power model that these readings make."""
    return PowerModel.from_trained(train_power(samples))


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
