"""Every face gives the same bits."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from predictor.client import RemotePredictor
from predictor.errors import InvalidRequest
from predictor.features.reading.reader import read_graph
from predictor.hardware.catalog import find_cluster, find_device
from predictor.parallel.plan import Plan
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from tests.contract.conftest import EXAMPLES, Face, ObjectFace
from tests.contract.models import external, perceptron, sequence_model

_TRAIN: dict[str, Any] = {"mode": "train", "precision": "amp", "optimizer": "adamw"}
_GOOD: dict[str, dict[str, Any]] = {
    "defaults": {"device": "a100-pcie-40gb"},
    "alias": {"device": "H100 SXM5 80GB", "batch": 8},
    "training": {"device": "a100-pcie-40gb", "batch": 16, **_TRAIN},
    "compiled": {"device": "a100-pcie-40gb", "batch": 4, "runtime": "compiled"},
    "input shape": {"device": "a100-pcie-40gb", "input_shapes": {"x": (7, 32)}},
    "named dimension": {"device": "a100-pcie-40gb", "dims": {"batch": 5}},
    "power cap": {"device": "a100-pcie-40gb", "batch": 4, "power_limit_w": 180.0},
    "data parallel": {"device": "a100-pcie-40gb", "batch": 64, "plan": Plan(dp=4), **_TRAIN},
    "ZeRO": {
        "device": "a100-pcie-40gb",
        "batch": 64,
        "plan": Plan(dp=4, zero=2, microbatches=2, bucket_bytes=2**20, overlap=False),
        **_TRAIN,
    },
    "pipeline": {
        "device": "a100-sxm-80gb",
        "batch": 64,
        "cluster": "dgx-a100-80gb",
        "plan": Plan(dp=2, pp=2, microbatches=4, placement=("pp", "tp", "cp", "ep", "dp")),
        **_TRAIN,
    },
    "weights in few bits": {"device": "a100-pcie-40gb", "batch": 4, "weights": "int4"},
    "strict": {"device": "a100-pcie-40gb", "batch": 4, "strict": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "perceptron.onnx"
    path.write_bytes(perceptron().SerializeToString())
    return path


@pytest.mark.parametrize("case", _GOOD)
def test_every_face_gives_the_same_bits(case: str, faces: tuple[Face, ...], model: Path) -> None:
    answers = [face.ask(graph=str(model), **_GOOD[case]) for face in faces]
    for face, answer in zip(faces, answers, strict=True):
        assert answer == answers[0], face.name


@pytest.mark.parametrize("name", ["resnet50.onnx", "gpt2.onnx"])
def test_examples_give_the_same_bits(name: str, faces: tuple[Face, ...]) -> None:
    if not (EXAMPLES / name).exists():
        pytest.fail(f"examples/{name} is part of the repository")
    request = {"graph": str(EXAMPLES / name), "device": "a100-pcie-40gb", "batch": 4, **_TRAIN}
    answers = [face.ask(**request) for face in faces]
    assert all(answer == answers[0] for answer in answers)


def test_path_bytes_and_absent_weights_give_one_answer(faces: tuple[Face, ...], model: Path) -> None:
    sources = (str(model), model.read_bytes(), external().SerializeToString())
    answers = [
        face.ask(graph=source, device="a100-pcie-40gb", batch=3) for face in faces for source in sources
    ]
    assert all(answer == answers[0] for answer in answers)


def test_a_second_symbol_is_bound_on_every_face(faces: tuple[Face, ...]) -> None:
    data = sequence_model().SerializeToString()
    answers = [
        face.ask(graph=data, device="a100-pcie-40gb", batch=2, dims={"sequence": 16}) for face in faces
    ]
    assert all(answer == answers[0] for answer in answers)


def test_answers_keep_the_promises_of_the_schema(
    faces: tuple[Face, ...], model: Path, local: Forecaster
) -> None:
    answer = faces[-1].ask(graph=str(model), device="a100-pcie-40gb", batch=32)
    assert answer["schema"] == "perfcast.prediction/1"
    assert answer["bundle"] == local.bundle_id
    assert answer["graph"].startswith("sha256:")
    for name in ("iteration_time_s", "throughput_samples_per_s", "device_peak_bytes", "allocator_peak_bytes"):
        quantity = answer[name]
        assert set(quantity) == {"value", "low", "high", "coverage"}
        assert 0 < quantity["low"] <= quantity["value"] <= quantity["high"] < math.inf
    assert sum(answer["coverage"].values()) == pytest.approx(1, rel=1e-9)
    assert sum(answer["time_breakdown_s"].values()) == pytest.approx(
        answer["iteration_time_s"]["value"], rel=1e-9
    )
    assert sum(answer["energy_breakdown_j"].values()) == pytest.approx(answer["energy_j"]["value"], rel=1e-9)


def test_own_device_and_cluster_travel_by_value(local: Forecaster, remote: RemotePredictor) -> None:
    request = PredictionRequest(
        perceptron().SerializeToString(),
        find_device("a100-pcie-40gb"),
        batch=32,
        plan=Plan(dp=8),
        cluster=find_cluster("dgx-a100-40gb"),
    )
    assert remote.predict(request) == local.predict(request)


def test_explanations_agree(local: Forecaster, remote: RemotePredictor) -> None:
    request = PredictionRequest(perceptron(96).SerializeToString(), "a100-pcie-40gb", batch=8, mode="train")
    explanation = remote.explain(request)
    assert explanation == local.explain(request)
    assert explanation.rows
    assert explanation.prediction == remote.predict(request)


def test_a_model_id_is_a_graph(local: Forecaster, remote: RemotePredictor) -> None:
    data = perceptron(48).SerializeToString()
    ids = [forecaster.add_graph(data) for forecaster in (local, remote)]
    assert ids[0] == ids[1]
    answers = [
        ObjectFace("", forecaster).ask(graph=ids[0], device="a100-pcie-40gb", batch=2)
        for forecaster in (local, remote)
    ]
    assert answers[0] == answers[1]
    assert answers[0] == ObjectFace("", local).ask(graph=data, device="a100-pcie-40gb", batch=2)


def test_bundle_id_is_the_servers(local: Forecaster, remote: RemotePredictor) -> None:
    assert remote.bundle_id == local.bundle_id


def test_remote_predictor_is_picklable(remote: RemotePredictor, model: Path) -> None:
    request = PredictionRequest(str(model), "a100-pcie-40gb", batch=6)
    with pickle.loads(pickle.dumps(remote)) as copy:
        assert copy.predict(request) == remote.predict(request)


def test_a_graph_object_is_for_the_local_face(local: Forecaster, remote: RemotePredictor) -> None:
    graph = read_graph(perceptron().SerializeToString(), batch=2)
    request = PredictionRequest(graph, "a100-pcie-40gb")
    assert local.predict(request).graph == graph.fingerprint
    with pytest.raises(InvalidRequest, match="give the ONNX file or its bytes"):
        remote.predict(request)
    (answer,) = remote.predict_many([request])
    assert isinstance(answer, InvalidRequest)
