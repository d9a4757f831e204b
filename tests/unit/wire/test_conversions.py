from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.errors import InvalidPlan, InvalidRequest, PerfcastError, UnknownGraph, UnknownName
from predictor.hardware.catalog import list_clusters, list_devices
from predictor.hardware.spec import ClusterSpec, DeviceSpec, LinkSpec
from predictor.parallel.plan import AXES, Plan
from predictor.request import PredictionRequest
from predictor.types import (
    Coverage,
    CpKind,
    ExchangeRow,
    Interval,
    Layout,
    Mode,
    Notice,
    Offload,
    OffloadTarget,
    OpCostRow,
    Optimizer,
    Precision,
    Prediction,
    Recompute,
    Runtime,
    Schedule,
    Trainer,
    Weights,
)
from predictor.v1 import candidate_pb2 as pb
from predictor.v1 import hardware_pb2, prediction_pb2
from predictor.wire.as_json import prediction_to_json
from predictor.wire.hardware import cluster_from_proto, cluster_to_proto, device_from_proto, device_to_proto
from predictor.wire.prediction import prediction_from_proto, prediction_to_proto
from predictor.wire.request import request_from_proto, request_to_proto

MODEL_ID = "sha256:" + "ab" * 32

_names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\", min_codepoint=32), min_size=1, max_size=20
)
_plans = st.one_of(
    st.builds(Plan, dp=st.integers(1, 2**20), bucket_bytes=st.integers(1, 2**40), overlap=st.booleans()),
    st.builds(
        Plan,
        dp=st.just(8),
        tp=st.integers(1, 256),
        pp=st.integers(1, 64),
        cp=st.integers(1, 8),
        ep=st.sampled_from([1, 2, 8]),
        sequence_parallel=st.just(True),
        tp_overlap=st.booleans(),
        zero=st.integers(1, 3),
        shard_group=st.none() | st.sampled_from([1, 4]),
        microbatches=st.integers(1, 999),
        schedule=st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE]),
        recompute=st.sampled_from([Recompute.SELECTIVE, Recompute.FULL]),
        recompute_layers=st.none() | st.integers(1, 99),
        offload=st.frozensets(st.sampled_from(Offload)),
        offload_to=st.sampled_from(OffloadTarget),
        cp_kind=st.sampled_from(CpKind),
        ep_copies=st.integers(1, 8),
        load_imbalance=st.floats(1, 9),
        placement=st.permutations(AXES).map(tuple),
    ),
    st.builds(
        Plan,
        pp=st.just(4),
        microbatches=st.sampled_from([4, 12]),
        schedule=st.just(Schedule.INTERLEAVED),
        virtual_stages=st.integers(2, 9),
    ),
)


def _request(mode: Mode, plan: Plan, **rest: Any) -> PredictionRequest:
    return PredictionRequest(mode=mode, plan=plan if mode is Mode.TRAIN else plan.for_inference(), **rest)


_requests = st.builds(
    _request,
    graph=st.just(MODEL_ID),
    device=st.sampled_from(["a100-pcie-40gb", "RTX 4090", "t4"]),
    batch=st.none() | st.integers(1, 2**40),
    mode=st.sampled_from(Mode),
    precision=st.sampled_from(Precision),
    optimizer=st.sampled_from(Optimizer),
    runtime=st.sampled_from(Runtime),
    dims=st.dictionaries(_names, st.integers(1, 2**40), max_size=3),
    input_shapes=st.dictionaries(_names, st.lists(st.integers(1, 2**31), max_size=5).map(tuple), max_size=3),
    plan=_plans,
    cluster=st.none() | st.sampled_from(["dgx-a100-80gb:4"]),
    layout=st.sampled_from(list(Layout)),
    trainer=st.sampled_from(list(Trainer)),
    framework_version=st.sampled_from(["", "1.10", "2.4.1"]),
    power_limit_w=st.none() | st.floats(1e-3, 1e4),
    strict=st.booleans(),
)

_numbers = st.floats(allow_nan=False, allow_infinity=False)
_intervals = st.builds(Interval, _numbers, _numbers, _numbers, st.floats(0, 1))
_breakdowns = st.dictionaries(_names, _numbers, max_size=6)
_predictions = st.builds(
    Prediction,
    iteration_time_s=_intervals,
    throughput_samples_per_s=_intervals,
    device_peak_bytes=_intervals,
    allocator_peak_bytes=_intervals,
    fits=st.booleans(),
    energy_j=_intervals,
    average_power_w=_intervals,
    time_breakdown_s=_breakdowns,
    memory_breakdown_bytes=_breakdowns,
    energy_breakdown_j=_breakdowns,
    coverage=st.builds(Coverage, _numbers, _numbers, _numbers, _numbers),
    bundle=_names,
    graph=_names,
    device=_names,
    device_count=st.integers(1, 2**31),
    capacity_bytes=_numbers,
    out_of_range=st.booleans(),
    warnings=st.lists(st.builds(Notice, _names, _names), max_size=3).map(tuple),
)


@given(_requests)
@settings(max_examples=60)
def test_requests_survive(request: PredictionRequest) -> None:
    data = request_to_proto(request, MODEL_ID).SerializeToString()
    assert request_from_proto(pb.Candidate.FromString(data)) == request


@pytest.mark.parametrize("weights", Weights)
def test_weights_of_inference_survive(weights: Weights) -> None:
    request = PredictionRequest(MODEL_ID, "a100-pcie-40gb", weights=weights)
    data = request_to_proto(request, MODEL_ID).SerializeToString()
    assert request_from_proto(pb.Candidate.FromString(data)) == request


@given(_predictions)
@settings(max_examples=60)
def test_predictions_survive_bit_by_bit_and_in_order(prediction: Prediction) -> None:
    message = type(prediction_to_proto(prediction)).FromString(
        prediction_to_proto(prediction).SerializeToString()
    )
    back = prediction_from_proto(message)
    assert repr(back) == repr(prediction)


def test_catalogue_entries_survive() -> None:
    for device in list_devices():
        assert device_from_proto(device_to_proto(device)) == device
    for cluster in list_clusters():
        assert cluster_from_proto(cluster_to_proto(cluster)) == cluster
        racks = replace(cluster, nodes_per_rack=2, inter_rack=replace(cluster.inter_node, in_switch=True))
        assert cluster_from_proto(cluster_to_proto(racks)) == racks


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (hardware_pb2.DeviceSpec, DeviceSpec),
        (hardware_pb2.ClusterSpec, ClusterSpec),
        (hardware_pb2.LinkSpec, LinkSpec),
        (pb.Plan, Plan),
        (prediction_pb2.Prediction, Prediction),
        (prediction_pb2.Interval, Interval),
        (prediction_pb2.Coverage, Coverage),
        (prediction_pb2.OpCostRow, OpCostRow),
        (prediction_pb2.ExchangeRow, ExchangeRow),
    ],
)
def test_messages_have_the_fields_of_their_dataclasses(message: Any, kind: Any) -> None:
    # Learned times are attached by whoever loads the models; they never travel.
    sent = {field.name for field in fields(kind)} - {"exchanges"}
    assert {field.name for field in message.DESCRIPTOR.fields} == sent


def test_candidates_have_the_fields_of_requests() -> None:
    oneofs = {
        "device_id": "device",
        "device_spec": "device",
        "cluster_id": "cluster",
        "cluster_spec": "cluster",
    }
    names = {oneofs.get(field.name, field.name) for field in pb.Candidate.DESCRIPTOR.fields}
    assert names == {field.name for field in fields(PredictionRequest)}


def _candidate(**fields_: object) -> pb.Candidate:
    message = pb.Candidate(device_id="a100-pcie-40gb", **fields_)
    message.graph.model_id = MODEL_ID
    return message


def test_unspecified_means_the_defaults_of_the_request() -> None:
    assert request_from_proto(_candidate()) == PredictionRequest(MODEL_ID, "a100-pcie-40gb")
    with_plan = _candidate()
    with_plan.plan.dp = 4
    assert request_from_proto(with_plan).plan == Plan(dp=4)


@pytest.mark.parametrize("number", [60, 99, -1])
def test_enum_numbers_of_a_later_version_are_named(number: int) -> None:
    with pytest.raises(UnknownName, match="precision"):
        request_from_proto(_candidate(precision=number))


@pytest.mark.parametrize(
    "model_id", ["", "/etc/passwd", "model.onnx", "sha256:../../x", MODEL_ID + "\n", "sha256:AB"]
)
def test_a_model_id_is_never_a_path(model_id: str) -> None:
    message = _candidate()
    message.graph.model_id = model_id
    with pytest.raises(UnknownGraph):
        request_from_proto(message)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..\\x", "mine.toml", "a/b", "x" * 200])
def test_device_and_cluster_names_are_never_paths(name: str) -> None:
    message = _candidate()
    message.device_id = name
    with pytest.raises(InvalidRequest):
        request_from_proto(message)
    with pytest.raises(InvalidRequest):
        request_from_proto(_candidate(cluster_id=name))


def test_absent_parts_are_named() -> None:
    with pytest.raises(InvalidRequest, match="without graph"):
        request_from_proto(pb.Candidate(device_id="a100"))
    message = _candidate()
    message.ClearField("device_id")
    with pytest.raises(InvalidRequest, match="without device"):
        request_from_proto(message)


def test_bad_numbers_are_refused() -> None:
    for bad in (
        {"batch": 0},
        {"batch": -1},
        {"power_limit_w": 0.0},
        {"framework_version": "newest"},
        {"power_limit_w": math.nan},
        {"dims": {"n": 0}},
    ):
        with pytest.raises(InvalidRequest):
            request_from_proto(_candidate(**bad))
    message = _candidate()
    message.plan.dp = -3
    with pytest.raises(InvalidPlan):
        request_from_proto(message)
    message = _candidate()
    message.device_spec.id = "mine"
    with pytest.raises(InvalidRequest, match="memory_bytes"):
        request_from_proto(message)


def _prediction() -> Prediction:
    one = Interval.exact(1.0)
    names = {field.name for field in fields(Prediction)}
    intervals = {name: one for name in names if Prediction.__annotations__[name] == "Interval"}
    return Prediction(
        **intervals,
        fits=True,
        time_breakdown_s={"forward": 1.0},
        memory_breakdown_bytes={"parameters": 1},
        energy_breakdown_j={"device": 1.0},
        coverage=Coverage(learned=1.0),
        bundle="b",
        graph="g",
        device="d",
    )


def test_json_has_every_field_and_nothing_that_is_not_json() -> None:
    answer = prediction_to_json(_prediction())
    assert set(answer) == {field.name for field in fields(Prediction)}
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    assert answer["iteration_time_s"] == {"value": 1.0, "low": 1.0, "high": 1.0, "coverage": 0.9}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_refuses_numbers_that_are_none(value: float) -> None:
    broken = replace(_prediction(), time_breakdown_s={"forward": value})
    with pytest.raises(PerfcastError, match=r"time_breakdown_s\.forward"):
        prediction_to_json(broken)
