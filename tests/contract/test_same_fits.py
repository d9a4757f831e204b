"""Where jobs stop to fit, and what to change: a server answers as a predictor in process does, errors too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app
from predictor.client import RemotePredictor
from predictor.errors import InvalidRequest, PerfcastError, UnknownName
from predictor.parallel.plan import Plan
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from predictor.serve.app import PerfcastServer
from predictor.types import Weights
from tests.contract.conftest import EXAMPLES
from tests.contract.models import perceptron


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> PredictionRequest:
    path = tmp_path_factory.mktemp("models") / "perceptron.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return PredictionRequest(str(path), "v100-sxm-16gb", batch=64, mode="train", optimizer="adamw")


@pytest.fixture(scope="module")
def large() -> PredictionRequest:
    """Does not fit as it is."""
    graph = str(EXAMPLES / "gpt2.onnx")
    return PredictionRequest(graph, "v100-sxm-16gb", batch=64, mode="train", optimizer="adamw")


@pytest.mark.parametrize(("probability", "plan"), [(0.9, Plan()), (0.5, Plan(dp=2, microbatches=2))])
def test_fits_agree(
    local: Forecaster, remote: RemotePredictor, asked: PredictionRequest, probability: float, plan: Plan
) -> None:
    job = replace(asked, plan=plan)
    mine = local.fit(job, probability=probability)
    assert remote.fit(job, probability=probability) == mine
    assert mine.largest is not None
    assert mine.largest.probability >= probability
    assert mine.step == plan.dp * plan.microbatches


def test_fits_of_what_is_too_large_agree(
    local: Forecaster, remote: RemotePredictor, large: PredictionRequest
) -> None:
    mine = local.fit(large)
    assert remote.fit(large) == mine
    assert mine.largest is not None
    assert mine.asked is not None
    assert mine.beyond is not None
    assert mine.largest.value < mine.beyond.value <= mine.asked.value


def test_changes_agree_as_requests(
    local: Forecaster, remote: RemotePredictor, large: PredictionRequest
) -> None:
    mine = local.changes_to_fit(large, 0.8)
    assert remote.changes_to_fit(large, 0.8) == mine
    assert any(change.fits for change in mine)
    changed = next(change.request for change in mine if change.request is not None)
    assert changed != large
    assert changed.graph == large.graph


def test_changes_of_inference_agree_as_requests(local: Forecaster, remote: RemotePredictor) -> None:
    job = PredictionRequest(str(EXAMPLES / "gpt2.onnx"), "v100-sxm-16gb", batch=8, plan=Plan(dp=2, tp=2))
    mine = local.changes_to_fit(job)
    assert remote.changes_to_fit(job) == mine
    by_name = {change.what: change.request for change in mine}
    narrow = by_name["weights of products in 4 bits (weights=int4)"]
    assert narrow == replace(job, weights=Weights.INT4)
    # Of more devices than the job has, and said to be as many as they are.
    assert [what for what in by_name if "devices" in what] == ["8 devices (tp=4)", "16 devices (tp=8)"]
    assert by_name["8 devices (tp=4)"] == replace(job, plan=Plan(dp=2, tp=4))


_Ask = Callable[[Any, PredictionRequest], object]
_WRONG: dict[str, tuple[_Ask, type[PerfcastError]]] = {
    "probability": (lambda face, asked: face.fit(asked, probability=1.5), InvalidRequest),
    "axis": (lambda face, asked: face.fit(asked, axis="width"), PerfcastError),
    "chance": (lambda face, asked: face.changes_to_fit(asked, 0.0), InvalidRequest),
    "device": (lambda face, asked: face.fit(replace(asked, device="abacus")), UnknownName),
    "changes": (lambda face, asked: face.changes_to_fit(replace(asked, device="abacus")), UnknownName),
}


@pytest.mark.parametrize("case", _WRONG)
def test_errors_agree(
    case: str, local: Forecaster, remote: RemotePredictor, asked: PredictionRequest
) -> None:
    ask, kind = _WRONG[case]
    said = []
    for face in (local, remote):
        with pytest.raises(kind) as caught:
            ask(face, asked)
        said.append(str(caught.value))
    assert said[0] == said[1]


def test_the_command_answers_alike_with_a_server(server: PerfcastServer, large: PredictionRequest) -> None:
    flags = ["fit", str(large.graph), "-d", "v100-sxm-16gb", "-b", "64", "--mode", "train", "-o", "json"]
    answers = [CliRunner().invoke(app, [*flags, *extra]) for extra in ([], ["--server", server.address])]
    assert [answer.exit_code for answer in answers] == [0, 0], answers[1].output
    assert json.loads(answers[0].stdout) == json.loads(answers[1].stdout)


def test_a_configuration_is_read_in_process(server: PerfcastServer, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 2,
                "n_embd": 64,
                "n_head": 2,
                "vocab_size": 512,
                "n_positions": 512,
            }
        )
    )
    found = CliRunner().invoke(app, ["fit", str(path), "-d", "l4", "--server", server.address])
    assert found.exit_code == 2
    assert "in process" in found.output.replace("\n", " ")
