"""Training of the power model: base by least squares, trees on its trend, memory of the rest, spreads.

Every (device, workload) pair has the same total weight: a sweep over eight limits is no eight jobs. The base
explains watts and, where the same job ran under several limits, how much longer it took. Spreads are
conformal quantiles of held-out readings, by how much the held-out job was like the ones that remained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.models.bundle import Json, TrainedModel
from predictor.models.calibration import COVERAGE, grouped_quantile
from predictor.models.device_identity import device_numbers
from predictor.models.power.board_power import (
    BOOSTER,
    FEATURES,
    METER_LOG_SPREAD,
    MONOTONE,
    RANGED,
    PowerBase,
    PowerModel,
    base_inputs,
    headroom,
    idle_power_w,
    limit_w,
    own_signature,
    power_features,
)
from predictor.models.power.cap import clock_at
from predictor.models.power.residuals import FIRM, SHY, JobMemory

if TYPE_CHECKING:
    from predictor.models.power.rows import PowerSample

FloatArray = NDArray[np.float64]

ROUNDS = 60
PARAMETERS: dict[str, object] = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 2,
    "eta": 0.05,
    "subsample": 0.8,
    "min_child_weight": 8.0,
    "lambda": 20.0,
    "monotone_constraints": f"({','.join(map(str, MONOTONE))})",
    "seed": 7,
    # One thread: sums run in one order, equal rows give equal trees.
    "nthread": 1,
}
# Where the least squares start, and what they are pulled to where the rows say nothing.
PRIOR = PowerBase(
    busy=0.6,
    compute=0.6,
    memory=0.8,
    fill=4.0,
    kernel=10.0,
    duty_sharpness=2.0,
    density=0.6,
    sharpness=3.5,
    active=1.0,
    share=0.6,
    contrast=0.2,
    clock_sharpness=6.0,
)
_PULL = 0.003
# Least weight of a reading that says hardly anything about the demand, because the limit set it.
_LEAST_LEVERAGE = 0.02
SITUATIONS = ("known", "new_job", "new_device", "new_device_and_job")
# Share of the worst group's readings that an interval may leave out, where groups are few.
_BEYOND = 0.25
# Between the names of a group that is one device's part of one network.
_JOINT = " "


def train_power(samples: Sequence[PowerSample], *, calibrate: bool = True) -> TrainedModel:
    """Trains on all samples. Same samples, same bytes. Raises InvalidData when there are none.

    `calibrate=False` skips the held-out trainings; spreads are then no more than placeholders and no interval
    may be used.
    """
    if not samples:
        raise InvalidData("power: no rows; build the corpus with zeus-nsdi23 and gaissa-seaa2023-training")
    fitted = _fit(samples, PRIOR)
    if calibrate:
        base: Any = fitted.params["base"]
        spread: dict[str, Json] = {**_spreads(samples, PowerBase(**base))}
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


def _folds(samples: Sequence[PowerSample]) -> Iterator[tuple[str, list[PowerSample], list[PowerSample]]]:
    """One network, one device, one of each, or a third of the jobs left out."""
    yield from held_out(samples, lambda sample: sample.model_group)
    yield from held_out(samples, lambda sample: sample.device_group)
    for device, network in sorted({(s.device_group, s.model_group) for s in samples}):
        rest = [s for s in samples if s.device_group != device and s.model_group != network]
        held = [s for s in samples if s.device_group == device and s.model_group == network]
        yield f"{device}{_JOINT}{network}", rest, held
    jobs = sorted({sample.job for sample in samples})
    for part in range(3):
        out = set(jobs[part::3])
        yield (
            f"third {part}",
            [s for s in samples if s.job not in out],
            [s for s in samples if s.job in out],
        )


def _spreads(samples: Sequence[PowerSample], start: PowerBase) -> dict[str, float]:
    scores: dict[str, list[float]] = {name: [] for name in SITUATIONS}
    groups: dict[str, list[str]] = {name: [] for name in SITUATIONS}
    for fold, rest, held in _folds(samples):
        if not rest:
            continue
        model = PowerModel.from_trained(_fit(rest, start))
        for sample in held:
            situation = model.situation(sample.profile, sample.device)
            scores[situation].append(demand_error(model, sample))
            joint = f"{sample.device_group}{_JOINT}{sample.model_group}"
            groups[situation].append(joint if fold.startswith("third") else fold)
    found: dict[str, float] = {}
    widest = 0.0
    for situation in SITUATIONS:
        if scores[situation]:
            found[situation] = _half_width(
                situation, np.array(scores[situation]), np.array(groups[situation])
            )
            widest = max(widest, found[situation])
        else:
            # A situation that no fold showed is at least as uncertain as every one before it.
            found[situation] = max(widest, log(2.0))
    found["new_device_and_job"] = max(found["new_device_and_job"], found["new_job"])
    return found


def _half_width(situation: str, scores: FloatArray, groups: NDArray[np.str_]) -> float:
    """Log factor on the demand that covers the next group, as likely as wanted.

    Readings of one group err alike, so the next group counts as a whole and may lie beyond all seen so far.
    """
    if situation == "new_device":
        # The folds are the few devices, and no quantile of five is one: readings are the units, and Student's
        # factor is for how little a few devices tell of their spread.
        return grouped_quantile(scores, groups, COVERAGE) * _few(len(np.unique(groups)))
    networks = np.array([_JOINT not in group for group in groups])
    if situation == "new_job" and networks.any():
        # What is new in a job is its network; other batches of a known one would count as further groups.
        scores, groups = scores[networks], groups[networks]
    count = len(np.unique(groups))
    return grouped_quantile(scores, groups, min(1.0 - _BEYOND / count, COVERAGE * (1.0 + 1.0 / count)))


def _few(count: int) -> float:
    """Student's quantile over the normal one, for a spread that `count` groups tell."""
    from scipy.stats import norm, t

    tail = 0.5 * (1.0 + COVERAGE)
    return float(t.ppf(tail, max(1, count - 1)) / norm.ppf(tail))


def demand_error(model: PowerModel, sample: PowerSample) -> float:
    """Least log factor on the demand whose interval reaches the reading; 0 when the meter's spread does."""
    idle, limit = idle_power_w(sample.device), limit_w(sample.device, sample.limit_w)
    demand = model.demand(sample.profile, sample.device)
    room = headroom(sample.device, sample.limit_w)
    meter = np.exp([METER_LOG_SPREAD, -METER_LOG_SPREAD])
    fraction = (sample.power_w * meter - idle) / (limit - idle)
    high, low = model.base.demand_of(fraction, np.full(2, room))
    return max(0.0, log(low / demand), log(demand / high))


def _fit(samples: Sequence[PowerSample], start: PowerBase) -> TrainedModel:
    import xgboost

    table = PowerTable.of(samples)
    base = fit_base(table, start)
    features = power_features(table.inputs, base)
    fraction = np.clip((table.power_w - table.idle_w) / table.span_w, 0.005, 0.99)
    label = np.log(base.demand_of(fraction, table.headroom)) - features[:, -1]
    # A capped job says little about its demand: this is what a per cent of demand moves the watts by, so
    # that the loss is the relative error of the watts.
    leverage = fraction * (1 - fraction**base.sharpness) * table.span_w / table.power_w
    information = np.square(np.maximum(leverage, _LEAST_LEVERAGE))
    row_weight = table.weight * information
    matrix = xgboost.DMatrix(
        features.astype(np.float32), label=label, weight=row_weight / max(row_weight.mean(), 1e-30)
    )
    booster = xgboost.train(PARAMETERS, matrix, num_boost_round=ROUNDS)
    left = label - np.asarray(booster.predict(matrix), dtype=np.float64)
    memory = _memory([sample.profile.signature for sample in samples], left, information, SHY)
    left = left - [memory.recall(sample.profile.signature) for sample in samples]
    pairs = [own_signature(sample.profile, sample.device) for sample in samples]
    own = _memory(pairs, left, information, FIRM)
    low, high = _ranges(table.inputs[:, :RANGED])
    return TrainedModel(
        boosters={BOOSTER: bytes(booster.save_raw("ubj"))},
        params={
            "base": asdict(base),
            "memory": memory.to_json(),
            "own_memory": own.to_json(),
            "input_ranges": [[float(x) for x in low], [float(x) for x in high]],
            "devices": _devices(samples),
            "log_spread": dict.fromkeys(SITUATIONS, 1.0),
            "features": list(FEATURES),
            "row_count": len(samples),
        },
    )


def _memory(
    signatures: Sequence[tuple[float, ...]], left: FloatArray, information: FloatArray, ridge: float
) -> JobMemory:
    """One entry per signature: the mean of what its readings left, the telling ones counting most."""
    position: dict[tuple[float, ...], int] = {}
    index = np.array([position.setdefault(signature, len(position)) for signature in signatures])
    weight = np.bincount(index, weights=information)
    known = np.array(list(position), dtype=np.float64)
    return JobMemory.of(known, np.bincount(index, weights=information * left) / weight, ridge)


@dataclass(frozen=True, slots=True)
class PowerTable:
    """Samples as arrays (n,), `inputs` (n, 6).

    `slowdown`: iteration time over that of the same job at the highest limit seen, whose headroom is
    `reference`; 1 where a sweep has one limit. `weight` sums to 1.
    """

    inputs: FloatArray
    power_w: FloatArray
    idle_w: FloatArray
    span_w: FloatArray
    headroom: FloatArray
    slowdown: FloatArray
    reference: FloatArray
    weight: FloatArray

    @classmethod
    def of(cls, samples: Sequence[PowerSample]) -> PowerTable:
        """The table of all samples, in order."""
        idle = np.array([idle_power_w(s.device) for s in samples])
        limit = np.array([limit_w(s.device, s.limit_w) for s in samples])
        room = np.array([headroom(s.device, s.limit_w) for s in samples])
        free: dict[str, int] = {}
        for i, sample in enumerate(samples):
            if sample.time_s > 0 and (sample.job not in free or room[i] > room[free[sample.job]]):
                free[sample.job] = i
        origin = np.array([free.get(sample.job, i) for i, sample in enumerate(samples)], dtype=np.intp)
        time_s = np.array([sample.time_s if sample.time_s > 0 else 1.0 for sample in samples])
        cells = [f"{s.device_group} {s.model_group}" for s in samples]
        _, inverse, counts = np.unique(cells, return_inverse=True, return_counts=True)
        return cls(
            inputs=np.stack([base_inputs(s.profile, s.device) for s in samples]),
            power_w=np.array([s.power_w for s in samples]),
            idle_w=idle,
            span_w=limit - idle,
            headroom=room,
            slowdown=time_s / time_s[origin],
            reference=room[origin],
            weight=1.0 / counts[inverse] / len(counts),
        )


def slowdowns(base: PowerBase, table: PowerTable) -> FloatArray:
    """(n,) iteration times under each row's cap over those at its sweep's highest one."""
    demand, duty = base.active * base.load(table.inputs), base.duty(table.inputs)
    share = base.share_of(table.inputs)

    def stretch(room: FloatArray) -> FloatArray:
        ratio = demand / np.maximum(room, 1e-3)
        clock = clock_at((1.0 + ratio**base.clock_sharpness) ** (-1.0 / base.clock_sharpness))
        return duty * (share / clock + 1.0 - share) + 1.0 - duty

    return np.asarray(stretch(table.headroom) / stretch(table.reference), dtype=np.float64)


_NAMES = tuple(field.name for field in fields(PowerBase))


def fit_base(table: PowerTable, start: PowerBase = PRIOR) -> PowerBase:
    """Weighted least squares of log watts and log slowdowns, outliers damped; deterministic.

    Coordinate search on the logs of the parameters, step after step.
    """

    def loss(base: PowerBase) -> float:
        fraction = base.fraction(base.demand(table.inputs), table.headroom)
        power = np.log(table.power_w / (table.idle_w + fraction * table.span_w))
        time = np.log(table.slowdown / slowdowns(base, table))
        pull = sum(log(a / b) ** 2 for a, b in zip(astuple(base), astuple(PRIOR), strict=True))
        return float(table.weight @ (_damped(power) + _damped(time)) + _PULL * pull)

    found, best, step = start, loss(start), 1.3
    while step > 1.01:
        improved = False
        for name in _NAMES:
            for factor in (step, 1 / step):
                candidate = replace(found, **{name: getattr(found, name) * factor})
                value = loss(candidate)
                if value < best - 1e-8:
                    found, best, improved = candidate, value, True
        if not improved:
            step = step**0.5
    return found


def _damped(errors: FloatArray) -> FloatArray:
    """Squares plus absolute values, so that a few odd rows do not lead."""
    return np.asarray(np.square(errors) + 0.2 * np.sqrt(np.square(errors) + 1e-4), dtype=np.float64)


def _ranges(inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
    # Rounding differences of equal jobs must not look like a new range.
    slack = 1e-6 * np.maximum(1.0, np.abs(inputs))
    return (inputs - slack).min(axis=0), (inputs + slack).max(axis=0)


def _devices(samples: Sequence[PowerSample]) -> list[list[float]]:
    return [list(numbers) for numbers in sorted({tuple(device_numbers(s.device)) for s in samples})]
