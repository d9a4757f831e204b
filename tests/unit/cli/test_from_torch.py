"""`perfcast graph from-torch`, and modules named in place of a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import predictor.api
from predictor.cli.from_torch import is_module_name
from predictor.cli.main import app
from predictor.errors import InvalidRequest
from predictor.features.reading.reader import read_graph
from predictor.features.torch_capture import TorchModel
from predictor.request import PredictionRequest
from predictor.types import Prediction
from tests.contract.fake import FakePredictor

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

MODULES = """
import torch
from torch import nn

def cnn():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        # Reads numbers while it is built: not possible on the meta device.
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]

    def forward(self, tokens, mask=None):
        found = self.table(tokens)
        return found if mask is None else found * mask[..., None]

ready = nn.Linear(8, 4)

class Zoo:
    @staticmethod
    def small():
        return nn.Linear(8, 4)

def broken():
    raise ValueError("needs a configuration")

def number():
    return 5
"""
CNN = ("--example-shape", "2x3x8x8")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymodels_for_test.py").write_text(MODULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodels_for_test", raising=False)
    monkeypatch.delenv("PERFCAST_SERVER", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def from_torch(name: str, *arguments: str) -> Result:
    return run("graph", "from-torch", f"mymodels_for_test:{name}", *arguments)


@pytest.mark.parametrize(
    ("name", "shapes", "parameters"),
    [
        ("cnn", CNN, 4 * 27 + 4 + 2 * 144 + 2),
        ("Tokens", ("--example-shape", "2x5:int64", "--example-shape", "mask=2x5"), 80),
        ("ready", ("--example-shape", "3x8"), 36),
        ("Zoo.small", ("--example-shape", "3x8"), 36),
    ],
)
def test_a_file_is_written(name: str, shapes: tuple[str, ...], parameters: int, tmp_path: Path) -> None:
    result = from_torch(name, *shapes, "--out", "model.onnx")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    assert "model.onnx" in result.stderr
    graph = read_graph(tmp_path / "model.onnx", batch=7)
    assert graph.parameter_count == parameters
    assert graph.batch == 7


def test_standard_output_takes_the_file() -> None:
    result = from_torch("cnn", *CNN, "--out", "-", "--fixed-batch")
    assert result.exit_code == 0
    assert read_graph(result.stdout_bytes).batch == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cnnn", "has no 'cnnn'; did you mean cnn"),
        ("broken", "failed when called without arguments (ValueError: needs a configuration)"),
        ("number", "returned int, expected a torch.nn.Module"),
        ("MODULES.x", "has no 'MODULES.x'"),
        ("Tokens", "failed on the example inputs"),
    ],
)
def test_bad_factories_are_one_error(name: str, words: str) -> None:
    result = from_torch(name, *CNN, "--out", "x.onnx")
    assert result.exit_code == 3
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert words in line
    assert "Traceback" not in result.stderr
    assert not Path("x.onnx").exists()


def test_a_module_that_is_not_there_is_named() -> None:
    result = run("graph", "from-torch", "nowhere_to_be_found:x", *CNN, "--out", "x.onnx")
    assert result.exit_code == 3
    assert "cannot import nowhere_to_be_found (ModuleNotFoundError" in result.stderr


def test_without_torch_the_hint_is_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = from_torch("cnn", *CNN, "--out", "x.onnx")
    assert result.exit_code == 3
    assert "pip install perfcast[torch]" in result.stderr


@pytest.mark.parametrize(
    ("shape", "words"), [("2y3", "expected 8x3x224x224"), ("2x3:int6", "unknown type"), ("2x0", "at least 1")]
)
def test_malformed_shapes_are_usage_errors(shape: str, words: str) -> None:
    result = from_torch("cnn", "--example-shape", shape, "--out", "x.onnx")
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_module_stands_where_a_file_may(command: str) -> None:
    result = run("graph", command, "mymodels_for_test:cnn", *CNN, "--batch", "5", "--output", "json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    if command == "show":
        assert found["parameter_count"] == 4 * 27 + 4 + 2 * 144 + 2
        assert found["inputs"][0]["shape"] == [5, 3, 8, 8]
    else:
        assert found["ok"]


def test_shapes_are_needed() -> None:
    result = from_torch("cnn", "--out", "x.onnx")
    assert result.exit_code == 2
    assert "--example-shape" in result.stderr


def test_predict_asks_about_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Asked(FakePredictor):
        def predict(self, request: PredictionRequest) -> Prediction:
            asked.append(request)
            raise InvalidRequest("enough")

    monkeypatch.setattr(predictor.api.Predictor, "load", classmethod(lambda cls, bundle=None: Asked()))
    result = run("predict", "mymodels_for_test:cnn", *CNN, "--device", "a100-pcie-40gb", "--batch", "16")
    assert "enough" in result.stderr
    (request,) = asked
    assert isinstance(request.graph, TorchModel)
    assert request.batch == 16


def test_names_of_files_are_files(tmp_path: Path) -> None:
    assert is_module_name("package.module:factory")
    assert not is_module_name("model.onnx")
    assert not is_module_name("-")
    assert not is_module_name("sha256:0123")
    (tmp_path / "a:b").write_text("")
    assert not is_module_name("a:b")
