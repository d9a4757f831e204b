from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app

RUNNER = CliRunner()
JOB = ("--device", "a10g-pcie-24gb", "--mode", "train", "--precision", "bf16", "--optimizer", "adamw")
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 2000,
    "n_positions": 64,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def test_a_configuration_is_a_model(config: str) -> None:
    result = RUNNER.invoke(app, ["fit", config, *JOB, "--sequence", "64", "-b", "8", "-o", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "perfcast.fit/1"
    assert found["largest"]["value"] + 1 == found["beyond"]["value"]
    assert found["largest"]["fit_probability"] >= 0.9 > found["beyond"]["fit_probability"]
    assert found["changes"] == []


def test_what_to_change_is_said_where_it_does_not_fit(config: str) -> None:
    result = RUNNER.invoke(app, ["fit", config, *JOB, "--sequence", "64", "-b", "65536"])
    assert result.exit_code == 0, result.output
    job = "train · batch 65,536 · bf16 · adamw · eager"
    for word in (job, "largest batch that fits", "fastest first", "accumulate gradients"):
        assert word in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--probability", "2"], 3, "probability is 2"),
        (["--axis", "wheels"], 3, "wheels"),
        (["--device", "z9000"], 3, "z9000"),
        (["--server", "localhost:1"], 2, "in process"),
    ],
)
def test_bad_questions(config: str, arguments: list[str], code: int, message: str) -> None:
    result = RUNNER.invoke(app, ["fit", config, *JOB, "--sequence", "64", *arguments])
    assert result.exit_code == code
    assert message in result.output
    assert "Traceback" not in result.output


def test_files_that_are_no_models(tmp_path: Path) -> None:
    for text in ("{", "[1]", '{"model_type": "unheard-of"}'):
        path = tmp_path / "broken.json"
        path.write_text(text)
        result = RUNNER.invoke(app, ["fit", str(path), *JOB])
        assert result.exit_code == 3, text
    result = RUNNER.invoke(app, ["fit", "examples/gpt2.onnx", *JOB, "--axis", "layers"])
    assert result.exit_code == 2


def test_memory_draws_and_lists(tmp_path: Path) -> None:
    picture, page = tmp_path / "m.svg", tmp_path / "m.html"
    for path in (picture, page):
        arguments = ["memory", "examples/gpt2.onnx", *JOB, "-b", "2", "--top", "3", "--picture", str(path)]
        result = RUNNER.invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "alive when tensors peak" in result.stdout
    assert picture.read_text().startswith("<svg")
    assert "Alive at the peak" in page.read_text()
    result = RUNNER.invoke(app, ["memory", "examples/gpt2.onnx", *JOB, "-b", "2", "-o", "json"])
    found = json.loads(result.stdout)
    total = [sum(step) for step in zip(*found["lines_bytes"].values(), strict=True)]
    assert total.index(max(total)) == found["peak_step"]
    assert len(found["alive"]) == 15
    result = RUNNER.invoke(app, ["memory", "examples/gpt2.onnx", *JOB, "--picture", "m.gif"])
    assert result.exit_code == 2
