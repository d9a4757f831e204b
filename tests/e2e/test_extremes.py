"""The shipped predictor at the edges: jobs that compute nothing, are absurdly large, or mix hardware."""

from __future__ import annotations

from math import fsum, isfinite
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from predictor import Prediction, PredictionRequest, Predictor
from predictor.errors import InvalidGraph
from predictor.features.builder import GraphBuilder
from predictor.hardware.catalog import list_devices
from predictor.parallel.plan import Plan
from predictor.wire.prediction import prediction_from_proto, prediction_to_proto

RESNET = Path(__file__).parents[2] / "examples" / "resnet50.onnx"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def assert_sane(answer: Prediction) -> None:
    parts = (
        (answer.iteration_time_s, answer.time_breakdown_s),
        (answer.device_peak_bytes, answer.memory_breakdown_bytes),
        (answer.energy_j, answer.energy_breakdown_j),
    )
    for whole, lines in parts:
        assert fsum(lines.values()) == pytest.approx(whole.value, rel=1e-9)
        assert all(line >= 0 for line in lines.values())
    for interval in (*(whole for whole, _ in parts), answer.throughput_samples_per_s, answer.average_power_w):
        assert 0 < interval.low <= interval.value <= interval.high
        assert isfinite(interval.high)
    assert repr(prediction_from_proto(prediction_to_proto(answer))) == repr(answer)
    energy_j = answer.average_power_w.value * answer.iteration_time_s.value * answer.device_count
    assert answer.energy_j.value == pytest.approx(energy_j, rel=1e-9)


@pytest.mark.parametrize("device", [device.id for device in list_devices()])
def test_every_device_gives_a_sane_answer(predictor: Predictor, device: str) -> None:
    assert_sane(predictor.predict(PredictionRequest(RESNET, device, batch=4)))


@pytest.mark.parametrize("batch", [1, 10**6, 10**9])
def test_absurd_batches_stay_finite(predictor: Predictor, batch: int) -> None:
    request = PredictionRequest(RESNET, "t4", batch=batch, mode="train", precision="amp")  # type: ignore[arg-type]
    assert_sane(predictor.predict(request))


def test_an_exabyte_of_tensors_is_one_clear_error(predictor: Predictor) -> None:
    with pytest.raises(InvalidGraph, match="more than 2\\^60 bytes"):
        predictor.predict(PredictionRequest(RESNET, "t4", batch=10**12, mode="train"))  # type: ignore[arg-type]


def _views() -> bytes:
    builder = GraphBuilder()
    return builder.build([builder.reshape(builder.input("x", (4, 8)), (8, 4))])


def _identity() -> bytes:
    info = [helper.make_tensor_value_info(name, TensorProto.STRING, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", info[:1], info[1:])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())


@pytest.mark.parametrize("source", [_views(), _identity()], ids=["views", "strings"])
def test_a_graph_that_computes_nothing(predictor: Predictor, source: bytes) -> None:
    with pytest.raises(InvalidGraph, match="computes nothing"):
        predictor.predict(PredictionRequest(source, "a100"))


def test_a_cluster_of_other_devices_is_told(predictor: Predictor) -> None:
    def codes(device: str) -> set[str]:
        request = PredictionRequest(RESNET, device, batch=8, plan=Plan(dp=2), cluster="dgx-h100-80gb")
        return {notice.code for notice in predictor.predict(request).warnings}

    assert "CLUSTER_OF_ANOTHER_DEVICE" in codes("t4")
    assert "CLUSTER_OF_ANOTHER_DEVICE" not in codes("h100-sxm-80gb")


def test_a_zero_byte_in_a_path(predictor: Predictor) -> None:
    with pytest.raises(InvalidGraph, match="null byte"):
        predictor.predict(PredictionRequest("a\0b.onnx", "a100"))
