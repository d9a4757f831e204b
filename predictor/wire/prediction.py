"""Prediction and Explanation <-> predictor.v1. Doubles travel unrounded and parts keep their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Protocol

from predictor.types import Coverage, ExchangeRow, Explanation, Interval, Notice, OpCostRow, Prediction
from predictor.v1 import prediction_pb2 as pb
from predictor.wire.accounting import footprint_from_proto, footprint_to_proto

_EXCHANGE_FIELDS = tuple(field.name for field in fields(ExchangeRow))
_ROW_FIELDS = tuple(field.name for field in fields(OpCostRow))


class _Explained(Protocol):
    """ExplainResponse, or anything shaped like it."""

    @property
    def prediction(self) -> pb.Prediction: ...

    @property
    def rows(self) -> Iterable[pb.OpCostRow]: ...

    @property
    def exchanges(self) -> Iterable[pb.ExchangeRow]: ...


def prediction_to_proto(answer: Prediction) -> pb.Prediction:
    """The message of an answer."""
    coverage = answer.coverage
    return pb.Prediction(
        iteration_time_s=interval_to_proto(answer.iteration_time_s),
        throughput_samples_per_s=interval_to_proto(answer.throughput_samples_per_s),
        device_peak_bytes=interval_to_proto(answer.device_peak_bytes),
        allocator_peak_bytes=interval_to_proto(answer.allocator_peak_bytes),
        fits=answer.fits,
        energy_j=interval_to_proto(answer.energy_j),
        average_power_w=interval_to_proto(answer.average_power_w),
        time_breakdown_s=_parts_to_proto(answer.time_breakdown_s),
        memory_breakdown_bytes=_parts_to_proto(answer.memory_breakdown_bytes),
        energy_breakdown_j=_parts_to_proto(answer.energy_breakdown_j),
        coverage=pb.Coverage(
            measured=coverage.measured,
            learned=coverage.learned,
            analytic=coverage.analytic,
            fallback=coverage.fallback,
        ),
        warnings=[pb.Notice(code=notice.code, message=notice.message) for notice in answer.warnings],
        bundle=answer.bundle,
        graph=answer.graph,
        device=answer.device,
        device_count=answer.device_count,
        capacity_bytes=answer.capacity_bytes,
        fit_probability=answer.fit_probability,
        out_of_range=answer.out_of_range,
        schema=answer.schema,
        energy_scope=answer.energy_scope,
        footprint=None if answer.footprint is None else footprint_to_proto(answer.footprint),
    )


def prediction_from_proto(message: pb.Prediction) -> Prediction:
    """The answer of a message."""
    coverage = message.coverage
    return Prediction(
        iteration_time_s=interval_from_proto(message.iteration_time_s),
        throughput_samples_per_s=interval_from_proto(message.throughput_samples_per_s),
        device_peak_bytes=interval_from_proto(message.device_peak_bytes),
        allocator_peak_bytes=interval_from_proto(message.allocator_peak_bytes),
        fits=message.fits,
        energy_j=interval_from_proto(message.energy_j),
        average_power_w=interval_from_proto(message.average_power_w),
        time_breakdown_s=_parts_from_proto(message.time_breakdown_s),
        memory_breakdown_bytes=_parts_from_proto(message.memory_breakdown_bytes),
        energy_breakdown_j=_parts_from_proto(message.energy_breakdown_j),
        coverage=Coverage(coverage.measured, coverage.learned, coverage.analytic, coverage.fallback),
        warnings=tuple(Notice(notice.code, notice.message) for notice in message.warnings),
        bundle=message.bundle,
        graph=message.graph,
        device=message.device,
        device_count=message.device_count,
        capacity_bytes=message.capacity_bytes,
        fit_probability=message.fit_probability,
        out_of_range=message.out_of_range,
        schema=message.schema,
        energy_scope=message.energy_scope or "device",
        footprint=footprint_from_proto(message.footprint) if message.HasField("footprint") else None,
    )


def rows_to_proto(rows: Iterable[OpCostRow]) -> list[pb.OpCostRow]:
    """The messages of an explanation's rows."""
    return [pb.OpCostRow(**{name: getattr(row, name) for name in _ROW_FIELDS}) for row in rows]


def exchanges_to_proto(rows: Iterable[ExchangeRow]) -> list[pb.ExchangeRow]:
    """The messages of what ranks exchange."""
    return [pb.ExchangeRow(**{name: getattr(row, name) for name in _EXCHANGE_FIELDS}) for row in rows]


def explanation_from_proto(message: _Explained) -> Explanation:
    """The explanation of a response."""
    rows = (OpCostRow(**{name: getattr(row, name) for name in _ROW_FIELDS}) for row in message.rows)
    exchanges = (
        ExchangeRow(
            **{name: getattr(row, name) for name in _EXCHANGE_FIELDS} | {"systems": tuple(row.systems)}
        )
        for row in message.exchanges
    )
    return Explanation(prediction_from_proto(message.prediction), tuple(rows), tuple(exchanges))


def interval_to_proto(interval: Interval) -> pb.Interval:
    """The message of an interval."""
    return pb.Interval(value=interval.value, low=interval.low, high=interval.high, coverage=interval.coverage)


def interval_from_proto(message: pb.Interval) -> Interval:
    """The interval of a message."""
    return Interval(message.value, message.low, message.high, message.coverage)


def _parts_to_proto(breakdown: Mapping[str, float]) -> list[pb.Part]:
    return [pb.Part(name=name, value=value) for name, value in breakdown.items()]


def _parts_from_proto(parts: Iterable[pb.Part]) -> dict[str, float]:
    return {part.name: part.value for part in parts}
