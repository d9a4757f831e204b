from __future__ import annotations

import pytest

from predictor.evaluation.energy_caps import CapCell, cap_rows
from predictor.evaluation.energy_jobs import JobCell, job_rows
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


def job_cell(hold: str, group: str, predicted: float) -> JobCell:
    return JobCell(hold, group, "v100", "bert", 100.0, (predicted, 95.0, 130.0))


def test_job_rows_per_hold_with_their_goals() -> None:
    cells = [
        job_cell("device", "v100", 110.0),
        job_cell("device", "p100", 130.0),
        job_cell("run:energy", "random", 100.0),
    ]
    rows = job_rows(cells)
    assert value(rows, "device:all", "mape") == pytest.approx(0.2)
    assert value(rows, "device:v100", "mape") == pytest.approx(0.1)
    assert value(rows, "run:energy:all", "coverage") == 1.0
    goals = {row.group: (row.id, row.goal) for row in rows if row.metric == "mape"}
    assert goals["device:all"] == ("E2", 0.1)
    assert goals["device:v100"] == ("E2", None)
    assert goals["run:energy:all"] == ("E3", 0.06)
    keys = [(row.group, row.metric) for row in rows]
    assert len(keys) == len(set(keys))


def cap_cell(limit_w: float, energy_j: float, predicted_j: float) -> CapCell:
    return CapCell("cap", "bert", limit_w, energy_j / 100.0, 100.0, predicted_j / 100.0, 100.0)


@pytest.mark.parametrize(("predicted", "hit"), [((9.0, 7.0, 8.0, 9.0), 1.0), ((9.0, 8.0, 7.0, 6.0), 0.0)])
def test_the_best_cap_may_be_one_step_off(predicted: tuple[float, ...], hit: float) -> None:
    measured = (8.0, 7.0, 8.0, 9.0)
    caps = (100.0, 150.0, 200.0, 250.0)
    rows = cap_rows([cap_cell(*point) for point in zip(caps, measured, predicted, strict=True)])
    assert value(rows, "cap held out: best cap within one step", "hit_rate") == hit
    errors = [abs(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    assert value(rows, "cap held out: energy", "mape") == pytest.approx(sum(errors) / 4)
