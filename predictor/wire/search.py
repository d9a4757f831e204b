"""Goals and results of plan searches, and tables of splits <-> predictor.v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from predictor.errors import InvalidRequest
from predictor.search.search import Found, FrontPoint, Goal, Objective, SearchResult
from predictor.search.source import Outcome
from predictor.search.tables import ScalingPoint, ThroughputRow
from predictor.v1 import plan_service_pb2 as pb
from predictor.wire.plan import plan_from_proto, plan_to_proto

_NUMBERS = ("price_per_hour", "carbon_g_per_kwh", "pue", "deadline_s", "top")


def goal_to_proto(goal: Goal) -> pb.Goal:
    """The message of a goal; what is as by default stays absent."""
    message = pb.Goal()
    if goal.objective is not Goal().objective:
        number: Any = pb.Objective.Value(f"OBJECTIVE_{goal.objective.name}")
        message.objective = number
    for name in _NUMBERS:
        value = getattr(goal, name)
        if value is not None and value != getattr(Goal(), name):
            setattr(message, name, value)
    return message


def goal_from_proto(message: pb.Goal) -> Goal:
    """The goal of a message. Raises InvalidRequest."""
    if message.objective not in pb.Objective.values():
        known = ", ".join(str(value) for value in pb.Objective.values() if value)
        raise InvalidRequest(
            f"goal: objective is {message.objective}; expected one of {known}", field="objective"
        )
    given = {name: getattr(message, name) for name in _NUMBERS if message.HasField(name)}
    name = pb.Objective.Name(message.objective).removeprefix("OBJECTIVE_")
    return Goal(Objective[name] if message.objective else Goal().objective, **given)


def result_to_proto(found: SearchResult, request_id: str = "") -> pb.SearchPlansResponse:
    """The message of a search's result."""
    return pb.SearchPlansResponse(
        best=[_found_to_proto(item) for item in found.best],
        front=[
            pb.FrontPlan(plan=plan_to_proto(point.plan), iteration_time_s=point.time_s)
            for point in found.front
        ],
        considered=found.considered,
        too_large=found.too_large,
        priced=found.priced,
        request_id=request_id,
    )


def result_from_proto(message: pb.SearchPlansResponse) -> SearchResult:
    """The result of a message."""
    front = [FrontPoint(plan_from_proto(point.plan), point.iteration_time_s) for point in message.front]
    return SearchResult(
        best=tuple(_found_from_proto(item) for item in message.best),
        front=tuple(front),
        considered=message.considered,
        too_large=message.too_large,
        priced=message.priced,
    )


def _found_to_proto(item: Found) -> pb.FoundPlan:
    outcome = item.outcome
    return pb.FoundPlan(
        plan=plan_to_proto(item.plan),
        value=item.value,
        iteration_time_s=outcome.time_s,
        energy_j=outcome.energy_j,
        device_peak_bytes=outcome.peak_bytes,
        part_names=list(outcome.breakdown_s),
        part_s=list(outcome.breakdown_s.values()),
    )


def _found_from_proto(message: pb.FoundPlan) -> Found:
    outcome = Outcome(
        message.iteration_time_s,
        message.energy_j,
        message.device_peak_bytes,
        dict(zip(message.part_names, message.part_s, strict=True)),
    )
    return Found(plan_from_proto(message.plan), outcome, message.value)


def table_to_proto(rows: Sequence[ThroughputRow], request_id: str = "") -> pb.ThroughputTableResponse:
    """The message of a table."""
    return pb.ThroughputTableResponse(
        rows=[
            pb.ThroughputRow(
                device_id=row.device,
                device_count=row.device_count,
                plan=None if row.plan is None else plan_to_proto(row.plan),
                iteration_time_s=row.iteration_time_s,
                throughput_samples_per_s=row.throughput_samples_per_s,
            )
            for row in rows
        ],
        request_id=request_id,
    )


def table_from_proto(message: pb.ThroughputTableResponse) -> list[ThroughputRow]:
    """The table of a message."""
    return [
        ThroughputRow(
            row.device_id,
            row.device_count,
            plan_from_proto(row.plan) if row.HasField("plan") else None,
            row.iteration_time_s if row.HasField("iteration_time_s") else None,
            row.throughput_samples_per_s,
        )
        for row in message.rows
    ]


def curve_to_proto(points: Sequence[ScalingPoint], request_id: str = "") -> pb.ScalingCurveResponse:
    """The message of a curve."""
    return pb.ScalingCurveResponse(
        points=[
            pb.ScalingPoint(
                replicas=point.replicas,
                device_count=point.device_count,
                batch=point.batch,
                iteration_time_s=point.iteration_time_s,
                iteration_time_low_s=point.low_s,
                iteration_time_high_s=point.high_s,
                throughput_samples_per_s=point.throughput_samples_per_s,
                efficiency_fraction=point.efficiency,
                fits=point.fits,
            )
            for point in points
        ],
        request_id=request_id,
    )


def curve_from_proto(message: pb.ScalingCurveResponse) -> list[ScalingPoint]:
    """The curve of a message."""
    return [
        ScalingPoint(
            replicas=point.replicas,
            device_count=point.device_count,
            batch=point.batch,
            iteration_time_s=point.iteration_time_s,
            low_s=point.iteration_time_low_s,
            high_s=point.iteration_time_high_s,
            throughput_samples_per_s=point.throughput_samples_per_s,
            efficiency=point.efficiency_fraction,
            fits=point.fits,
        )
        for point in message.points
    ]
