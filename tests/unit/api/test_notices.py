"""Warnings of the bundle that ships: each says why, in words that a user can act on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from predictor import PredictionRequest, Predictor
from predictor.parallel.plan import Plan
from predictor.types import Notice

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KNOWN, UNKNOWN = "a100-pcie-40gb", "h100-sxm-80gb"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def _notice(predictor: Predictor, code: str, device: str, **job: object) -> Notice | None:
    request = PredictionRequest(str(EXAMPLES / "resnet50.onnx"), device=device, **job)  # type: ignore[arg-type]
    found = [notice for notice in predictor.predict(request).warnings if notice.code == code]
    assert len(found) <= 1
    return found[0] if found else None


def test_a_device_whose_iterations_were_timed_is_not_blamed(predictor: Predictor) -> None:
    assert _notice(predictor, "TIME_OUT_OF_RANGE", KNOWN, batch=1) is None


@pytest.mark.parametrize(("device", "precision"), [(UNKNOWN, "fp32"), ("l4-pcie-24gb", "fp16")])
def test_a_device_or_precision_without_measurements_is_named(
    predictor: Predictor, device: str, precision: str
) -> None:
    notice = _notice(predictor, "TIME_OUT_OF_RANGE", device, batch=32, precision=precision)
    assert notice is not None
    assert f"never measured on {device} in {precision}" in notice.message


def test_ops_beyond_the_shapes_measured_are_not_counted_as_never_measured(predictor: Predictor) -> None:
    """Products of transformers were timed on this device, at larger sizes; what lies between them was not."""
    request = PredictionRequest(
        str(EXAMPLES / "gpt2.onnx"),
        device=UNKNOWN,
        batch=1,
        precision="bf16",  # type: ignore[arg-type]
    )
    costs = predictor.priced(request)[1]
    times, unique = costs.unique.time_s[costs.index], costs.unique
    (told,) = (n.message for n in predictor.predict(request).warnings if n.code == "TIME_OUT_OF_RANGE")
    unmeasured = times[unique.unmeasured[costs.index]].sum() / times.sum()
    assert 0.1 < unmeasured < 0.9
    shares = [float(share) / 100 for share in re.findall(r"(\d+) % goes", told)]
    assert shares[0] == pytest.approx(unmeasured, abs=0.006)
    outside = times[unique.out_of_range[costs.index]].sum() / times.sum()
    assert sum(shares) == pytest.approx(outside, abs=0.011)


@pytest.mark.parametrize(
    ("device", "precision", "told"),
    [
        ("gaudi2-oam-96gb", "fp16", "in bf16, fp8"),
        ("gaudi2-oam-96gb", "bf16", None),
        ("tpu-v2-16gb", "fp32", "in bf16"),
        ("t4-pcie-16gb", "bf16", "in fp16"),
        ("t4-pcie-16gb", "tf32", None),
        ("p100-pcie-16gb", "bf16", None),
        ("h100-sxm-80gb", "fp32", None),
        ("epyc-9654", "fp16", None),
    ],
)
def test_a_type_without_units_is_told_where_another_is_far_faster(
    predictor: Predictor, device: str, precision: str, told: str | None
) -> None:
    notice = _notice(predictor, "NO_MATRIX_UNITS", device, batch=2, precision=precision)
    assert (notice is None) == (told is None)
    assert notice is None or told is None or told in notice.message


def test_memory_of_inference_is_said_to_be_unmeasured(predictor: Predictor) -> None:
    notice = _notice(predictor, "MEMORY_OUT_OF_RANGE", KNOWN, batch=32)
    assert notice is not None
    assert "for training only" in notice.message
    assert _notice(predictor, "MEMORY_OUT_OF_RANGE", KNOWN, batch=32, mode="train") is None


def test_an_assumed_cluster_names_the_flag(predictor: Predictor) -> None:
    notice = _notice(predictor, "CLUSTER_ASSUMED", KNOWN, batch=32, plan=Plan(dp=2))
    assert notice is not None
    assert "--cluster" in notice.message


@pytest.mark.parametrize(
    ("asked_w", "told"), [(5.0, "no less"), (400.0, "default limit"), (150.0, None), (None, None)]
)
def test_a_power_limit_that_the_board_cannot_hold_is_not_changed_in_silence(
    predictor: Predictor, asked_w: float | None, told: str | None
) -> None:
    notice = _notice(predictor, "POWER_LIMIT_CHANGED", KNOWN, batch=32, power_limit_w=asked_w)
    assert (notice is None) == (told is None)
    if notice is not None and told is not None:
        assert told in notice.message
        assert f"{asked_w:g} W counts as" in notice.message


def test_what_was_assumed_about_the_model_is_said(predictor: Predictor) -> None:
    body = helper.make_graph(
        [helper.make_node("Tanh", ["state"], ["next"]), helper.make_node("Identity", ["go"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [64, 64]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [64, 64]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "x"], ["y"], name="decode", body=body)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64]),
            helper.make_tensor_value_info("trips", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 21)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    once = predictor.predict(PredictionRequest(data, device=KNOWN))
    assert "TRIPS_ASSUMED" in {notice.code for notice in once.warnings}
    often = predictor.predict(PredictionRequest(data, device=KNOWN, dims={"decode.trip_count": 10}))
    assert "TRIPS_ASSUMED" not in {notice.code for notice in often.warnings}
    assert often.iteration_time_s.value > 5 * once.iteration_time_s.value
    # One trip that is asked for differs from one that is assumed, though their work is the same.
    given = predictor.predict(PredictionRequest(data, device=KNOWN, dims={"decode.trip_count": 1}))
    assert "TRIPS_ASSUMED" not in {notice.code for notice in given.warnings}


@pytest.mark.parametrize("runtime", ["onnxruntime", "tensorrt"])
def test_a_runtime_that_nobody_measured_is_named(predictor: Predictor, runtime: str) -> None:
    notice = _notice(predictor, "RUNTIME_UNMEASURED", KNOWN, batch=32, runtime=runtime)
    assert notice is not None
    assert runtime in notice.message
    assert _notice(predictor, "RUNTIME_UNMEASURED", KNOWN, batch=32, runtime="compiled") is None


@pytest.mark.parametrize(
    ("runtime", "release", "told"),
    [
        ("compiled", "1.13", True),
        ("compiled", "2.0", False),
        ("compiled", "", False),
        ("eager", "1.13", False),
    ],
)
def test_a_release_without_a_compiler_is_told(
    predictor: Predictor, runtime: str, release: str, told: bool
) -> None:
    notice = _notice(
        predictor, "RUNTIME_UNMEASURED", KNOWN, batch=32, runtime=runtime, framework_version=release
    )
    assert (notice is not None) == told
    assert notice is None or "torch 1.13 has no compiler" in notice.message
