"""Formulas of published studies, against the numbers that they give exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.errors import InvalidRequest, UnknownName
from predictor.features.architectures import architecture
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Program
from predictor.features.reading.reader import read_graph
from predictor.hardware.spec import LinkSpec
from predictor.parallel.architectures.confidential import (
    PUBLISHED_BUCKET_BYTES,
    ConfidentialLink,
    DdpJob,
    crypto_s,
    fit_confidential,
    plain_step_s,
    slowdown,
    step_s,
)
from predictor.parallel.architectures.pai import (
    CASES,
    SYSTEMS,
    Workload,
    fleet_shares,
    port,
    ring_traffic_bytes,
    sensitivities,
    step_time,
    sweep,
    workload_of,
)
from predictor.parallel.architectures.scale_up import LearnerWorkload, scale_up, worst_of
from predictor.parallel.architectures.servers import busiest_node_bytes, cross_rack_bytes, server_step
from predictor.types import Mode, Optimizer, Precision, Runtime, TrainingArchitecture
from predictor.units import MIB

PAI, V100 = SYSTEMS["pai"], SYSTEMS["v100"]
MEGA, GIGA = 1e6, 1e9


def weights_s(architecture_: TrainingArchitecture, ethernet: float = 3.125e9) -> float:
    job = Workload("job", architecture_, 0.0, 0.0, 0.0, 1e9)
    return step_time(job, replace(PAI, ethernet_bytes_per_s=ethernet)).communication_s


# Alibaba PAI


def test_ratios_of_moving_weights() -> None:
    servers = weights_s(TrainingArchitecture.PS_WORKER)
    assert servers / weights_s(TrainingArchitecture.ALLREDUCE_LOCAL) == pytest.approx(21.0, abs=1e-9)
    assert servers / weights_s(TrainingArchitecture.ALLREDUCE_CLUSTER) == pytest.approx(21 / 17, abs=1e-9)
    faster = weights_s(TrainingArchitecture.PS_WORKER, 12.5e9)
    assert servers / faster == pytest.approx(7 / 3, abs=1e-9)
    slower = weights_s(TrainingArchitecture.PS_WORKER, 1.25e9)
    assert servers / slower == pytest.approx(7 / 15, abs=1e-9)


# ms: input, compute-bound, memory-bound, weights, sum, under ideal overlap; sum with V100 figures.
GOLDEN = {
    "multi_interests": (37.29, 13.74, 143.43, 73.20, 267.65, 157.17, 279.93),
    "resnet50": (5.43, 202.60, 45.57, 10.20, 263.80, 248.17, 214.83),
    "nmt": (0.00, 324.68, 145.14, 38.00, 507.82, 469.82, 437.37),
    "bert": (0.01, 272.73, 153.29, 42.86, 468.88, 426.01, 413.18),
    "speech": (114.86, 1025.97, 29.14, 0.0, 1169.97, 1055.12, 899.62),
    "gcn": (0.17, 42.95, 36.84, 85.71, 165.68, 85.71, 158.32),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_step_times(name: str) -> None:
    job = CASES[name]
    step, hidden = step_time(job, PAI), step_time(job, PAI, overlap=1.0)
    parts = step.input_s, step.flop_s, step.memory_s, step.communication_s, step.total_s, hidden.total_s
    found = (*parts, step_time(job, V100).total_s)
    for value, expected in zip(found, GOLDEN[name], strict=True):
        # 0.1 %, or half a unit of the table's last digit.
        assert value * 1e3 == pytest.approx(expected, rel=1e-3, abs=0.005)


def test_overlap_is_a_mixture() -> None:
    job = CASES["resnet50"]
    none, half, ideal = (step_time(job, PAI, overlap=share).total_s for share in (0.0, 0.5, 1.0))
    assert half == pytest.approx((none + ideal) / 2)
    with pytest.raises(InvalidRequest, match="overlap"):
        step_time(job, PAI, overlap=1.5)


@given(st.floats(0.01, 0.99))
def test_a_faster_network_helps_by_the_share_of_weights(share: float) -> None:
    """Amdahl's law, never above 7/3."""
    compute = 1 - share
    job = Workload(
        "job",
        TrainingArchitecture.PS_WORKER,
        compute * PAI.rate("flop"),
        0.0,
        0.0,
        share / (1 / PAI.rate("ethernet") + 1 / PAI.rate("pcie")),
    )
    (gain,) = sweep(job, PAI, "ethernet_bytes_per_s", [12.5e9])
    assert gain == pytest.approx(1 / (1 - share + share * 3 / 7))
    assert gain < 7 / 3


def test_the_reported_mean_gain_is_a_share_of_weights_of_72_percent() -> None:
    assert pytest.approx(1.7, abs=0.005) == 1 / (1 - 0.72 + 0.72 * 3 / 7)


def test_the_most_sensitive_resource_by_architecture() -> None:
    """GPU memory, PCIe, Ethernet for 1w1g, 1wng, PS/Worker, on a memory-bound job with much to move."""
    job = Workload("job", TrainingArchitecture.ONE_GPU, 0.5e12, 80e9, 1e6, 2e9)
    expected = {
        TrainingArchitecture.ONE_GPU: "memory",
        TrainingArchitecture.ONE_SERVER: "pcie",
        TrainingArchitecture.PS_WORKER: "ethernet",
    }
    for kind, resource in expected.items():
        assert next(iter(sensitivities(replace(job, architecture=kind), PAI))) == resource
    ported = replace(job, architecture=TrainingArchitecture.ALLREDUCE_LOCAL)
    assert next(iter(sensitivities(ported, PAI))) == "memory"


def test_porting_caps_replicas_and_shares_the_bus() -> None:
    job = replace(CASES["multi_interests"], replicas=64)
    moved = port(job, "allreduce_local", PAI)
    assert moved.replicas == 8
    assert moved.after.input_s == 8 * moved.before.input_s
    assert moved.throughput_speedup == pytest.approx(moved.replica_speedup / 8)
    assert moved.fits is None
    # 239 GB of embeddings on one device; spread over 64, still too much for some.
    assert port(job, "allreduce_cluster", V100).fits is False
    assert port(job, "pearl", V100).fits is True
    assert port(CASES["resnet50"], "allreduce_local", V100).fits is True
    with pytest.raises(UnknownName, match="training architecture"):
        port(job, "gossip", PAI)


def test_a_fleet_reports_the_share_it_was_drawn_with() -> None:
    """Jobs with a cNode-weighted communication share of 62 %; by jobs it is another one."""
    rate = 1 / (1 / PAI.rate("ethernet") + 1 / PAI.rate("pcie"))

    def job(share: float, replicas: int) -> Workload:
        flops = (1 - share) * PAI.rate("flop")
        return Workload(
            "job", TrainingArchitecture.PS_WORKER, flops, 0.0, 0.0, share * rate, replicas=replicas
        )

    fleet = [job(0.2, 1), job(0.2, 1), job(0.704, 10)]
    by_replica = fleet_shares(fleet, PAI, by_replica=True)["weights"]
    by_job = fleet_shares(fleet, PAI, by_replica=False)["weights"]
    assert by_replica == pytest.approx(0.62)
    assert by_job == pytest.approx(1.104 / 3)
    assert sum(fleet_shares(fleet, PAI, by_replica=True).values()) == pytest.approx(1.0)


def training_program(name: str, batch: int, optimizer: Optimizer) -> Program:
    graph = read_graph(architecture(name, batch=batch))
    return build_program(
        graph, mode=Mode.TRAIN, precision=Precision.FP32, optimizer=optimizer, runtime=Runtime.EAGER
    )


def test_bytes_of_resnet50_from_its_graph() -> None:
    job = workload_of(training_program("resnet50", 64, Optimizer.MOMENTUM), "resnet50", "allreduce_local")
    parameters = job.traffic_bytes / 3.5
    assert parameters == pytest.approx(102.2 * MEGA, rel=1e-3)
    assert job.traffic_bytes == pytest.approx(357.8 * MEGA, rel=1e-3)
    assert job.dense_bytes == pytest.approx(204.5 * MEGA, rel=1e-3)
    assert job.input_bytes == pytest.approx(38.5 * MEGA, rel=2e-3)
    assert job.flops == pytest.approx(CASES["resnet50"].flops, rel=0.03)


def test_bytes_of_bert_from_its_graph() -> None:
    program = training_program("bert_base_pretraining", 12, Optimizer.ADAM)
    job = workload_of(program, "bert", "allreduce_local")
    assert program.memory.parameter_bytes == pytest.approx(440 * MEGA, rel=2e-3)
    assert job.traffic_bytes == pytest.approx(1.54 * GIGA, rel=2e-3)
    assert job.traffic_bytes == ring_traffic_bytes(program.memory.parameter_bytes, 8)
    # Parameters and two slots: 1.03 GB dense and 0.286 GB of embeddings in the study.
    assert job.dense_bytes == pytest.approx(3 * program.memory.parameter_bytes, rel=1e-6)


# Parameter servers


@given(st.floats(1e3, 1e12), st.integers(2, 1000))
def test_placements_relate_as_their_formulas(model_bytes: float, workers: int) -> None:
    cc, cs, ncc, ncs = (busiest_node_bytes(p, model_bytes, workers) for p in ("cc", "cs", "ncc", "ncs"))
    assert cc / ncc == pytest.approx((workers - 1) / workers, rel=1e-12)
    assert cs / cc == pytest.approx(2 / workers, rel=1e-12)
    assert ncs / ncc == pytest.approx(1 / workers, rel=1e-12)


def test_the_published_ratios_at_eight_workers() -> None:
    cc, cs, ncc, ncs = (busiest_node_bytes(p, 97e6, 8) for p in ("cc", "cs", "ncc", "ncs"))
    assert cc / ncc == 7 / 8
    assert cs / cc == 1 / 4
    assert ncs / ncc == 1 / 8


# MB, ms and the recalled bounds in Gb/s of CC, CS, NCC, NCS.
BOUNDS = {
    "alexnet": (194, 16, (1232, 308, 1408, 176)),
    "resnet269": (390, 350, (122, 31, 140, 17)),
    "inception_v3": (91, 225, (44, 11, 50, 6)),
    "googlenet": (38, 100, (40, 10, 46, 6)),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bandwidth_that_hides_communication(name: str) -> None:
    megabytes, milliseconds, bounds = BOUNDS[name]
    for placement, expected in zip(("cc", "cs", "ncc", "ncs"), bounds, strict=True):
        step = server_step(
            placement,
            model_bytes=megabytes * 1e6,
            compute_s=milliseconds * 1e-3,
            workers=8,
            node_bytes_per_s=1e9,
        )
        assert step.bound_bytes_per_s * 8e-9 == pytest.approx(expected, rel=0.12)


def test_crossing_the_bound_moves_the_bottleneck() -> None:
    def step(bandwidth: float) -> tuple[str, float]:
        found = server_step("cs", model_bytes=97e6, compute_s=0.161, workers=8, node_bytes_per_s=bandwidth)
        return found.bottleneck, found.step_s

    bound = 4 * 7 / 8 * 97e6 / 0.161
    assert step(1.01 * bound) == ("compute", 0.161)
    bottleneck, slow_s = step(0.5 * bound)
    assert bottleneck == "node"
    assert slow_s == pytest.approx(0.322)


def test_a_server_per_rack_cuts_the_uplink_by_its_workers() -> None:
    flat = cross_rack_bytes(1e9, 32, 4, hierarchical=False)
    assert flat / cross_rack_bytes(1e9, 32, 4, hierarchical=True) == 8
    assert cross_rack_bytes(1e9, 32, 1, hierarchical=False) == 0
    slow = server_step(
        "ncs",
        model_bytes=1e9,
        compute_s=0.1,
        workers=32,
        node_bytes_per_s=1e11,
        racks=4,
        rack_bytes_per_s=1e10,
    )
    fast = server_step(
        "ncs",
        model_bytes=1e9,
        compute_s=0.1,
        workers=32,
        node_bytes_per_s=1e11,
        racks=4,
        rack_bytes_per_s=1e10,
        hierarchical=True,
    )
    assert (slow.bottleneck, fast.bottleneck) == ("rack", "rack")
    assert slow.step_s == pytest.approx(8 * fast.step_s)
    assert fast.samples_per_dollar(256, 8.0) == pytest.approx(8 * slow.samples_per_dollar(256, 8.0))


# Confidential links

# 1.56 G parameters in FP32; compute and link are assumptions that no check here depends on.
GPT2_XL = DdpJob(1_557_611_200 * 4, 4, 0.5, LinkSpec("pcie", 5e-6, 25e9))


def test_the_two_published_points_are_met() -> None:
    assert GPT2_XL.bucket_count(PUBLISHED_BUCKET_BYTES) == 238
    link = fit_confidential(GPT2_XL)
    assert slowdown(GPT2_XL, PUBLISHED_BUCKET_BYTES, link) == pytest.approx(41.6, rel=1e-12)
    assert slowdown(GPT2_XL, GPT2_XL.gradient_bytes, link) == pytest.approx(3.03, rel=1e-12)


def test_slowdown_falls_with_the_bucket() -> None:
    link = fit_confidential(GPT2_XL)
    sizes = [PUBLISHED_BUCKET_BYTES * 2**i for i in range(9)]
    found = [slowdown(GPT2_XL, size, link) for size in sizes]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert found[0] == pytest.approx(41.6)
    assert found[-1] == pytest.approx(3.03)


def test_overhead_grows_with_the_hops() -> None:
    """Linearly in 2 (N - 1): per message exactly, per byte as (N - 1) / N."""
    link = fit_confidential(GPT2_XL)
    alone = ConfidentialLink(link.alpha_s, float("inf"))
    added = [crypto_s(replace(GPT2_XL, ranks=n), 25 * MIB, alone) for n in range(2, 17)]
    assert [value / added[0] for value in added] == pytest.approx([n - 1 for n in range(2, 17)])
    both = [crypto_s(replace(GPT2_XL, ranks=n), 25 * MIB, link) / (n - 1) for n in range(2, 17)]
    assert max(both) / min(both) < 1.1


def test_without_enclaves_nothing_changes_by_a_bit() -> None:
    for bucket in (MIB, 25 * MIB, 1 << 33):
        assert step_s(GPT2_XL, bucket) == plain_step_s(GPT2_XL, bucket)
    free = ConfidentialLink(0.0, float("inf"))
    assert step_s(GPT2_XL, MIB, free) == plain_step_s(GPT2_XL, MIB)


def test_slowdown_rises_with_the_model() -> None:
    link = fit_confidential(GPT2_XL)
    # A sixteenth of the gradients for the same compute.
    small = replace(GPT2_XL, gradient_bytes=GPT2_XL.gradient_bytes / 16)
    assert slowdown(small, 25 * MIB, link) < slowdown(GPT2_XL, 25 * MIB, link)


def test_points_that_no_link_explains_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="above 0"):
        fit_confidential(GPT2_XL, large=(2e9, 1.5))
    with pytest.raises(InvalidRequest, match="differ"):
        fit_confidential(GPT2_XL, small=(25 * MIB, 9.0), large=(25 * MIB, 3.0))


# Scale-up


def test_traffic_of_an_epoch_goes_as_one_over_the_batch() -> None:
    job = LearnerWorkload(100e6, 1e-3, 1e-4)
    small, large = (
        scale_up(job, batch=batch, learners=4, box_bytes_per_s=50e9, samples=128_000) for batch in (4, 128)
    )
    assert small.epoch_bytes / large.epoch_bytes == 32
    more = scale_up(job, batch=4, learners=8, box_bytes_per_s=50e9, samples=128_000)
    assert more.epoch_bytes == small.epoch_bytes
    assert more.demand_bytes_per_s == 2 * small.demand_bytes_per_s


@given(st.integers(1, 512), st.integers(1, 64))
def test_the_limit_grows_with_the_batch_and_saturates(batch: int, learners: int) -> None:
    job = LearnerWorkload(100e6, 1e-3, 1e-4)

    def found(size: int) -> int:
        return scale_up(job, batch=size, learners=learners, box_bytes_per_s=50e9, samples=1000).learners

    assert found(batch) <= found(batch + 1)
    one = scale_up(job, batch=batch, learners=learners, box_bytes_per_s=50e9, samples=1000)
    most = one.learners or 50e9 * job.batch_s(batch) / (2 * job.model_bytes)
    assert one.speedup == pytest.approx(min(learners, most))
    assert one.speedup * 2 * job.model_bytes / job.batch_s(batch) <= 50e9 * (1 + 1e-12)


def test_a_service_follows_its_worst_customer() -> None:
    jobs = [LearnerWorkload(100e6, 1e-3, 1e-4), LearnerWorkload(400e6, 1e-3, 1e-4)]
    limits = [worst_of([job], batch=64, box_bytes_per_s=100e9) for job in jobs]
    assert worst_of(jobs, batch=64, box_bytes_per_s=100e9) == min(limits)
