"""`perfcast graph from-config` writes a file that the other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from predictor.api import Predictor
from predictor.cli.main import app
from predictor.request import PredictionRequest

CONFIGS = Path(__file__).parents[2] / "assets" / "configs"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["graph", *arguments])


def shown(path: Path, *arguments: str) -> dict[str, object]:
    result = run("show", str(path), *arguments, "--output", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_the_batch_stays_open_by_default(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    result = run("from-config", str(CONFIGS / "gpt2.json"), "--sequence", "64", "--out", str(path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert str(path) in result.stderr
    found = shown(path, "--batch", "3")
    assert found["parameter_count"] == 124_439_808
    assert found["inputs"] == [{"name": "input_ids", "shape": [3, 64], "dtype": "int64"}]


def test_quantised_weights_are_said_to_be_left_out(tmp_path: Path) -> None:
    values = json.loads((CONFIGS / "gpt2.json").read_text())
    values["quantization_config"] = {"quant_method": "gptq", "bits": 3}
    source, path = tmp_path / "config.json", tmp_path / "model.onnx"
    source.write_text(json.dumps(values))
    result = run("from-config", str(source), "--sequence", "16", "--out", str(path))
    assert result.exit_code == 0
    assert "warning: quantization_config (gptq) is left out" in result.stderr


def test_batch_and_head_are_fixed_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    given = ("--batch", "2", "--task", "tokens", "--sequence", "16")
    assert (
        run("from-config", str(CONFIGS / "bert-base-uncased.json"), *given, "--out", str(path)).exit_code == 0
    )
    assert shown(path)["outputs"][0]["shape"] == [2, 16, 2]  # type: ignore[index]


def test_the_file_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    config = json.loads((CONFIGS / "mixtral-8x7b.json").read_text()) | {"num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (
        run("from-config", str(tmp_path / "config.json"), "--sequence", "64", "--out", str(path)).exit_code
        == 0
    )
    assert run("check", str(path), "--strict").exit_code == 0
    answer = Predictor.load().predict(
        PredictionRequest(path, device="a100-pcie-40gb", batch=2, precision="bf16")  # type: ignore[arg-type]
    )
    assert answer.iteration_time_s.value > 0
    # Nearly all of it is weights: the experts, two word tables, attention.
    assert answer.device_peak_bytes.value > 2 * 1.7e9
    assert answer.coverage.fallback == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"model_type": "llma"}', "unknown model_type 'llma': did you mean llama"),
        ('{"model_type": "llama"}', "field 'num_hidden_layers' is missing"),
        ("model_type = llama", "not JSON"),
    ],
)
def test_what_cannot_be_built_is_one_line_and_exit_3(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    result = run("from-config", str(path), "--out", str(tmp_path / "model.onnx"))
    assert result.exit_code == 3
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert not (tmp_path / "model.onnx").exists()


def test_one_step_of_a_decoder(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    given = ("--past-length", "100", "--last-only", "--out", str(path))
    assert run("from-config", str(CONFIGS / "gpt2.json"), *given).exit_code == 0
    inputs = shown(path, "--batch", "3")["inputs"]
    assert {"name": "past_key_values.11.value", "shape": [3, 12, 101, 64], "dtype": "float32"} in inputs  # type: ignore[operator]
    result = run("from-config", str(CONFIGS / "bert-base-uncased.json"), *given)
    assert result.exit_code == 3
    assert "no decoder" in result.stderr


def test_a_configuration_stands_where_a_file_may(tmp_path: Path) -> None:
    found = shown(CONFIGS / "gpt2.json", "--sequence", "64", "--batch", "3")
    assert found["parameter_count"] == 124_439_808
    assert found["inputs"] == [{"name": "input_ids", "shape": [3, 64], "dtype": "int64"}]
    assert len(shown(CONFIGS / "gpt2.json", "--past-length", "9")["inputs"]) == 2 + 24  # type: ignore[arg-type]
    result = run("check", str(CONFIGS / "t5-small.json"), "--strict", "--output", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["ok"]


def test_lengths_are_those_of_a_configuration() -> None:
    result = run("show", "model.onnx", "--sequence", "64")
    assert result.exit_code == 2
    assert "is no config.json" in result.stderr


def test_where_no_configuration_may_stand_the_command_is_named() -> None:
    result = CliRunner().invoke(app, ["predict", str(CONFIGS / "gpt2.json"), "--device", "a100-sxm-80gb"])
    assert result.exit_code == 3
    assert "perfcast graph from-config" in result.stderr
