"""Training of the power model: base by least squares, trees on what it leaves, calibrated spreads.

Every (device, workload) pair has the same total weight: a sweep over eight limits is no eight jobs. Spreads
are conformal quantiles of held-out readings: workloads held out for a known device, devices held out for a
new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import COVERAGE, grouped_quantile
from predictor.models.device_identity import device_numbers
from predictor.models.power import (
    BOOSTER,
    FEATURES,
    MONOTONE,
    PowerBase,
    PowerModel,
    base_inputs,
    headroom,
    idle_power_w,
    limit_w,
    power_features,
)

if TYPE_CHECKING:
    from predictor.models.power_rows import PowerSample

FloatArray = NDArray[np.float64]

ROUNDS = 80
PARAMETERS: dict[str, object] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 3,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 8.0,
    "lambda": 20.0,
    "monotone_constraints": f"({','.join(map(str, MONOTONE))})",
    "seed": 7,
    # One thread: sums run in one order, equal rows give equal trees.
    "nthread": 1,
}
# Where the least squares start, and what they are pulled to where the rows say nothing: a running kernel
# costs a third of the headroom, FLOPs and bytes at peak half of it each, kernels of 30 microseconds leave
# half of the time idle.
PRIOR = PowerBase(busy=0.35, compute=0.5, memory=0.6, kernel=6.0, density=0.6, sharpness=4.0)
_PULL = 0.003
_EXPONENTS = tuple(float(x) for x in np.round(np.arange(1.0, 3.01, 0.05), 2))


def train_power(samples: Sequence[PowerSample], *, calibrate: bool = True) -> TrainedModel:
    """Trains on all samples. Same samples, same bytes. Raises InvalidData when there are none.

    `calibrate=False` skips the held-out trainings; spreads are then those of the fit and no interval may be
    used.
    """
    if not samples:
        raise InvalidData("power: no rows; build the corpus with zeus-nsdi23 and gaissa-seaa2023-training")
    fitted = _fit(samples)
    if calibrate:
        spread = {
            "known_device": _held_out_spread(samples, lambda sample: sample.model_group),
            "new_device": _held_out_spread(samples, lambda sample: sample.device_group),
        }
        spread["new_device"] = max(spread.values())
        fitted = replace(fitted, params={**fitted.params, "log_spread": spread})
    return fitted


def log_errors(model: PowerModel, samples: Sequence[PowerSample]) -> FloatArray:
    """(n,) log(measured / predicted) of average power."""
    return np.array(
        [np.log(s.power_w / model.predict(s.profile, s.device, s.limit_w).value) for s in samples]
    )


def held_out(
    samples: Sequence[PowerSample], key: Callable[[PowerSample], str]
) -> Iterator[tuple[str, list[PowerSample], list[PowerSample]]]:
    """(group, training samples, held-out samples) for every group."""
    for group in sorted({key(sample) for sample in samples}):
        yield (
            group,
            [sample for sample in samples if key(sample) != group],
            [sample for sample in samples if key(sample) == group],
        )


def _held_out_spread(samples: Sequence[PowerSample], key: Callable[[PowerSample], str]) -> float:
    errors: list[FloatArray] = []
    groups: list[str] = []
    for group, rest, held in held_out(samples, key):
        if rest:
            errors.append(log_errors(PowerModel.from_trained(_fit(rest)), held))
            groups += [group] * len(held)
    if not errors:
        return float(np.log(2.0))
    return grouped_quantile(np.concatenate(errors), np.array(groups), COVERAGE)


def _fit(samples: Sequence[PowerSample]) -> TrainedModel:
    import xgboost

    weight = _weights(samples)
    base = fit_base(samples, weight)
    features = np.stack([power_features(s.profile, s.device, base) for s in samples])
    readings = _Readings.of(samples)
    fraction = np.clip((readings.power_w - readings.idle_w) / readings.span_w, 0.005, 0.99)
    demand = base.demand_of(fraction, readings.headroom)
    # A capped job says little about its demand: this is what a per cent of demand moves the watts by, so
    # that the loss is the relative error of the watts.
    leverage = fraction * (1 - fraction**base.sharpness) * readings.span_w / readings.power_w
    row_weight = weight * np.square(np.maximum(leverage, 0.02))
    matrix = xgboost.DMatrix(
        features.astype(np.float32),
        label=np.log(demand) - features[:, -1],
        weight=row_weight / row_weight.mean(),
    )
    booster = xgboost.train(PARAMETERS, matrix, num_boost_round=ROUNDS)
    trained = TrainedModel(
        boosters={BOOSTER: bytes(booster.save_raw("ubj"))},
        params={
            "base": asdict(base),
            "feature_ranges": [[float(x) for x in edge] for edge in _ranges(features)],
            "devices": _devices(samples),
            "log_spread": {"known_device": 1.0, "new_device": 1.0},
            "clock_exponent": _EXPONENTS[0],
            "features": list(FEATURES),
            "row_count": len(samples),
        },
    )
    exponent = fit_clock_exponent(samples, PowerModel.from_trained(trained))
    return replace(trained, params={**trained.params, "clock_exponent": exponent})


@dataclass(frozen=True, slots=True)
class _Readings:
    """Arrays (n,) of the samples: watts, idle watts, limit - idle, headroom."""

    power_w: FloatArray
    idle_w: FloatArray
    span_w: FloatArray
    headroom: FloatArray

    @classmethod
    def of(cls, samples: Sequence[PowerSample]) -> _Readings:
        idle = np.array([idle_power_w(s.device) for s in samples])
        limit = np.array([limit_w(s.device, s.limit_w) for s in samples])
        room = np.array([headroom(s.device, s.limit_w) for s in samples])
        return cls(np.array([s.power_w for s in samples]), idle, limit - idle, room)


_NAMES = tuple(field.name for field in fields(PowerBase))


def _weights(samples: Sequence[PowerSample]) -> FloatArray:
    cells = [f"{s.device_group} {s.model_group}" for s in samples]
    _, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
    weight: FloatArray = 1.0 / counts[inverse] / len(counts)
    return weight


def _ranges(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    # Rounding differences of equal jobs must not look like a new range.
    slack = 1e-6 * np.maximum(1.0, np.abs(features))
    return (features - slack).min(axis=0), (features + slack).max(axis=0)


def _devices(samples: Sequence[PowerSample]) -> list[list[float]]:
    return [list(numbers) for numbers in sorted({tuple(device_numbers(s.device)) for s in samples})]


def fit_base(samples: Sequence[PowerSample], weight: FloatArray) -> PowerBase:
    """Weighted least squares of log watts: coordinate search on the logs of the parameters; deterministic."""
    readings = _Readings.of(samples)
    inputs = np.stack([base_inputs(s.profile, s.device) for s in samples])

    def loss(base: PowerBase) -> float:
        fraction = base.fraction(base.demand(inputs), readings.headroom)
        errors = np.log(readings.power_w / (readings.idle_w + fraction * readings.span_w))
        pull = sum(log(a / b) ** 2 for a, b in zip(astuple(base), astuple(PRIOR), strict=True))
        return float(weight @ np.square(errors) + _PULL * pull)

    found, best, step = PRIOR, loss(PRIOR), 1.5
    while step > 1.01:
        improved = False
        for name in _NAMES:
            for factor in (step, 1 / step):
                candidate = replace(found, **{name: getattr(found, name) * factor})
                value = loss(candidate)
                if value < best - 1e-9:
                    found, best, improved = candidate, value, True
        if not improved:
            step = step**0.5
    return found


def fit_clock_exponent(samples: Sequence[PowerSample], model: PowerModel) -> float:
    """The exponent of dynamic power over clock that explains best how capped runs slow down.

    Slowdowns are epoch times over that of the same job at its highest limit.
    """
    ratios, slowdowns = capped_runs(samples, model)
    if not ratios.size:
        return 2.0
    errors = [float(np.abs(np.log(ratios) / exponent - np.log(slowdowns)).mean()) for exponent in _EXPONENTS]
    return _EXPONENTS[int(np.argmin(errors))]


def capped_runs(samples: Sequence[PowerSample], model: PowerModel) -> tuple[FloatArray, FloatArray]:
    """(power ratios under the cap as the model sees them, measured slowdowns) of all capped runs."""
    sweeps: dict[str, list[PowerSample]] = {}
    for sample in samples:
        if sample.time_s > 0:
            sweeps.setdefault(sample.job, []).append(sample)
    ratios: list[float] = []
    slowdowns: list[float] = []
    for sweep in sweeps.values():
        free = max(sweep, key=lambda sample: sample.limit_w)
        for sample in sweep:
            if sample is not free and sample.limit_w < sample.device.tdp_w:
                ratios.append(model.power_ratio(sample.profile, sample.device, sample.limit_w))
                slowdowns.append(max(0.5, sample.time_s / free.time_s))
    return np.array(ratios), np.array(slowdowns)
