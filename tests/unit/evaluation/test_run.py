from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import AccuracyGateFailed, InvalidData, UnknownName
from predictor.evaluation.rows import EvaluationRow
from predictor.evaluation.run import NOISE, SUITES, accept, evaluate, gate

ROWS = [
    EvaluationRow("J3", "neusight", "end-to-end", "all", "mape", 0.09, 0.104, 48),
    EvaluationRow("J3", "neusight", "end-to-end", "all", "coverage", 0.91, 0.9, 48),
]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "record.json"
    accept({"neusight": ROWS}, path)
    return path


def test_equal_and_better_rows_pass(record: Path) -> None:
    gate({"neusight": ROWS}, record)
    gate({"neusight": [replace(ROWS[0], value=0.01), replace(ROWS[1], value=0.99)]}, record)


def test_noise_passes(record: Path) -> None:
    gate({"neusight": [replace(row, value=row.value + 0.9 * NOISE) for row in ROWS]}, record)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([replace(ROWS[0], value=0.12), ROWS[1]], r"all mape 0\.0900 -> 0\.1200"),
        ([ROWS[0], replace(ROWS[1], value=0.5)], r"all coverage 0\.9100 -> 0\.5000"),
        ([ROWS[0]], r"all\|coverage is no longer scored"),
    ],
)
def test_worse_rows_fail_by_name(rows: list[EvaluationRow], text: str, record: Path) -> None:
    with pytest.raises(AccuracyGateFailed, match=text):
        gate({"neusight": rows}, record)


def test_suites_are_accepted_apart(record: Path) -> None:
    with pytest.raises(InvalidData, match="no rows of suite memory"):
        gate({"memory": ROWS}, record)
    accept({"memory": ROWS[:1]}, record)
    gate({"memory": ROWS[:1]}, record)
    gate({"neusight": ROWS}, record)


def test_every_suite_that_got_worse_is_named(record: Path) -> None:
    accept({"memory": ROWS[:1]}, record)
    worse = [replace(ROWS[0], value=0.5), ROWS[1]]
    with pytest.raises(AccuracyGateFailed, match=r"suite neusight: .* suite memory: ") as caught:
        gate({"neusight": worse, "memory": worse[:1]}, record)
    assert caught.value.exit_code == 7


def test_a_damaged_record_is_named(record: Path) -> None:
    record.write_text("{")
    with pytest.raises(InvalidData, match="is no JSON"):
        gate({"neusight": ROWS}, record)


def test_an_unknown_suite_is_named() -> None:
    with pytest.raises(UnknownName, match="neusight"):
        evaluate("neusigth")
    expected = {"neusight", "memory", "energy", "graphs", "distributed", "time", "sources", "ops"}
    assert set(SUITES) >= expected
