from __future__ import annotations

import pytest

from predictor.evaluation.energy import DEVICE, WORKLOAD, PowerCell, power_evaluation_rows
from predictor.evaluation.memory import MemoryCell, memory_evaluation_rows
from predictor.evaluation.rows import EvaluationRow


def value(rows: list[EvaluationRow], group: str, metric: str) -> float:
    return next(row.value for row in rows if row.group == group and row.metric == metric)


def memory_cell(batch: int, predicted: float, peak: bool = False, family: str = "resnet") -> MemoryCell:
    return MemoryCell("m", family, "a100-sxm-40gb", batch, peak, 100.0, predicted, 90.0, 115.0)


def test_memory_rows_by_batch_and_without_autotuner_peaks() -> None:
    cells = [memory_cell(8, 110.0), memory_cell(16, 100.0), memory_cell(8, 10.0, peak=True)]
    rows = memory_evaluation_rows(cells)
    assert value(rows, "all", "mape") == pytest.approx(0.05)
    assert value(rows, "batch:8", "mape") == pytest.approx(0.1)
    assert value(rows, "autotuner peaks", "mape") == pytest.approx(0.9)
    assert value(rows, "all", "coverage") == 1.0
    goals = {row.metric: row.goal for row in rows if row.group == "all"}
    assert goals["mape"] == 0.05
    assert goals["median_ape"] == 0.03


def test_only_large_families_have_rows_of_their_own() -> None:
    cells = [memory_cell(8, 105.0) for _ in range(80)] + [memory_cell(8, 100.0, family="tnt")]
    groups = {row.group for row in memory_evaluation_rows(cells)}
    assert "family:resnet" in groups
    assert "family:tnt" not in groups


def power_cell(hold: str, group: str, predicted: float) -> PowerCell:
    return PowerCell(hold, "v100-pcie-32gb", group, "bert", 200.0, 100.0, predicted, 95.0, 130.0)


def test_power_rows_per_hold_and_the_usual_guess() -> None:
    cells = [
        power_cell(DEVICE, "v100", 110.0),
        power_cell(DEVICE, "p100", 130.0),
        power_cell(WORKLOAD, "bert", 100.0),
    ]
    rows = power_evaluation_rows(cells)
    assert value(rows, "all", "mape") == pytest.approx(0.2)
    assert value(rows, "device:v100", "mape") == pytest.approx(0.1)
    assert value(rows, "workload:all", "mape") == 0.0
    assert value(rows, "baseline: power limit", "mape") == pytest.approx(1.0)
    keys = [(row.group, row.metric) for row in rows]
    assert len(keys) == len(set(keys))
