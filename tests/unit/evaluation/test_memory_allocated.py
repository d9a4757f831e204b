"""M2's rows from tables whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.evaluation.memory_allocated import allocated_suite
from predictor.models.memory.allocated import (
    ALLOCATED_FEATURES,
    FACTOR_RANGE,
    AllocatedJob,
    AllocatedModel,
    allocated_features,
)
from predictor.models.memory.allocated_training import AllocatedRows, fit_allocated

GIB = 2.0**30


def job(**changes: object) -> AllocatedJob:
    fields: dict[str, object] = {
        "lines": {"parameters": GIB, "activations": 3 * GIB},
        "library_bytes": GIB,
        "moment": "backward",
        "in_flight": 2,
        "replicas": 8,
    }
    return AllocatedJob(**{**fields, **changes})  # type: ignore[arg-type]


def rows(factor: float, count: int = 96) -> AllocatedRows:
    generator = np.random.default_rng(3)
    features = np.tile(allocated_features(job(device_year=2020)), (count, 1))
    features[:, 0] += generator.uniform(0, 2, count)
    floor = np.exp(features[:, 0])
    kind = np.array(["gpt", "moe"] * (count // 2))
    group = np.array([f"group{index // 4}" for index in range(count)])
    return AllocatedRows(features, floor, factor * floor, group, kind, group)


def test_shares_and_unknown_software() -> None:
    row = dict(zip(ALLOCATED_FEATURES, allocated_features(job()), strict=True))
    assert row["log_floor"] == pytest.approx(np.log(5 * GIB))
    assert (row["parameters"], row["activations"], row["library"]) == pytest.approx((0.2, 0.6, 0.2))
    assert row["log_replicas"] == 3
    assert np.isnan([row["device_year"], row["software_year"], row["long_term_branch"]]).all()


def test_a_constant_factor_is_found_and_the_uncorrected_error_stands_beside() -> None:
    found, (table,) = allocated_suite(rows(1.1))
    score = {(row.group, row.metric): row.value for row in found}
    assert score["golden runs", "mape"] < 0.005
    assert score["golden runs, uncorrected", "mape"] == pytest.approx(1 - 1 / 1.1, abs=1e-6)
    assert score["kind:moe", "mape"] < 0.005
    assert score["factors in x0.7-1.5", "hit_rate"] == 1
    assert [line[0] for line in table.lines] == ["gpt", "moe"]


def test_factors_stay_in_their_range() -> None:
    sample = rows(4.0)
    factors = AllocatedModel.from_trained(fit_allocated(sample)).factors(sample.features)
    assert factors.max() <= FACTOR_RANGE[1] + 1e-9
    assert factors.min() > 1.4


def test_a_job_unlike_training_stays_uncorrected() -> None:
    sample = rows(1.2)
    model = AllocatedModel.from_trained(fit_allocated(sample))
    factor, interval = model.predict(job(zero=3, device_year=2020))
    assert factor == 1.0
    assert interval.low < interval.value == job().floor_bytes < interval.high


def test_the_interval_of_unknown_software_is_the_wider_one() -> None:
    sample = rows(1.2)
    trained = fit_allocated(sample)
    spread = {"known_kind": 0.02, "new_kind": 0.07}
    model = AllocatedModel.from_trained(replace(trained, params={**trained.params, "log_spread": spread}))
    unknown = model.predict(job(device_year=2020))[1]
    assert unknown.high / unknown.value == pytest.approx(np.exp(0.07))


def test_plans_without_convolutions_are_corrected_and_never_below_their_tensors() -> None:
    from predictor.features.builder import GraphBuilder
    from predictor.features.programs.program import build_program
    from predictor.features.reading.reader import read_graph
    from predictor.hardware.catalog import find_device
    from predictor.models.bundle import Bundle
    from predictor.models.memory.peak import BOOSTER, MODEL_NAME, MemoryModel
    from predictor.types import Mode, Optimizer, Precision, Runtime

    b = GraphBuilder()
    graph = read_graph(b.build([b.relu(b.linear(b.input("x", (64, 32)), 32))]))
    program = build_program(
        graph, mode=Mode.TRAIN, precision=Precision.FP32, optimizer=Optimizer.ADAM, runtime=Runtime.EAGER
    )
    bundle = Bundle.load()
    # Twice the smallest floor of training, the same shares.
    asked = job(
        device_year=2020, lines={"parameters": 2 * GIB, "activations": 6 * GIB}, library_bytes=2 * GIB
    )
    peaks = {}
    for factor in (0.8, 1.2):
        sample = rows(factor)
        allocated = AllocatedModel.from_trained(fit_allocated(sample))
        model = MemoryModel(bundle.params(MODEL_NAME), bundle.booster(MODEL_NAME, BOOSTER), allocated)
        found = model.predict_stage(program, find_device("a100-sxm-80gb"), asked.lines, 0, asked)
        assert sum(found.breakdown_bytes.values()) == pytest.approx(found.device_peak.value)
        peaks[factor] = found.allocator_peak.value / sum(asked.lines.values())
    assert peaks[0.8] == pytest.approx(1.0)
    assert peaks[1.2] == pytest.approx(1.2, rel=0.02)
