"""ML.ENERGY (E2): watts per device and joules per token of served decoders, models and chips left out.

Everything comes from transformer configurations: no measured time enters. Rows "with measured throughput"
take the measured tokens per second and our watts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.energy_jobs import SUITE, Answer
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows, scored_rows
from predictor.models.calibration import conformal_quantile
from predictor.models.corpus.build import read_source
from predictor.models.corpus.ml_energy import SOURCE
from predictor.models.corpus.ml_energy_v2 import SOURCE as V2
from predictor.models.corpus.wilkins import SOURCE as WILKINS
from predictor.models.power.llm_shape import published_shapes
from predictor.models.power.serving import FloatArray, ServingModel
from predictor.models.power.serving_training import (
    ServingSample,
    new_chip_energy_spread,
    serving_samples,
    train_serving,
)

if TYPE_CHECKING:
    import polars as pl

OLDER: Mapping[str, str] = {V2: "served in 2024", WILKINS: "generated offline"}
"""Source -> what its rows are."""
POWER_MODEL_GOAL, POWER_CHIP_GOAL, ENERGY_GOAL = 0.07, 0.15, 0.10


@dataclass(frozen=True, slots=True)
class ServingCell:
    """One run and our answer, by models that never saw its decoder (or its chip).

    Answers are (value, low, high): watts per device, joules per token.
    """

    hold: str
    group: str
    sample: ServingSample
    step_s: float
    power_w: Answer
    energy_j: Answer


def serving_cells(
    samples: Sequence[ServingSample], holds: Sequence[str] = ("model", "chip")
) -> list[ServingCell]:
    """Every run with its model left out, then with its chip left out.

    Intervals are calibrated on the runs of the other groups left out, never on the group itself.
    """
    cells: list[ServingCell] = []
    for hold in holds:
        names = [getattr(sample, hold) for sample in samples]
        groups = np.array(names)
        found: list[dict[str, float]] = [{} for _ in samples]
        for group in sorted(set(names)):
            rest = [s for s, own in zip(samples, names, strict=True) if own != group]
            model = ServingModel.from_trained(train_serving(rest, calibrate=False))
            for position, sample in enumerate(samples):
                if names[position] == group:
                    found[position] = model.raw(sample.job, sample.device)
        power = np.array([one["power_w"] for one in found])
        energy = np.array([one["energy_j"] for one in found])
        power_spread = _spreads(power, np.array([s.power_w for s in samples]), groups)
        if hold == "chip":
            step = np.array([one["step_s"] for one in found])
            step_spread = _spreads(step, np.array([s.step_s for s in samples]), groups)
            energy_spread = np.array(list(map(new_chip_energy_spread, power_spread, step_spread)))
        else:
            energy_spread = _spreads(energy, np.array([s.energy_j for s in samples]), groups)
        for i, sample in enumerate(samples):
            cells.append(
                ServingCell(
                    hold,
                    names[i],
                    sample,
                    found[i]["step_s"],
                    _answer(power[i], power_spread[i]),
                    _answer(energy[i], energy_spread[i]),
                )
            )
    return cells


def _spreads(ours: FloatArray, measured: FloatArray, groups: NDArray[np.str_]) -> FloatArray:
    left = np.abs(np.log(measured / ours))
    spread = np.zeros(len(ours))
    for group in np.unique(groups):
        own = groups == group
        spread[own] = conformal_quantile(left[~own])
    return spread


def _answer(value: float, spread: float) -> Answer:
    return float(value), float(value * np.exp(-spread)), float(value * np.exp(spread))


def serving_rows(corpus: Path) -> list[EvaluationRow]:
    """Rows of the suite: the leaderboard, and older servers by models of their own rows.

    A server of 2024 took three times as long for a step, so its rows teach nothing of today's.
    """
    rows = rows_of(serving_cells(serving_samples(read_source(corpus, SOURCE))))
    for source, name in OLDER.items():
        samples = serving_samples(known_rows(read_source(corpus, source)))
        for hold in ("model", "chip"):
            rows += _rows(serving_cells(samples, (hold,)), hold, f"{name}, {hold} left out", None)
    return rows


def known_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Metered boards of whole jobs whose decoder has a configuration here, layers not laid out in a row."""
    import polars as pl

    facts = pl.col("configuration").str
    row_of_layers = (pl.col("source") == WILKINS) & (facts.json_path_match("$.devices") != "1")
    return rows.filter(
        pl.col("scope") == "gpu_board",
        facts.contains("output_tokens"),
        pl.col("subject").is_in(list(published_shapes())),
        ~row_of_layers,
    )


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
    measured_j = [cell.sample.energy_j for cell in cells]
    found = scored_rows(
        [cell.sample.power_w for cell in cells],
        [cell.power_w for cell in cells],
        id="E2",
        suite=SUITE,
        hold=hold,
        group=f"{name}: W per device",
        goal_mean=power_goal,
    )
    found += scored_rows(
        measured_j,
        [cell.energy_j for cell in cells],
        id="E2",
        suite=SUITE,
        hold=hold,
        group=f"{name}: J per token",
        goal_median=ENERGY_GOAL if hold == "model" and power_goal is not None else None,
    )
    known = [c.power_w[0] * c.sample.job.ranks * c.sample.step_s / c.sample.work.batch for c in cells]
    errors = absolute_errors(known, measured_j)
    found += error_rows(
        errors, id="E2", suite=SUITE, hold=hold, group=f"{name}: J per token, measured throughput"
    )
    steps = absolute_errors([c.step_s for c in cells], [c.sample.step_s for c in cells])
    return found + error_rows(steps, id="E2", suite=SUITE, hold=hold, group=f"{name}: step time")
