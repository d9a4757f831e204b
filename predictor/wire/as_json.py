"""Answers as plain JSON objects, schema `perfcast.prediction/1`: what the CLI prints and evaluation stores.

Every quantity is `{"value", "low", "high", "coverage"}`. Numbers are not rounded: the same answer has the
same text on every face. A number that is not finite is a bug, and refused, not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from predictor.errors import PerfcastError
from predictor.types import Explanation, Footprint, Interval, Prediction

JsonObject: TypeAlias = dict[str, Any]

EXPLANATION_SCHEMA = "perfcast.explanation/1"
UNKNOWN = "unknown"


def prediction_to_json(prediction: Prediction) -> JsonObject:
    """The answer as `json.dumps` accepts it. Raises PerfcastError on a number that is not finite."""
    answer = {
        "schema": prediction.schema,
        "iteration_time_s": _interval(prediction.iteration_time_s),
        "throughput_samples_per_s": _interval(prediction.throughput_samples_per_s),
        "device_peak_bytes": _interval(prediction.device_peak_bytes),
        "allocator_peak_bytes": _interval(prediction.allocator_peak_bytes),
        "fits": bool(prediction.fits),
        "energy_j": _interval(prediction.energy_j),
        "average_power_w": _interval(prediction.average_power_w),
        "time_breakdown_s": _numbers(prediction.time_breakdown_s),
        "memory_breakdown_bytes": _numbers(prediction.memory_breakdown_bytes),
        "energy_breakdown_j": _numbers(prediction.energy_breakdown_j),
        "coverage": _numbers(asdict(prediction.coverage)),
        "warnings": [{"code": notice.code, "message": notice.message} for notice in prediction.warnings],
        "bundle": prediction.bundle,
        "graph": prediction.graph,
        "device": prediction.device,
        "device_count": prediction.device_count,
        "capacity_bytes": float(prediction.capacity_bytes),
        "fit_probability": float(prediction.fit_probability),
        "out_of_range": bool(prediction.out_of_range),
        "energy_scope": prediction.energy_scope,
        "footprint": None if prediction.footprint is None else footprint_to_json(prediction.footprint),
    }
    check_finite(answer)
    return answer


def footprint_to_json(found: Footprint) -> JsonObject:
    """The footprint; what nobody knows is the text "unknown"."""
    return {
        "scope": found.scope,
        "site": found.site or UNKNOWN,
        "node_count": float(found.node_count),
        "pue": UNKNOWN if found.pue is None else float(found.pue),
        "energy_j": _interval(found.energy_j),
        "energy_kwh": _interval(found.energy_kwh),
        "energy_breakdown_j": _numbers(found.parts_j),
        "intensity_g_per_kwh": _known(found.intensity_g_per_kwh),
        "carbon_gco2e": _known(found.carbon_g),
        "carbon_note": found.carbon_note,
        "embodied_gco2e": UNKNOWN if found.embodied_g is None else float(found.embodied_g),
        "cost_usd": _known(found.cost_usd),
        "cost_note": found.cost_note,
    }


def _known(interval: Interval | None) -> JsonObject | str:
    return UNKNOWN if interval is None else _interval(interval)


def explanation_to_json(explanation: Explanation) -> JsonObject:
    """A prediction with its op groups, most expensive first. Raises as `prediction_to_json` does."""
    answer = {
        "schema": EXPLANATION_SCHEMA,
        "prediction": prediction_to_json(explanation.prediction),
        "ops": [asdict(row) for row in explanation.rows],
        "exchanges": [asdict(row) for row in explanation.exchanges],
    }
    check_finite(answer)
    return answer


def error_to_json(error: PerfcastError) -> JsonObject:
    """An error in the place of an answer."""
    return {"reason": error.reason, "message": error.message, "metadata": dict(error.metadata)}


def check_finite(value: object, where: str = "answer") -> None:
    """Raises PerfcastError naming the first number that is NaN or infinite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PerfcastError(f"{where} is {value}: a bug; please report the request", field=where)
    if isinstance(value, Mapping):
        for key, item in value.items():
            check_finite(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_finite(item, f"{where}[{index}]")


def _interval(interval: Interval) -> JsonObject:
    return _numbers(asdict(interval))


def _numbers(values: Mapping[str, float]) -> JsonObject:
    # float(): numpy scalars would not serialize.
    return {name: float(value) for name, value in values.items()}
