"""Energy to a target: curves from runs, batches left out of them, and the price of a wrong choice."""

from __future__ import annotations

import json

import polars as pl
import pytest

from predictor.evaluation.energy_caps import CapCell
from predictor.evaluation.energy_targets import chosen_over_least, learning_curves, target_rows


def _run(batch: int, epochs: float, target: float = 0.6) -> tuple[str, float]:
    return json.dumps({"dataset": "cifar100", "batch": batch, "target": target}), epochs


def _cell(batch: int, limit_w: float, error: float = 1.0) -> CapCell:
    job = f"v100 shufflenetv2 {json.dumps({'dataset': 'cifar100', 'batch': batch})}"
    return CapCell("cap", job, limit_w, 100.0, 50.0, 100.0 * error, 50.0)


def test_curves_average_seeds_at_the_target() -> None:
    runs = [_run(32, 10.0), _run(32, 14.0), _run(64, 20.0), _run(64, 99.0, target=0.7)]
    frame = pl.DataFrame(runs, schema=["configuration", "value"], orient="row")
    assert learning_curves(frame) == {"cifar100": {32: 12.0, 64: 20.0}}


def test_a_batch_is_told_from_the_others() -> None:
    # On a straight line in logarithms 64 lies between 32 and 128.
    curves = {"cifar100": {32: 10.0, 64: 22.0, 128: 40.0}}
    rows = {(row.group, row.metric): row.value for row in target_rows([_cell(64, 100.0, 1.1)], curves)}
    assert rows["energy to the target", "mape"] == pytest.approx(20.0 * 1.1 / 22.0 - 1.0, abs=1e-12)


def test_a_choice_is_scored_by_what_it_takes() -> None:
    assert chosen_over_least([(1.0, 12.0), (2.0, 10.0)]) == pytest.approx(0.2)
    assert chosen_over_least([(1.0, 10.0), (2.0, 12.0)]) == 0.0
