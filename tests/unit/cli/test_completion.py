from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app

RUNNER = CliRunner()
MODEL = "examples/resnet50.onnx"


def invoke(*arguments: str):  # type: ignore[no-untyped-def]
    return RUNNER.invoke(app, ["study", "completion", MODEL, "-d", "v100-pcie-32gb", *arguments])


def runs(*arguments: str) -> list[dict[str, Any]]:
    result = invoke(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["schema"] == "perfcast.completion/1"
    return list(content["runs"])


def test_batches_and_caps_with_a_learning_curve(tmp_path: Path) -> None:
    curve = tmp_path / "curve.csv"
    curve.write_text("batch,epochs\n32,10\n128,20\n", encoding="utf-8")
    found = runs(
        "--batch", "32,128", "--power-limit", "150,250", "--samples", "12800", "--curve", str(curve)
    )  # fmt: skip
    assert [(run["batch"], run["power_limit_w"]) for run in found] == [
        (32, 150),
        (32, 250),
        (128, 150),
        (128, 250),
    ]
    assert [run["steps"] for run in found] == pytest.approx([4000, 4000, 2000, 2000])
    assert found[0]["time_s"]["value"] > found[1]["time_s"]["value"]
    assert found[0]["energy_j"]["value"] < found[1]["energy_j"]["value"]
    # Nothing was said of place and price.
    assert all(run["footprint"] is None and run["start"] is None for run in found)


def test_place_changes_carbon_and_not_energy_and_hours_matter() -> None:
    common = ("--steps", "20000", "--trace", "seed:3", "--choose-start", "48")
    (germany,) = runs(*common, "--site", "de")
    (norway,) = runs(*common, "--site", "no")
    assert germany["energy_j"] == norway["energy_j"]
    assert germany["footprint"]["carbon_g"]["value"] > 2 * norway["footprint"]["carbon_g"]["value"]
    start = germany["start"]
    assert start["carbon_g"]["value"] <= start["asked_carbon_g"]["value"]
    assert start["kind"] == "average"
    assert germany["footprint"]["cost_usd"] is None


def test_the_table_names_scope_and_start() -> None:
    result = invoke("--epochs", "2", "--samples", "1000", "--validation", "100", "--site", "232")
    assert result.exit_code == 0, result.output
    assert "scope device" in result.stdout
    assert "232 g/kWh" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--epochs", "2"), "samples"),
        (("--steps", "2", "--epochs", "2"), "one of"),
        ((), "one of"),
        (("--steps", "10", "--choose-start", "4"), "trace"),
        (("--steps", "10", "--trace", "seed:x", "--site", "de"), "whole number"),
        (("--steps", "10", "--trace", "seed:1", "--site", "de", "--marginal"), "marginal"),
    ],
)
def test_faults_are_one_line(arguments: tuple[str, ...], fault: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert fault in str(result.output) + str(result.exception)
