"""PredictionRequest <-> Candidate. No path crosses: neither a model's nor a device's nor a cluster's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from predictor.errors import InvalidRequest, UnknownGraph, UnknownName
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime, Trainer, Weights
from predictor.v1 import candidate_pb2 as pb
from predictor.v1 import graph_pb2
from predictor.wire.accounting import accounting_from_proto, accounting_to_proto
from predictor.wire.hardware import cluster_from_proto, cluster_to_proto, device_from_proto, device_to_proto
from predictor.wire.plan import plan_from_proto, plan_to_proto

_MODEL_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")

# Catalogue ids, aliases and vendor names; nothing that could be read as a file's place.
_CATALOGUE_NAME = re.compile(r"[^/\\\x00-\x1f]{1,128}\Z")

_ChoiceMap: TypeAlias = Mapping[int, StrEnum]


def _numbers(choice: type[StrEnum], prefix: str, enum: Mapping[str, int]) -> _ChoiceMap:
    return {enum[f"{prefix}_{member.name}"]: member for member in choice}


_CHOICES: Mapping[str, _ChoiceMap] = {
    "mode": _numbers(Mode, "MODE", dict(pb.Mode.items())),
    "precision": _numbers(Precision, "PRECISION", dict(pb.Precision.items())),
    "optimizer": _numbers(Optimizer, "OPTIMIZER", dict(pb.Optimizer.items())),
    "runtime": _numbers(Runtime, "RUNTIME", dict(pb.Runtime.items())),
    "layout": _numbers(Layout, "LAYOUT", dict(pb.Layout.items())),
    "weights": _numbers(Weights, "WEIGHTS", dict(pb.Weights.items())),
    "trainer": _numbers(Trainer, "TRAINER", dict(pb.Trainer.items())),
}
_ENUM_NUMBERS: Mapping[str, Mapping[StrEnum, int]] = {
    name: {member: number for number, member in choices.items()} for name, choices in _CHOICES.items()
}


def request_to_proto(request: PredictionRequest, model_id: str) -> pb.Candidate:
    """The candidate of a request whose model the server knows as `model_id`."""
    choices: dict[str, Any] = {
        name: numbers[getattr(request, name)] for name, numbers in _ENUM_NUMBERS.items()
    }
    message = pb.Candidate(
        graph=graph_pb2.GraphRef(model_id=model_id),
        dims=dict(request.dims),
        strict=request.strict,
        framework_version=request.framework_version,
        rank_jitter=request.rank_jitter,
        **choices,
    )
    if isinstance(request.device, DeviceSpec):
        message.device_spec.CopyFrom(device_to_proto(request.device))
    else:
        message.device_id = request.device
    if isinstance(request.cluster, ClusterSpec):
        message.cluster_spec.CopyFrom(cluster_to_proto(request.cluster))
    elif request.cluster is not None:
        message.cluster_id = request.cluster
    if request.batch is not None:
        message.batch = request.batch
    if request.power_limit_w is not None:
        message.power_limit_w = request.power_limit_w
    for name, shape in request.input_shapes.items():
        message.input_shapes[name].sizes.extend(shape)
    if request.plan != Plan():
        message.plan.CopyFrom(plan_to_proto(request.plan))
    if request.accounting is not None:
        message.accounting.CopyFrom(accounting_to_proto(request.accounting))
    return message


def request_from_proto(message: pb.Candidate) -> PredictionRequest:
    """The request of a candidate. Raises InvalidRequest, InvalidPlan, UnknownName or UnknownGraph."""
    choices: dict[str, Any] = _choices(message)
    return PredictionRequest(
        graph=_graph(message.graph),
        device=_device(message),
        batch=message.batch if message.HasField("batch") else None,
        dims=dict(message.dims),
        input_shapes={name: tuple(shape.sizes) for name, shape in message.input_shapes.items()},
        plan=plan_from_proto(message.plan) if message.HasField("plan") else Plan(),
        cluster=_cluster(message),
        power_limit_w=message.power_limit_w if message.HasField("power_limit_w") else None,
        strict=message.strict,
        framework_version=message.framework_version,
        rank_jitter=message.rank_jitter,
        accounting=accounting_from_proto(message.accounting) if message.HasField("accounting") else None,
        **choices,
    )


def choice_to_proto(name: str, choice: StrEnum) -> int:
    """The number of a choice; `name` is the request's field, e.g. `precision`."""
    return _ENUM_NUMBERS[name][choice]


def choice_from_proto(name: str, number: int, left_open: StrEnum) -> StrEnum:
    """The choice of a number; `left_open` where the sender named none."""
    return _CHOICES[name].get(number, left_open)


def _choices(message: pb.Candidate) -> dict[str, StrEnum]:
    found: dict[str, StrEnum] = {}
    for name, choices in _CHOICES.items():
        number = getattr(message, name)
        if number == 0:
            # Unspecified: the request's own default.
            continue
        if number not in choices:
            raise UnknownName.among(name, str(number), [str(member) for member in choices.values()])
        found[name] = choices[number]
    return found


def _graph(message: graph_pb2.GraphRef) -> str | bytes:
    source = message.WhichOneof("source")
    if source == "stripped_model":
        return message.stripped_model
    if source is None:
        raise InvalidRequest("candidate without graph: give model_id or stripped_model", field="graph")
    if not _MODEL_ID.match(message.model_id):
        shown = message.model_id[:80]
        raise UnknownGraph(
            f"unknown graph {shown!r}: expected sha256: and 64 hexadecimal digits; upload the model first",
            graph=shown,
        )
    return message.model_id


def _device(message: pb.Candidate) -> str | DeviceSpec:
    source = message.WhichOneof("device")
    if source == "device_spec":
        return device_from_proto(message.device_spec)
    if source is None:
        raise InvalidRequest("candidate without device: give device_id or device_spec", field="device")
    return _catalogue_name(message.device_id, "device")


def _cluster(message: pb.Candidate) -> str | ClusterSpec | None:
    source = message.WhichOneof("cluster")
    if source is None:
        return None
    if source == "cluster_spec":
        return cluster_from_proto(message.cluster_spec)
    return _catalogue_name(message.cluster_id, "cluster")


def _catalogue_name(name: str, kind: str) -> str:
    if not _CATALOGUE_NAME.match(name) or name.lower().endswith(".toml"):
        raise InvalidRequest(
            f"{kind} {name[:80]!r} is no catalogue name; send a {kind}_spec for a {kind} of your own",
            field=kind,
        )
    return name
