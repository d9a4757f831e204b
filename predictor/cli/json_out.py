"""The JSON objects that commands print; each names its schema."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.errors import PerfcastError
from predictor.request import PredictionRequest
from predictor.types import Prediction
from predictor.wire.as_json import JsonObject, error_to_json, explanation_to_json, prediction_to_json

__all__ = ["COMPARISON_SCHEMA", "comparison_to_json", "explanation_to_json", "prediction_to_json"]

COMPARISON_SCHEMA = "perfcast.comparison/1"


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
