"""Measured jobs of several devices move the links of their cluster, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.calibrate import CalibrationResult, calibrate, job_request, load_prior
from predictor.errors import InvalidData
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.models.bundle import Bundle
from predictor.models.device_calibration import prior_calibration
from predictor.models.plans.network_calibration import NetworkCalibration, link_numbers, stored_networks
from predictor.models.profiling.rows import TimedJob
from predictor.parallel.plan import Plan
from predictor.parallel.plan_text import parse_plan
from predictor.types import Mode

DEVICE = find_device("v100-sxm2-16gb")
CLUSTER = ClusterSpec(
    "two-nodes", DEVICE.id, 4, 2, LinkSpec("nvlink", 3e-6, 6e10), LinkSpec("ethernet", 2e-5, 1.2e9)
)
OTHER = replace(CLUSTER, inter_node=LinkSpec("infiniband", 3e-6, 2.5e10))
SLOWER_DEVICE, SLOWER_INTRA, SLOWER_INTER = 0.1, 0.2, 0.35
"""Logs of the factors to be found."""


def shared_job(graph: str, count: int, seconds: float = 1.0) -> TimedJob:
    return TimedJob(graph, seconds, 16 * count, Mode.TRAIN, plan=f"dp={count}")


def seconds_of(predictor: Predictor, job: TimedJob, cluster: ClusterSpec = CLUSTER) -> float:
    request = job_request(job, parse_plan(job.plan), DEVICE, cluster)
    return predictor.predict(request).iteration_time_s.value


@pytest.fixture(scope="module")
def jobs() -> list[TimedJob]:
    """What a slower device in a slower cluster would take."""
    network = NetworkCalibration(link_numbers(CLUSTER), (SLOWER_INTRA, SLOWER_INTER), (0.1, 0.1), 1)
    device = prior_calibration(DEVICE, load_prior()).moved(SLOWER_DEVICE)
    truth = Predictor.load().with_calibrations([device], [network])
    alone = [TimedJob(name, 1.0, 16, Mode.TRAIN) for name in ("resnet18", "vgg11", "resnet34")]
    shared = [shared_job(name, count) for name in ("vgg11", "resnet18", "alexnet") for count in (4, 8)]
    return [replace(job, time_s=seconds_of(truth, job)) for job in (*alone, *shared)]


@pytest.fixture(scope="module")
def result(jobs: list[TimedJob], tmp_path_factory: pytest.TempPathFactory) -> CalibrationResult:
    out = tmp_path_factory.mktemp("cluster") / "overlay"
    return calibrate(jobs, DEVICE, cluster=CLUSTER, out=out, prior=replace(load_prior(), noise=0.05))


def test_factors_of_links_and_device_are_found(result: CalibrationResult) -> None:
    assert result.factors["between nodes"] == pytest.approx(np.exp(SLOWER_INTER), rel=0.12)
    for item in result.jobs:
        assert item.after_s == pytest.approx(item.job.time_s, rel=0.08)


def test_answers_of_the_overlay_are_moved_and_narrower(result: CalibrationResult) -> None:
    before, after = Predictor.load(), Predictor.load(result.path)
    request = job_request(shared_job("alexnet", 8), Plan(dp=8), DEVICE, CLUSTER)
    first, second = (p.predict(request).iteration_time_s for p in (before, after))
    assert second.value > 1.1 * first.value
    # Jobs over nodes say little about the links inside one: exchanges over both stay as unsure as those.
    request = job_request(shared_job("alexnet", 8), Plan(dp=2), DEVICE, CLUSTER)
    first, second = (p.predict(request).iteration_time_s for p in (before, after))
    assert second.high / second.low < first.high / first.low


def test_other_networks_stay(result: CalibrationResult) -> None:
    network = result.network
    assert network is not None
    assert network.is_of(replace(CLUSTER, id="mine", name="Mine"))
    assert not network.is_of(OTHER)
    after = Predictor.load(result.path)
    without = after.with_calibrations([result.calibration], [])
    job = shared_job("alexnet", 8)
    assert seconds_of(after, job, OTHER) == pytest.approx(seconds_of(without, job, OTHER))


def test_a_second_cluster_joins_the_first(
    jobs: list[TimedJob], result: CalibrationResult, tmp_path: Path
) -> None:
    calibrate(jobs[-2:], DEVICE, cluster=OTHER, bundle=result.path, out=tmp_path / "two")
    assert [n.is_of(CLUSTER) for n in stored_networks(Bundle.load(tmp_path / "two"))] == [True, False]
    calibrate(jobs[-2:], DEVICE, cluster=CLUSTER, bundle=tmp_path / "two", out=tmp_path / "three")
    assert [n.is_of(CLUSTER) for n in stored_networks(Bundle.load(tmp_path / "three"))] == [False, True]


def test_one_node_tells_nothing_of_links_between_nodes(jobs: list[TimedJob]) -> None:
    inside = [job for job in jobs if job.plan == "dp=4"]
    network = calibrate(inside, DEVICE, cluster=CLUSTER).network
    assert network is not None
    assert network.mean[1] == pytest.approx(0.0, abs=1e-6)
    assert network.width[0] < network.width[1]


def test_batches_that_do_not_divide_are_named() -> None:
    job = replace(shared_job("resnet18", 4), batch=63, line=3)
    with pytest.raises(InvalidData, match="line 3: resnet18: batch 63 is no multiple of"):
        calibrate([job], DEVICE, cluster=CLUSTER)
    with pytest.raises(InvalidData, match="no measured jobs"):
        calibrate([], DEVICE)
