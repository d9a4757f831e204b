"""Training of the serving model: bases by robust least squares, trees and memories on what they leave.

Rows of one chip fit its own base; all rows together fit the base of chips that nobody measured. Spreads come
from models left out (known chips) and chips left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Json, TrainedModel
from predictor.models.calibration import conformal_quantile
from predictor.models.device_identity import device_numbers
from predictor.models.power.board_power import idle_power_w
from predictor.models.power.llm_shape import CONFIGS, published_shapes
from predictor.models.power.residuals import JobMemory
from predictor.models.power.serving import (
    LEAST_FRACTION,
    POWER_TARGET,
    TARGETS,
    TASKS,
    FloatArray,
    ServingJob,
    ServingModel,
    StepWork,
    base_power,
    features,
    power_asked,
    power_facts,
    power_terms,
    step_work,
)

if TYPE_CHECKING:
    import polars as pl

ROUNDS = 200
PARAMETERS: Mapping[str, object] = {
    "objective": "reg:pseudohubererror",
    "tree_method": "hist",
    "max_depth": 6,
    "eta": 0.06,
    "subsample": 0.8,
    "colsample_bytree": 0.7,
    "min_child_weight": 2.0,
    "seed": 1,
    "nthread": 1,
}
# One scaled unit of a standardised feature is a fifth of a kernel width; what a server does with a task, and
# on which chip, counts half as much again.
_KERNEL_SCALE, _KIND_SCALE, _RIDGE = 5.0, 1.5, 0.1
_KINDS = 1 + len(TASKS)
QUANTITIES = (*TARGETS, "energy")
"""What answers give an interval for."""


@dataclass(frozen=True, slots=True)
class ServingSample:
    """One measured run: the job, its device, seconds of a step, W per device, J per output token."""

    job: ServingJob
    work: StepWork
    device: DeviceSpec
    step_s: float
    power_w: float
    energy_j: float
    model: str
    chip: str


def serving_samples(rows: pl.DataFrame) -> tuple[ServingSample, ...]:
    """Runs of the corpus. Raises InvalidData for a model without a configuration."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    columns = ("subject", "device", "configuration", "quantity", "value")
    order: list[tuple[str, str, str]] = []
    for subject, device, text, quantity, value in rows.select(columns).sort(columns).iter_rows():
        key = (subject, device, text)
        if key not in found:
            order.append(key)
        found.setdefault(key, {})[quantity] = value
    return tuple(
        _sample(subject, device, json.loads(text), found[subject, device, text])
        for subject, device, text in order
    )


def _sample(
    subject: str, device_id: str, facts: Mapping[str, Any], values: Mapping[str, float]
) -> ServingSample:
    shape = published_shapes().get(subject)
    if shape is None:
        raise InvalidData(f"serving rows: no configuration of {subject}; add it to {CONFIGS.name}")
    device = find_device(device_id)
    job = ServingJob(
        shape=shape,
        devices=int(facts["devices"]),
        batch=int(facts["batch"]),
        prompt_tokens=float(facts["prompt_tokens"]),
        output_tokens=float(facts["output_tokens"]),
        replicas=int(facts["replicas"]),
        expert_parallel=int(facts["expert_parallel"]),
        weight_bits=int(facts["weight_bits"]),
        task=str(facts["task"]),
    )
    work = step_work(job, device)
    return ServingSample(
        job=job,
        work=work,
        device=device,
        step_s=work.batch * job.replicas / float(facts["tokens_per_s"]),
        power_w=values["average_power"],
        energy_j=values["energy"],
        model=subject,
        chip=device_id,
    )


def train_serving(samples: Sequence[ServingSample], *, calibrate: bool = True) -> TrainedModel:
    """Trains on all samples. Raises InvalidData when there are none."""
    if not samples:
        raise InvalidData("serving: no rows; build the corpus with ml-energy-leaderboard-v3")
    trained = _fit(samples)
    if not calibrate:
        return trained
    new = _spread(samples, [sample.chip for sample in samples])
    spread: dict[str, Json] = {
        "known_device": {**_spread(samples, [sample.model for sample in samples])},
        "new_device": {**new, "energy": new_chip_energy_spread(new["power"], new["step"])},
    }
    return replace(trained, params={**trained.params, "log_spread": spread})


def new_chip_energy_spread(power: float, step: float) -> float:
    """Log spread of joules on a chip nobody measured: watts times seconds, errors taken as independent."""
    return hypot(power, step)


def _spread(samples: Sequence[ServingSample], groups: Sequence[str]) -> dict[str, float]:
    errors: dict[str, list[float]] = {name: [] for name in QUANTITIES}
    for group in sorted(set(groups)):
        rest = [s for s, own in zip(samples, groups, strict=True) if own != group]
        held = [s for s, own in zip(samples, groups, strict=True) if own == group]
        if not rest:
            continue
        model = ServingModel.from_trained(_fit(rest))
        for sample in held:
            found = model.raw(sample.job, sample.device)
            errors["step"].append(float(np.log(sample.step_s / found["step_s"])))
            errors["power"].append(float(np.log(sample.power_w / found["power_w"])))
            errors["energy"].append(float(np.log(sample.energy_j / found["energy_j"])))
    return {name: conformal_quantile(found) if found else 1.0 for name, found in errors.items()}


def _fit(samples: Sequence[ServingSample]) -> TrainedModel:
    import xgboost

    chips = sorted({sample.chip for sample in samples})
    code = {chip: float(index) for index, chip in enumerate(chips)}
    bases = {chip: fit_base([s for s in samples if s.chip == chip]) for chip in chips}
    base_s = np.array([max(float(s.work.terms @ bases[s.chip]), s.work.floor_s) for s in samples])
    chip_of = np.array([sample.chip for sample in samples])
    watts = {
        chip: fit_power_base([s for s in samples if s.chip == chip], base_s[chip_of == chip])
        for chip in chips
    }
    usual = [base_power(s.work, t, watts[s.chip]) for s, t in zip(samples, base_s, strict=True)]
    rows = np.stack(
        [features(s.job, s.work, t, w, code[s.chip]) for s, t, w in zip(samples, base_s, usual, strict=True)]
    )
    labels = {
        "step": np.log([s.step_s for s in samples]) - np.log(base_s),
        "power": np.log([_fraction(s) for s in samples]) - np.log(usual),
    }
    boosters, memories, means = {}, {}, {}
    scale = rows.std(axis=0) * _KERNEL_SCALE + 1e-6
    scale[-_KINDS:] /= _KIND_SCALE
    distinct, inverse = np.unique(rows / scale, axis=0, return_inverse=True)
    counts = np.bincount(inverse.ravel())
    for name in TARGETS:
        matrix = xgboost.DMatrix(rows.astype(np.float32), label=labels[name])
        boosters[name] = bytes(
            xgboost.train(dict(PARAMETERS), matrix, num_boost_round=ROUNDS).save_raw("ubj")
        )
        means[name] = float(labels[name].mean())
        left = np.bincount(inverse.ravel(), weights=labels[name] - means[name]) / counts
        memories[name] = JobMemory.of(distinct, left, _RIDGE).to_json()
    entries: list[Json] = [
        {
            "chip": chip,
            "numbers": device_numbers(find_device(chip)),
            "code": code[chip],
            "base": [float(x) for x in bases[chip]],
            "power": [float(x) for x in watts[chip]],
        }
        for chip in chips
    ]
    params: dict[str, Json] = {
        "power_target": POWER_TARGET,
        "bases": entries,
        "any_base": [float(x) for x in fit_base(samples)],
        "any_power": [float(x) for x in _any_power(samples)],
        "scale": [float(x) for x in scale],
        "memory": memories,
        "means": means,
        "log_spread": {name: dict.fromkeys(QUANTITIES, 1.0) for name in ("known_device", "new_device")},
        "row_count": len(samples),
    }
    return TrainedModel(boosters, params)


def _fraction(sample: ServingSample) -> float:
    idle = idle_power_w(sample.device)
    return max(LEAST_FRACTION, min(0.99, (sample.power_w - idle) / (sample.device.tdp_w - idle)))


def fit_base(samples: Sequence[ServingSample]) -> FloatArray:
    """(12,) weights of the terms, none below 0: relative errors, reweighted towards the median."""
    terms = np.stack([sample.work.terms for sample in samples])
    return _robust(terms / np.array([sample.step_s for sample in samples])[:, None])


def fit_power_base(samples: Sequence[ServingSample], base_s: FloatArray) -> FloatArray:
    """(11,) weights of `power_terms` in watts over the limit, fitted as `fit_base` is."""
    terms = np.stack([power_terms(s.work, t) for s, t in zip(samples, base_s, strict=True)])
    measured = np.array([power_asked(sample.power_w / sample.device.tdp_w) for sample in samples])
    return _robust(terms / measured[:, None])


def _robust(columns: FloatArray) -> FloatArray:
    """Weights, none below 0, that bring all rows near 1; rows far off count less."""
    from scipy.optimize import nnls

    weight, found = np.ones(len(columns)), np.ones(columns.shape[1])
    for _ in range(30):
        root = np.sqrt(weight)
        found = np.asarray(nnls(columns * root[:, None], root)[0], dtype=np.float64)
        weight = 1.0 / np.maximum(np.abs(columns @ found - 1.0), 0.05)
    return found


def _any_power(samples: Sequence[ServingSample]) -> FloatArray:
    """(3,) slopes and constant of log fractions over `power_facts`: ridge, for chips nobody measured."""
    facts = np.stack([power_facts(sample.work) for sample in samples])
    label = np.log([_fraction(sample) for sample in samples])
    centre, mean = facts.mean(axis=0), label.mean()
    away = facts - centre
    slopes = np.linalg.solve(away.T @ away + np.eye(facts.shape[1]), away.T @ (label - mean))
    return np.append(slopes, mean - centre @ slopes)
