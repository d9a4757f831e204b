"""Fits and changes <-> predictor.v1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from predictor.fits import Change, FitAnswer, FitPoint
from predictor.request import PredictionRequest
from predictor.types import Interval
from predictor.v1 import fit_service_pb2 as pb
from predictor.wire.plan import plan_from_proto, plan_to_proto
from predictor.wire.prediction import interval_from_proto, interval_to_proto
from predictor.wire.request import choice_from_proto, choice_to_proto

_POINTS = ("largest", "beyond", "smallest", "asked")
# What a change may alter beside plan and batch.
_CHANGED_CHOICES = ("precision", "weights")


def fit_to_proto(found: FitAnswer, request_id: str = "") -> pb.FindFitResponse:
    """The message of a fit."""
    points = {name: _point_to_proto(point) for name in _POINTS if (point := getattr(found, name)) is not None}
    return pb.FindFitResponse(
        axis=found.axis,
        step=found.step,
        probability=found.wanted,
        capacity_bytes=found.capacity_bytes,
        device_id=found.device,
        stopped=found.stopped,
        request_id=request_id,
        **points,
    )


def fit_from_proto(message: pb.FindFitResponse) -> FitAnswer:
    """The fit of a message."""
    points = {
        name: _point_from_proto(getattr(message, name)) if message.HasField(name) else None
        for name in _POINTS
    }
    return FitAnswer(
        axis=message.axis,
        step=message.step,
        wanted=message.probability,
        capacity_bytes=message.capacity_bytes,
        device=message.device_id,
        stopped=message.stopped,
        **points,
    )


def _point_to_proto(point: FitPoint) -> pb.FitPoint:
    return pb.FitPoint(
        value=point.value,
        device_peak_bytes=interval_to_proto(point.peak),
        fit_probability=point.probability,
    )


def _point_from_proto(message: pb.FitPoint) -> FitPoint:
    return FitPoint(message.value, _peak(message), message.fit_probability)


def _peak(message: pb.FitPoint | pb.FitChange) -> Interval:
    return interval_from_proto(message.device_peak_bytes)


def changes_to_proto(changes: Sequence[Change], request_id: str = "") -> pb.FindChangesResponse:
    """The message of changes."""
    return pb.FindChangesResponse(
        changes=[
            pb.FitChange(
                what=change.what,
                job=None if change.request is None else _job_to_proto(change.request),
                device_peak_bytes=interval_to_proto(change.peak),
                fit_probability=change.probability,
                slowdown=change.slowdown,
                fits=change.fits,
            )
            for change in changes
        ],
        request_id=request_id,
    )


def _job_to_proto(request: PredictionRequest) -> pb.ChangedJob:
    choices: dict[str, Any] = {
        name: choice_to_proto(name, getattr(request, name)) for name in _CHANGED_CHOICES
    }
    return pb.ChangedJob(plan=plan_to_proto(request.plan), batch=request.batch, **choices)


def changes_from_proto(message: pb.FindChangesResponse, asked: PredictionRequest) -> list[Change]:
    """The changes of a message, as requests that differ from `asked`."""
    return [
        Change(
            what=item.what,
            request=_changed(asked, item.job) if item.HasField("job") else None,
            peak=_peak(item),
            probability=item.fit_probability,
            slowdown=item.slowdown,
            fits=item.fits,
        )
        for item in message.changes
    ]


def _changed(asked: PredictionRequest, job: pb.ChangedJob) -> PredictionRequest:
    choices: dict[str, Any] = {
        name: choice_from_proto(name, getattr(job, name), getattr(asked, name)) for name in _CHANGED_CHOICES
    }
    batch = job.batch if job.HasField("batch") else None
    return replace(asked, plan=plan_from_proto(job.plan), batch=batch, **choices)
