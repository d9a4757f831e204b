"""The JSON objects that commands print; each names its schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from predictor.errors import PerfcastError
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Prediction
from predictor.wire.as_json import JsonObject, error_to_json, explanation_to_json, prediction_to_json

__all__ = [
    "COMPARISON_SCHEMA",
    "PLANS_SCHEMA",
    "comparison_to_json",
    "explanation_to_json",
    "prediction_to_json",
    "search_to_json",
]

if TYPE_CHECKING:
    from predictor.search.search import Goal, SearchResult

COMPARISON_SCHEMA = "perfcast.comparison/1"
PLANS_SCHEMA = "perfcast.plans/1"


def comparison_to_json(
    requests: Sequence[PredictionRequest], answers: Sequence[Prediction | PerfcastError]
) -> JsonObject:
    """Candidates in order, each with its prediction or its error."""
    return {
        "schema": COMPARISON_SCHEMA,
        "candidates": [
            {**_asked(request), **_answered(answer)}
            for request, answer in zip(requests, answers, strict=True)
        ],
    }


def search_to_json(goal: Goal, found: SearchResult) -> JsonObject:
    """The best plans with their answers, the front, and how much was looked at."""
    from predictor.search.reasons import why_it_loses

    best = found.best
    return {
        "schema": PLANS_SCHEMA,
        "objective": goal.objective.value,
        "best": [
            {
                "plan": _plan(item.plan),
                "value": item.value,
                "devices": item.devices,
                "iteration_time_s": item.outcome.time_s,
                "energy_j": item.outcome.energy_j,
                "device_peak_bytes": item.outcome.peak_bytes,
                "time_breakdown_s": dict(item.outcome.breakdown_s),
                **({"loses_by": why_it_loses(best[0], item)} if item is not best[0] else {}),
            }
            for item in best
        ],
        "front": [
            {"plan": _plan(point.plan), "devices": point.devices, "iteration_time_s": point.time_s}
            for point in found.front
        ],
        "considered": found.considered,
        "too_large": found.too_large,
        "priced": found.priced,
    }


def _plan(plan: Plan) -> JsonObject:
    """Every field, sets and orders as lists."""
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {
        name: sorted(value)
        if isinstance(value, frozenset)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


def _asked(request: PredictionRequest) -> JsonObject:
    return {
        "device": request.device if isinstance(request.device, str) else request.device.id,
        "batch": request.batch,
        "mode": request.mode.value,
        "precision": request.precision.value,
        "dp": request.plan.dp,
    }


def _answered(answer: Prediction | PerfcastError) -> JsonObject:
    if isinstance(answer, PerfcastError):
        return {"error": error_to_json(answer)}
    return {"prediction": prediction_to_json(answer)}
