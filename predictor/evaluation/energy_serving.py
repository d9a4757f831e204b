"""ML.ENERGY (E2): watts per device and joules per token of served decoders, models and chips left out.

Everything comes from transformer configurations: no measured time enters. Rows "with measured throughput"
take the measured tokens per second and our watts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from predictor.evaluation.energy_jobs import SUITE
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows, scored_rows
from predictor.models.corpus.build import read_source
from predictor.models.corpus.ml_energy import SOURCE
from predictor.models.serving import ServingAnswer, ServingModel
from predictor.models.serving_training import ServingSample, serving_samples, train_serving

POWER_MODEL_GOAL, POWER_CHIP_GOAL, ENERGY_GOAL = 0.07, 0.15, 0.10


@dataclass(frozen=True, slots=True)
class ServingCell:
    """One run and our answer, by models that never saw its decoder (or its chip)."""

    hold: str
    group: str
    sample: ServingSample
    answer: ServingAnswer


def serving_cells(samples: Sequence[ServingSample]) -> Iterator[ServingCell]:
    """Every run with its model left out, then with its chip left out."""
    for hold in ("model", "chip"):
        for group in sorted({getattr(sample, hold) for sample in samples}):
            rest = [sample for sample in samples if getattr(sample, hold) != group]
            model = ServingModel.from_trained(train_serving(rest))
            for sample in samples:
                if getattr(sample, hold) == group:
                    yield ServingCell(hold, group, sample, model.predict(sample.job, sample.device))


def serving_rows(corpus: Path) -> list[EvaluationRow]:
    """Rows of the suite."""
    return rows_of(list(serving_cells(serving_samples(read_source(corpus, SOURCE)))))


def rows_of(cells: Sequence[ServingCell]) -> list[EvaluationRow]:
    """Watts, joules per token and steps per kind of hold, and joules with the measured throughput."""
    rows: list[EvaluationRow] = []
    for hold, power_goal in (("model", POWER_MODEL_GOAL), ("chip", POWER_CHIP_GOAL)):
        own = [cell for cell in cells if cell.hold == hold]
        rows += _rows(own, hold, f"served, {hold} left out", power_goal)
        for group in sorted({cell.group for cell in own}) if hold == "chip" else ():
            rows += _rows([c for c in own if c.group == group], hold, f"served, {group} left out", None)
    return rows


def _rows(
    cells: Sequence[ServingCell], hold: str, name: str, power_goal: float | None
) -> list[EvaluationRow]:
    watts = [(c.answer.power_w.value, c.answer.power_w.low, c.answer.power_w.high) for c in cells]
    joules = [(e.value, e.low, e.high) for e in (cell.answer.energy_per_token_j for cell in cells)]
    measured_j = [cell.sample.energy_j for cell in cells]
    found = scored_rows(
        [cell.sample.power_w for cell in cells],
        watts,
        id="E2",
        suite=SUITE,
        hold=hold,
        group=f"{name}: W per device",
        goal_mean=power_goal,
    )
    found += scored_rows(
        measured_j,
        joules,
        id="E2",
        suite=SUITE,
        hold=hold,
        group=f"{name}: J per token",
        goal_median=ENERGY_GOAL if hold == "model" and power_goal is not None else None,
    )
    known = [
        c.answer.power_w.value * c.sample.job.ranks * c.sample.step_s / c.sample.work.batch for c in cells
    ]
    errors = absolute_errors(known, measured_j)
    found += error_rows(
        errors, id="E2", suite=SUITE, hold=hold, group=f"{name}: J per token, measured throughput"
    )
    steps = absolute_errors([c.answer.step_s.value for c in cells], [c.sample.step_s for c in cells])
    return found + error_rows(steps, id="E2", suite=SUITE, hold=hold, group=f"{name}: step time")
