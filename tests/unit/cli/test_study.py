"""`perfcast study`: tables for people, JSON for programs, one line for what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from predictor.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["study", *arguments])


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["schema"] == "perfcast.study/1"
    answer: list[dict[str, Any]] = found["rows"]
    return answer


def test_the_study_s_jobs() -> None:
    found = rows("pai")
    assert [row["job"] for row in found][:2] == ["multi_interests", "resnet50"]
    assert found[1]["step_s"] == pytest.approx(0.2638, rel=1e-3)
    result = run("pai", "bert")
    assert "469 ms" in result.stdout
    assert "resnet50" not in result.stdout


def test_jobs_move_and_rates_are_swept() -> None:
    (moved,) = rows("pai", "multi_interests", "--to", "allreduce_local", "--replicas", "64")
    assert moved["replicas"] == 8
    swept = rows("pai", "multi_interests", "--sweep", "ethernet_gbit=25,100")
    assert [row["ethernet_gbit"] for row in swept] == [25.0, 100.0]
    assert swept[0]["speedup"] == pytest.approx(1.0)
    assert swept[1]["speedup"] > 1.1


def test_a_graph_of_one_s_own() -> None:
    model = str(EXAMPLES / "resnet50.onnx")
    (row,) = rows("pai", "--model", model, "--batch", "64", "--optimizer", "momentum")
    assert row["traffic_bytes"] == pytest.approx(357.8e6, rel=1e-3)
    assert row["weight_bytes"] == pytest.approx(204.5e6, rel=1e-3)


def test_placements_of_servers() -> None:
    found = {
        row["placement"]: row["busiest_node_bytes"]
        for row in rows("phub", "--model-mb", "97", "--compute-ms", "161")
    }
    assert found["cc"] / found["ncc"] == 7 / 8
    assert found["cs"] / found["cc"] == 1 / 4


def test_enclaves() -> None:
    found = rows("tee", "--compute-ms", "500", "--bucket-mb", "25", "--bucket-mb", "8192")
    assert [row["slowdown"] for row in found] == [pytest.approx(41.6), pytest.approx(3.03)]
    assert "crypto" in run("tee", "--compute-ms", "500").stdout


def test_scale_up() -> None:
    small, large = rows(
        "scale-up", "--model-mb", "100", "--sample-ms", "0.1", "--batch", "4", "--batch", "128"
    )
    assert small["epoch_bytes"] / large["epoch_bytes"] == 32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pai", "nope"), "unknown case"),
        (("pai", "--system", "x"), "unknown system"),
        (("pai", "--overlap", "much"), "none, ideal"),
        (("pai", "--overlap", "2"), "0 to 1"),
        (("pai", "--to", "gossip"), "unknown training architecture"),
        (("pai", "--sweep", "ethernet_gbit=a"), "expected numbers"),
        (("pai", "--sweep", "disk=1"), "unknown rate"),
        (("phub", "--model-mb", "0", "--compute-ms", "1"), "model_bytes"),
        (("tee", "--compute-ms", "-1"), "compute_s"),
        (("scale-up", "--model-mb", "1", "--sample-ms", "0"), "sample_s"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 3
    assert said in result.stderr
    assert "Traceback" not in result.stderr
