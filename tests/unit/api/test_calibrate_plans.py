"""Measured plans of a cluster move its other plans, and no other cluster's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.calibrate import LEAST_PLANS, CalibrationResult, calibrate, job_request
from predictor.api.worth_measuring import worth_measuring
from predictor.compose.plan_cost import is_plain
from predictor.errors import DoesNotFit, InvalidRequest
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.models.bundle import Bundle
from predictor.models.plans.plan_calibration import stored_plans
from predictor.models.profiling.rows import TimedJob
from predictor.parallel.plan_text import parse_plan
from predictor.search.space import SearchSpace
from predictor.types import Mode

GPT2 = str(Path(__file__).resolve().parents[3] / "examples" / "gpt2.onnx")
DEVICE = find_device("a100-sxm-80gb")
CLUSTER = ClusterSpec(
    "node", DEVICE.id, 8, 1, LinkSpec("nvlink", 1e-6, 3e11), LinkSpec("infiniband", 5e-6, 2.5e10)
)
PLANS = [
    *("tp=2 microbatches=2", "tp=4 microbatches=2", "tp=8 microbatches=2", "pp=2 microbatches=4"),
    *("pp=4 microbatches=4", "tp=2 pp=2 microbatches=4", "tp=4 pp=2 microbatches=8", "tp=2 microbatches=8"),
]
UNSEEN = ["tp=4 microbatches=4", "tp=4 microbatches=8", "tp=8 microbatches=4"]


def slower(plan: str) -> float:
    """Truth over composition: 15 % more per doubling of tensor-parallel ranks."""
    return float(np.exp(0.15 * np.log2(parse_plan(plan).tp)))


def job(plan: str, seconds: float = 1.0) -> TimedJob:
    return TimedJob(GPT2, seconds, 16, Mode.TRAIN, plan=plan)


def seconds_of(predictor: Predictor, plan: str, cluster: ClusterSpec = CLUSTER) -> float:
    request = job_request(job(plan), parse_plan(plan), DEVICE, cluster)
    return predictor.predict(request).iteration_time_s.value


@pytest.fixture(scope="module")
def before() -> Predictor:
    return Predictor.load()


@pytest.fixture(scope="module")
def result(before: Predictor, tmp_path_factory: pytest.TempPathFactory) -> CalibrationResult:
    rows = [job(plan, seconds_of(before, plan) * slower(plan)) for plan in PLANS]
    return calibrate(rows, DEVICE, cluster=CLUSTER, out=tmp_path_factory.mktemp("plans") / "overlay")


def test_plans_that_were_not_measured_are_moved(before: Predictor, result: CalibrationResult) -> None:
    after = Predictor.load(result.path)
    for plan in UNSEEN:
        truth = seconds_of(before, plan) * slower(plan)
        assert abs(np.log(seconds_of(after, plan) / truth)) < 0.5 * np.log(slower(plan))
    for item in result.jobs:
        assert item.after_s == pytest.approx(item.job.time_s, rel=0.06)
        assert item.left_out_s is not None
    answer = after.predict(job_request(job(UNSEEN[0]), parse_plan(UNSEEN[0]), DEVICE, CLUSTER))
    assert sum(answer.time_breakdown_s.values()) == pytest.approx(answer.iteration_time_s.value)
    plain = before.predict(job_request(job(UNSEEN[0]), parse_plan(UNSEEN[0]), DEVICE, CLUSTER))
    width = answer.iteration_time_s.high / answer.iteration_time_s.value
    assert 1 < width < plain.iteration_time_s.high / plain.iteration_time_s.value


def test_other_clusters_keep_their_plans(before: Predictor, result: CalibrationResult) -> None:
    after = Predictor.load(result.path)
    other = replace(CLUSTER, intra_node=LinkSpec("pcie", 5e-6, 2e10))
    found = stored_plans(Bundle.load(result.path))
    assert len(found) == 1
    assert not found[0].is_of(DEVICE, other)
    assert not found[0].is_of(find_device("v100-sxm-32gb"), after.links.measured(CLUSTER))
    assert found[0].is_of(DEVICE, after.links.measured(replace(CLUSTER, id="mine")))


def test_few_plans_tell_of_links_alone(before: Predictor) -> None:
    rows = [job(plan, seconds_of(before, plan)) for plan in PLANS[: LEAST_PLANS - 1]]
    assert calibrate(rows, DEVICE, cluster=CLUSTER).plans is None


def test_plans_worth_measuring_differ_in_what_they_run(before: Predictor) -> None:
    asked = job_request(job("tp=2"), parse_plan("tp=2"), DEVICE, CLUSTER)
    with pytest.raises(InvalidRequest, match="a Graph has sizes already"):
        worth_measuring(before, asked, 6)
    request = replace(asked, graph=GPT2)
    space = SearchSpace(
        max_devices=8, dp=(1, 2), tp=(1, 2, 4), pp=(1, 2), samples=(1, 2, 4), zero=(0,), chunks=(2,)
    )
    plans = worth_measuring(before, request, 6, space=space)
    assert len(set(plans)) == 6
    assert not any(is_plain(plan) for plan in plans)
    assert {plan.tp for plan in plans} == {1, 2, 4}
    assert len({16 // plan.dp // plan.microbatches for plan in plans}) > 1
    assert plans == worth_measuring(before, request, 6, space=space)
    with pytest.raises(DoesNotFit, match="at least 9999"):
        worth_measuring(before, request, 9999, space=space)
