"""Tables of splits for schedulers: throughput by kind and number of devices, and times by replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from predictor.checks import whole_number
from predictor.errors import DoesNotFit, InvalidRequest, PerfcastError
from predictor.request import PredictionRequest
from predictor.search.search import FrontPoint, Goal, SearchResult
from predictor.search.tables import ScalingPoint, ThroughputRow, throughput_rows
from predictor.types import Prediction

MOST_DEVICES = 65536
MOST_KINDS, MOST_COUNTS, MOST_REPLICAS = 64, 64, 1024


class _Planner(Protocol):
    """What the tables are made with."""

    def search_plans(
        self, request: PredictionRequest, goal: Goal | None = None, *, max_devices: int | None = None
    ) -> SearchResult: ...

    def predict_many(self, requests: Iterable[PredictionRequest]) -> list[Prediction | PerfcastError]: ...


class SplitTables:
    """Tables of splits from searches and predictions of the class that inherits it."""

    def throughput_table(
        self: _Planner, request: PredictionRequest, devices: Sequence[str], counts: Sequence[int]
    ) -> list[ThroughputRow]:
        """The fastest plan for every device and count; one search a device.

        Args:
            request: its device and plan do not matter, and its cluster only for the device itself.
            devices: catalogue names. counts: of devices that a plan may use.

        Raises as `search_plans`; a device on which nothing fits has empty rows instead.
        """
        _check_length(devices, "devices", "device_ids", MOST_KINDS)
        _check_length(counts, "counts", "device_counts", MOST_COUNTS)
        for count in counts:
            check_devices(count, "device_counts")
        rows: list[ThroughputRow] = []
        for device in devices:
            front: tuple[FrontPoint, ...] = ()
            cluster = request.cluster if device == request.device else None
            asked = replace(request, device=device, cluster=cluster)
            with suppress(DoesNotFit):
                front = self.search_plans(asked, Goal(top=1), max_devices=max(counts)).front
            rows += throughput_rows(device, request.batch or 1, counts, front)
        return rows

    def scaling_curve(
        self: _Planner, request: PredictionRequest, replicas: Sequence[int], *, weak: bool = False
    ) -> list[ScalingPoint]:
        """Times of the request's plan with other numbers of replicas.

        Args:
            weak: every replica has the request's batch; else they share it.

        Raises as `predict`; InvalidRequest without a batch.
        """
        _check_length(replicas, "replicas", "replicas", MOST_REPLICAS)
        if request.batch is None:
            raise InvalidRequest("scaling curve: no batch is given; add a batch", field="batch")
        batch, asked = request.batch, []
        for count in replicas:
            number = whole_number(count, "replicas", "replicas", "whole numbers of at least 1")
            plan = replace(request.plan, dp=number)
            asked.append(replace(request, plan=plan, batch=batch * number if weak else batch))
        points: list[ScalingPoint] = []
        for item, answer in zip(asked, self.predict_many(asked), strict=True):
            if isinstance(answer, PerfcastError):
                raise answer
            points.append(_point(item, answer, points[0] if points else None))
        return points


def _point(request: PredictionRequest, answer: Prediction, first: ScalingPoint | None) -> ScalingPoint:
    time, samples = answer.iteration_time_s, answer.throughput_samples_per_s.value
    each = samples / answer.device_count
    base = each if first is None else first.throughput_samples_per_s / first.device_count
    return ScalingPoint(
        replicas=request.plan.dp,
        device_count=answer.device_count,
        batch=request.batch or 1,
        iteration_time_s=time.value,
        low_s=time.low,
        high_s=time.high,
        throughput_samples_per_s=samples,
        efficiency=each / base,
        fits=answer.fits,
    )


def check_devices(count: object, field: str) -> None:
    """Raises InvalidRequest unless `count` is a whole number of devices, 1 to MOST_DEVICES."""
    expected = f"a whole number from 1 to {MOST_DEVICES}"
    if whole_number(count, field, field, expected) > MOST_DEVICES:
        raise InvalidRequest(f"{field} is {count}; expected {expected}", field=field)


def _check_length(values: Sequence[object], name: str, field: str, most: int) -> None:
    if not 1 <= len(values) <= most:
        raise InvalidRequest(f"{len(values)} {name} are given; expected 1 to {most}", field=field)
