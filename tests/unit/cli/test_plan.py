"""`perfcast plan` and the sentences that it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app
from predictor.parallel.plan import Plan
from predictor.search.reasons import plan_words, why_it_loses
from predictor.search.search import Found
from predictor.search.source import Outcome
from predictor.types import Recompute, Schedule

MODEL = str(Path(__file__).resolve().parents[3] / "examples" / "resnet50.onnx")
JOB = [MODEL, "-d", "a100-sxm-80gb", "--cluster", "dgx-a100-80gb:1", "-b", "16", "--mode", "train"]


def test_the_best_plans_are_listed_with_a_reason() -> None:
    result = CliRunner().invoke(app, ["plan", *JOB, "--max-devices", "4", "--top", "2"])
    assert result.exit_code == 0, result.output
    assert "the second against the first" in result.stdout
    assert "fewer devices, longer iterations" in result.stdout
    assert "plans considered" in result.stdout
    assert "train · batch 16 · fp32 · sgd · eager" in result.stdout


def test_json_holds_plans_that_can_be_asked_about() -> None:
    result = CliRunner().invoke(
        app, ["plan", *JOB, "--max-devices", "2", "--objective", "cost", "--price", "2", "-o", "json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "perfcast.plans/1"
    best = found["best"][0]
    assert Plan(**best["plan"]).device_count == best["devices"] <= 2
    assert best["value"] == pytest.approx(best["iteration_time_s"] * best["devices"] / 3600 * 2)
    assert sum(best["time_breakdown_s"].values()) == pytest.approx(best["iteration_time_s"])


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--objective", "speed"], 3, "unknown objective"),
        (["--deadline", "0.000001"], 4, "later deadline"),
        (["--server", "localhost:1", "--timeout", "0.2"], 6, "no "),
        (["--cp", "two"], 2, "whole numbers"),
    ],
)
def test_what_cannot_be_searched_is_said(flags: list[str], code: int, said: str) -> None:
    result = CliRunner().invoke(app, ["plan", *JOB, "--max-devices", "2", *flags])
    assert result.exit_code == code
    assert said in result.output


def outcome(time_s: float, **parts: float) -> Outcome:
    return Outcome(time_s, 1.0, 1.0, {"forward": 0.5, **parts})


def test_a_plan_in_words() -> None:
    assert plan_words(Plan()) == "one device"
    plan = Plan(dp=2, tp=4, sequence_parallel=True, schedule=Schedule.GPIPE, recompute=Recompute.FULL)
    assert plan_words(plan) == "dp 2, tp 4, sequence parallel, schedule gpipe, recompute full"


def test_why_a_plan_loses() -> None:
    best = Found(Plan(dp=4), outcome(1.0, communication=0.5), 1.0)
    slower = Found(Plan(dp=2, pp=2), outcome(1.2, communication=0.2, pipeline_bubble=0.5), 1.2)
    assert why_it_loses(best, slower) == (
        "500 ms more pipeline bubbles; it saves 300 ms of exchanges of replicas"
    )
    assert why_it_loses(best, best) == "as good as the best"
    dearer = Found(Plan(dp=8), outcome(0.9, communication=0.4), 2.0)
    assert "4 more devices" in why_it_loses(best, dearer)
