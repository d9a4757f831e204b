"""Every face refuses the same inputs with the same class, message and exit code, and the server goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predictor import errors
from predictor.client import RemotePredictor
from predictor.parallel.plan import Plan
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from tests.contract.conftest import CliError, Face, error_of
from tests.contract.models import custom_op, cyclic, perceptron, sequence_model

_A100 = {"device": "a100-pcie-40gb"}


def _bytes(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(data), None)[1]


_GOOD_MODEL = _bytes(perceptron().SerializeToString())

# name: (what stands at the path, request, class of the error)
_BAD: dict[str, tuple[Callable[[Path], None], dict[str, Any], type[errors.PerfcastError]]] = {
    "not ONNX": (_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(200))), _A100, errors.InvalidGraph),
    "truncated": (_bytes(perceptron().SerializeToString()[:-700]), _A100, errors.InvalidGraph),
    "0 bytes": (_bytes(b""), _A100, errors.InvalidGraph),
    "text": (_bytes(b"import torch\nprint('hello')\n" * 20), _A100, errors.InvalidGraph),
    "directory": (lambda path: path.mkdir(), _A100, errors.InvalidGraph),
    "absent": (lambda path: None, _A100, errors.InvalidGraph),
    "cycle": (_bytes(cyclic().SerializeToString()), _A100, errors.InvalidGraph),
    "missing binding": (
        _bytes(sequence_model().SerializeToString()),
        {**_A100, "batch": 2},
        errors.UnboundSymbol,
    ),
    "unknown input": (_GOOD_MODEL, {**_A100, "input_shapes": {"nope": (1, 32)}}, errors.InvalidInput),
    "unknown device": (_GOOD_MODEL, {"device": "a101-pcie-40gb"}, errors.UnknownDevice),
    "unknown precision": (_GOOD_MODEL, {**_A100, "precision": "fp17"}, errors.UnknownName),
    "unknown optimizer": (_GOOD_MODEL, {**_A100, "optimizer": "adamm"}, errors.UnknownName),
    "unknown mode": (_GOOD_MODEL, {**_A100, "mode": "training"}, errors.UnknownName),
    "unknown cluster": (_GOOD_MODEL, {**_A100, "cluster": "dgx-z900"}, errors.UnknownName),
    "zero batch": (_GOOD_MODEL, {**_A100, "batch": 0}, errors.InvalidRequest),
    "negative batch": (_GOOD_MODEL, {**_A100, "batch": -4}, errors.InvalidRequest),
    "zero dimension": (_GOOD_MODEL, {**_A100, "dims": {"batch": 0}}, errors.InvalidRequest),
    "no power": (_GOOD_MODEL, {**_A100, "power_limit_w": -1.0}, errors.InvalidRequest),
    "unknown op, strict": (
        _bytes(custom_op().SerializeToString()),
        {**_A100, "strict": True},
        errors.UnsupportedOp,
    ),
}


@pytest.mark.parametrize("case", _BAD)
def test_every_face_refuses_alike(case: str, faces: tuple[Face, ...], tmp_path: Path) -> None:
    write, request, expected = _BAD[case]
    path = tmp_path / "model.onnx"
    write(path)
    first = error_of(faces[0], graph=str(path), **request)
    assert isinstance(first, expected)
    assert first.message
    assert "\n" not in first.message
    for face in faces[1:]:
        error = error_of(face, graph=str(path), **request)
        if isinstance(error, CliError):
            assert error.exit_code == first.exit_code
            assert error.stderr == f"error: {first.message}\n"
        else:
            assert type(error) is type(first)
            assert (error.reason, error.message, error.metadata) == (
                first.reason,
                first.message,
                first.metadata,
            )
    # The server is as good as before.
    good = perceptron().SerializeToString()
    assert faces[1].ask(graph=good, **_A100) == faces[0].ask(graph=good, **_A100)


def test_unknown_model_id(local: Forecaster, remote: RemotePredictor) -> None:
    request = PredictionRequest("sha256:" + "0" * 64, "a100-pcie-40gb")
    for forecaster in (local, remote):
        with pytest.raises(errors.UnknownGraph, match="unknown graph sha256:0000"):
            forecaster.predict(request)


def test_zero_replicas_are_refused_where_the_plan_is_made() -> None:
    with pytest.raises(errors.InvalidPlan):
        Plan(dp=0)


def test_predict_many_keeps_order_and_isolates_failures(
    local: Forecaster, remote: RemotePredictor, tmp_path: Path
) -> None:
    good, text = tmp_path / "good.onnx", tmp_path / "text.onnx"
    good.write_bytes(perceptron(80).SerializeToString())
    text.write_text("no model")
    requests = [
        PredictionRequest(str(good), "a100-pcie-40gb", batch=1),
        PredictionRequest(str(text), "a100-pcie-40gb", batch=1),
        PredictionRequest(str(good), "no-such-device", batch=1),
        PredictionRequest(str(good), "h100-sxm-80gb", batch=2),
        PredictionRequest("sha256:" + "1" * 64, "a100-pcie-40gb"),
        PredictionRequest(str(good), "a100-pcie-40gb", batch=3),
        str(good),  # type: ignore[list-item]
    ]
    ours, theirs = local.predict_many(requests), remote.predict_many(requests)
    kinds = [type(answer).__name__ for answer in ours]
    assert kinds == [
        "Prediction",
        "InvalidGraph",
        "UnknownDevice",
        "Prediction",
        "UnknownGraph",
        "Prediction",
        "InvalidRequest",
    ]
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, errors.PerfcastError):
            assert type(other) is type(one)
            assert (other.reason, other.message) == (one.reason, one.message)
        else:
            assert other == one
    assert [local.predict(requests[index]) for index in (0, 3, 5)] == [ours[index] for index in (0, 3, 5)]


def test_what_is_no_request_is_said(local: Forecaster, remote: RemotePredictor) -> None:
    for face in (local, remote):
        with pytest.raises(errors.InvalidRequest, match="a str is no request"):
            face.predict("model.onnx")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="a dict is no request"):
            face.explain({})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="graph is an empty text"):
        PredictionRequest(" ", "a100-pcie-40gb")


def test_predict_many_of_nothing(local: Forecaster, remote: RemotePredictor) -> None:
    assert local.predict_many([]) == remote.predict_many([]) == []


def test_more_candidates_than_one_message_holds(local: Forecaster, remote: RemotePredictor) -> None:
    data = perceptron(72).SerializeToString()
    requests = [PredictionRequest(data, "a100-pcie-40gb", batch=1 + index % 7) for index in range(2500)]
    assert remote.predict_many(requests) == local.predict_many(requests)
