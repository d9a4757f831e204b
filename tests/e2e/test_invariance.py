"""Names carry no information: the same structure on the same hardware gives the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from predictor import PredictionRequest, Predictor
from predictor.hardware.catalog import find_device
from predictor.types import Prediction

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def renamed(data: bytes) -> bytes:
    """The same model under other names: graph, nodes, values, initializers."""
    model = onnx.load_from_string(data)
    names: dict[str, str] = {"": ""}

    def fresh(name: str) -> str:
        return names.setdefault(name, f"v{len(names)}")

    graph = model.graph
    graph.name = "another"
    for node in graph.node:
        node.name = fresh("node " + node.name)
        node.input[:] = [fresh(name) for name in node.input]
        node.output[:] = [fresh(name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = fresh(value.name)
    return bytes(model.SerializeToString())


def answer(prediction: Prediction) -> Prediction:
    """Without the names that the answer echoes."""
    return replace(prediction, device="", warnings=())


@pytest.mark.parametrize("mode", ["infer", "train"])
@pytest.mark.parametrize("model", ["resnet50", "gpt2", "unet"])
def test_names_do_not_matter(predictor: Predictor, model: str, mode: str) -> None:
    data = (EXAMPLES / f"{model}.onnx").read_bytes()
    device = find_device("v100-pcie-32gb")
    stranger = replace(device, id="x-1", name="X 1", aliases=(), notes="", sources={})

    def ask(content: bytes, spec: object) -> Prediction:
        return predictor.predict(PredictionRequest(content, spec, batch=2, mode=mode))  # type: ignore[arg-type]

    reference = ask(data, device)
    assert answer(ask(renamed(data), device)) == answer(reference)
    assert answer(ask(data, stranger)) == answer(reference)
    assert reference.graph == ask(renamed(data), device).graph


def test_two_processes_agree_to_the_bit() -> None:
    command = [sys.executable, "-m", "predictor.cli.main", "predict", str(EXAMPLES / "resnet50.onnx")]
    command += ["--device", "t4", "--batch", "16", "--mode", "train", "--output", "json"]
    runs = [subprocess.run(command, capture_output=True, check=True, text=True).stdout for _ in range(2)]
    assert runs[0] == runs[1]
    assert json.loads(runs[0])["schema"] == "perfcast.prediction/1"
