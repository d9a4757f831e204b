"""Energy to a target (E5): epochs at a batch left out of the curve, times joules of one under a cap left out.

The targets are those that Zeus trains to. A (card, workload) is also a question: which batch and cap need
least energy? Its answer is scored by what the choice takes over the least that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from predictor.evaluation.energy_caps import CapCell
from predictor.evaluation.energy_jobs import SUITE
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows
from predictor.search.time_to_target import EpochTable

if TYPE_CHECKING:
    import polars as pl

TARGETS: Mapping[str, float] = {
    "cifar100": 0.6,
    "imagenet": 0.65,
    "librispeech": 40.0,
    "sentiment140": 0.84,
    "squad": 84.0,
}
"""Data set -> accuracy, word error rate or F1 at which Zeus' runs end."""
Curve = Mapping[int, float]


def learning_curves(rows: pl.DataFrame) -> dict[str, Curve]:
    """Data set -> epochs to its target by batch, means over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for text, epochs in rows.select("configuration", "value").iter_rows():
        facts = json.loads(text)
        if abs(float(facts["target"]) - TARGETS[facts["dataset"]]) < 1e-9:
            found.setdefault(facts["dataset"], {}).setdefault(int(facts["batch"]), []).append(epochs)
    return {
        name: {batch: float(np.mean(epochs)) for batch, epochs in sorted(curve.items())}
        for name, curve in found.items()
    }


def target_rows(cells: Sequence[CapCell], curves: Mapping[str, Curve]) -> list[EvaluationRow]:
    """Errors of joules to the target and of the choice of batch and cap, of cells with their cap left out."""
    ours: list[float] = []
    measured: list[float] = []
    questions: dict[str, list[tuple[float, float]]] = {}
    for cell in cells:
        card, network, text = cell.job.split(" ", 2)
        facts = json.loads(text)
        curve, batch = curves.get(facts["dataset"], {}), int(facts["batch"])
        others = tuple((float(other), epochs) for other, epochs in curve.items() if other != batch)
        if cell.hold != "cap" or batch not in curve or not others:
            continue
        guess = EpochTable(others)(batch) * cell.time_s * cell.power_w
        truth = curve[batch] * cell.measured_s * cell.measured_w
        ours.append(guess)
        measured.append(truth)
        questions.setdefault(f"{card} {network} {facts['dataset']}", []).append((guess, truth))
    over = [chosen_over_least(points) for points in questions.values()]
    rows: list[EvaluationRow] = []
    for group, errors in (
        ("energy to the target", absolute_errors(ours, measured)),
        ("energy to the target: chosen batch and cap over the best", np.array(over)),
    ):
        rows += error_rows(errors, id="E5", suite=SUITE, hold="batch and cap", group=group)
    return rows


def chosen_over_least(points: Sequence[tuple[float, float]]) -> float:
    """By how much the (ours, measured) point that we think least exceeds the least measured one."""
    chosen = min(points)[1]
    return chosen / min(truth for _, truth in points) - 1.0
