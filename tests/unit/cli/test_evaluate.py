"""`perfcast evaluate` with a suite that is already scored."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app
from predictor.evaluation import run
from predictor.evaluation.rows import EvaluationRow

ROWS = [
    EvaluationRow("J3", "neusight", "end-to-end", "all", "mape", 0.12, 0.104, 48),
    EvaluationRow("J3", "neusight", "end-to-end", "all", "coverage", 0.95, 0.9, 48),
    EvaluationRow("J3", "neusight", "end-to-end", "amd", "mape", 0.3, None, 27),
]


@pytest.fixture(autouse=True)
def _scored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "SUITES", {"neusight": lambda options, progress: (ROWS, [])})
    record = tmp_path / "record.json"
    for name in ("accept", "gate", "require_record"):
        monkeypatch.setattr(run, name, partial(getattr(run, name), record=record))


def _evaluate(*flags: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["evaluate", *flags])
    return result.exit_code, result.stdout, result.stderr


def test_json_is_the_list_of_rows() -> None:
    code, stdout, _ = _evaluate("--output", "json")
    assert code == 0
    assert json.loads(stdout) == [row.to_json() for row in ROWS]


def test_the_table_counts_goals() -> None:
    code, stdout, _ = _evaluate("--suite", "neusight")
    assert code == 0
    assert "12.0%" in stdout
    assert "1 of 2 goals met" in stdout


def test_the_gate_exits_7_when_a_number_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _evaluate("--accept")[0] == 0
    assert _evaluate("--gate")[0] == 0
    worse = [EvaluationRow("J3", "neusight", "end-to-end", "all", "mape", 0.14, 0.104, 48), *ROWS[1:]]
    monkeypatch.setattr(run, "SUITES", {"neusight": lambda options, progress: (worse, [])})
    code, stdout, stderr = _evaluate("--gate")
    assert code == 7
    assert "14.0%" in stdout
    assert "0.1200 -> 0.1400" in stderr


def test_what_will_fail_fails_before_the_first_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(options: object, progress: object) -> object:
        raise AssertionError("scored")

    monkeypatch.setattr(run, "SUITES", {"neusight": never})
    code, _, stderr = _evaluate("--gate")
    assert (code, "no rows of suite neusight" in stderr) == (3, True)
    code, _, stderr = _evaluate("--suite", "neusight", "--suite", "nope")
    assert (code, "unknown suite 'nope'" in stderr) == (3, True)


def test_an_unknown_suite_is_named() -> None:
    code, stdout, stderr = _evaluate("--suite", "nope")
    assert (code, stdout) == (3, "")
    assert stderr.startswith("error: unknown suite 'nope'")


def test_accepting_and_gating_at_once_is_a_usage_error() -> None:
    assert _evaluate("--accept", "--gate")[0] == 2


def test_what_one_command_writes_the_next_one_reads() -> None:
    """`corpus build`, `train` and `evaluate` without flags mean the same folder, which git ignores."""
    from inspect import signature

    from predictor.cli.corpus import build
    from predictor.cli.evaluate import evaluate
    from predictor.cli.train import train

    folders = {
        signature(build).parameters["out"].default,
        signature(train).parameters["corpus"].default,
        signature(evaluate).parameters["corpus"].default,
    }
    assert folders == {Path(".corpus")}


def test_hits_and_coverage_are_goals_from_below() -> None:
    from predictor.cli.render_evaluation import meets_goal
    from predictor.evaluation.rows import EvaluationRow

    for metric, value, met in (
        ("hit_rate", 0.96, True),
        ("hit_rate", 0.94, False),
        ("coverage", 0.94, False),
        ("mape", 0.94, True),
        ("mape", 0.96, False),
    ):
        assert meets_goal(EvaluationRow("M3", "memory", "none", "all", metric, value, 0.95, 1)) is met
