"""Plan <-> predictor.v1."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from predictor.errors import InvalidPlan
from predictor.parallel.plan import AXES, Plan
from predictor.types import CpKind, Offload, OffloadTarget, Recompute, Schedule
from predictor.v1 import candidate_pb2 as pb

_NUMBERS = (
    *("dp", "bucket_bytes", "overlap", "tp", "pp", "cp", "ep", "zero", "shard_group", "microbatches"),
    *("virtual_stages", "recompute_layers", "ep_copies", "load_imbalance"),
)
_CHOICES: Mapping[str, tuple[type[StrEnum], Any, str]] = {
    "schedule": (Schedule, pb.Schedule, "SCHEDULE_"),
    "recompute": (Recompute, pb.Recompute, "RECOMPUTE_"),
    "offload_to": (OffloadTarget, pb.OffloadTarget, "OFFLOAD_TARGET_"),
    "cp_kind": (CpKind, pb.CpKind, "CP_KIND_"),
}
_OFFLOADS: Mapping[Offload, Any] = {item: pb.Offload.Value(f"OFFLOAD_{item.name}") for item in Offload}


def plan_to_proto(plan: Plan) -> pb.Plan:
    """The message of a plan; what is as by default stays absent."""
    message = pb.Plan(sequence_parallel=plan.sequence_parallel, tp_overlap=plan.tp_overlap)
    default = Plan()
    for name in _NUMBERS:
        value = getattr(plan, name)
        if value is not None and value != getattr(default, name):
            setattr(message, name, value)
    for name, (_, enum, prefix) in _CHOICES.items():
        value = getattr(plan, name)
        if value != getattr(default, name):
            setattr(message, name, enum.Value(prefix + value.name))
    message.offload.extend(_OFFLOADS[item] for item in sorted(plan.offload))
    if plan.placement != AXES:
        message.placement.extend(plan.placement)
    return message


def plan_from_proto(message: pb.Plan) -> Plan:
    """The plan of a message. Raises InvalidPlan."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in _NUMBERS if message.HasField(name)}
    for name, (choice, enum, prefix) in _CHOICES.items():
        number = getattr(message, name)
        if number:
            fields[name] = choice[_name(enum, number, name).removeprefix(prefix)]
    if message.offload:
        fields["offload"] = frozenset(
            Offload[_name(pb.Offload, number, "offload").removeprefix("OFFLOAD_")]
            for number in message.offload
        )
    if message.placement:
        fields["placement"] = tuple(message.placement)
    return Plan(sequence_parallel=message.sequence_parallel, tp_overlap=message.tp_overlap, **fields)


def _name(enum: Any, number: int, field: str) -> str:
    if number not in enum.values() or number == 0:
        known = ", ".join(str(value) for value in enum.values() if value)
        raise InvalidPlan(f"plan: {field} is {number}; expected one of {known}", field=f"plan.{field}")
    return str(enum.Name(number))
