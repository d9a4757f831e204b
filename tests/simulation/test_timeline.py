"""The timeline against the brute-force simulator, on random small graphs, plans and clusters."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from predictor.compose.plan_time import plan_time
from predictor.compose.rank_costs import rank_costs
from predictor.compose.timeline import COMPUTE, REPLICAS, overlaps, timeline
from predictor.errors import InvalidPlan
from predictor.features.lowering.layers import segments
from predictor.features.programs.program import program_of
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.plan import AXES, Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Mode, Optimizer, Schedule
from tests.simulation.ranks import RankSimulator, is_simulated
from tests.unit.features.graphs import Sketch

CASES = 200


def random_graph(rng: np.random.Generator, tp: int, rows: int = 8) -> RankProgram:
    """A chain of layers with residual branches, exchanges where tensor-parallel ranks meet, tied ends."""
    sketch = Sketch()
    width = int(rng.choice([64, 256, 1024]))
    x = sketch.input("x", rows, width)
    first = ""
    count = int(rng.integers(4, 10))
    for layer in range(count):
        tied = layer == count - 1 and rng.random() < 0.4
        weight = first if tied else sketch.parameter(f"w{layer}", width, width)
        first = first or weight
        source = x
        if tp > 1 and rng.random() < 0.6:
            source = sketch.node(
                "GradientAllReduce", [x], (rows, width), domain="perfcast", group="tp", ranks=tp
            )
        y = sketch.node("Linear", [source, weight], (rows, width), domain="perfcast")
        if tp > 1 and rng.random() < 0.6:
            y = sketch.node("AllReduce", [y], (rows, width), domain="perfcast", group="tp", ranks=tp)
        if rng.random() < 0.5:
            y = sketch.node("Relu", [y], (rows, width))
        x = sketch.node("Add", [x, y], (rows, width)) if rng.random() < 0.4 else y
    graph = sketch.graph(x, batch=rows)
    program = program_of(graph, mode=Mode.TRAIN, optimizer=Optimizer.ADAM)
    return RankProgram(program, graph, segments(graph))


def random_plan(rng: np.random.Generator) -> Plan:
    dp, tp, pp, cp = (int(rng.choice(choices)) for choices in ([1, 2, 4], [1, 2], [1, 2, 4], [1, 1, 2]))
    schedule = Schedule(rng.choice(list(Schedule)))
    zero = int(rng.integers(0, 4))
    interleaved = schedule is Schedule.INTERLEAVED and pp > 1
    microbatches = int(rng.integers(1, 4)) * pp if interleaved else int(rng.integers(1, 9))
    return Plan(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero=zero,
        shard_group=int(rng.choice([1, dp])) if zero and rng.random() < 0.3 else None,
        microbatches=microbatches,
        schedule=schedule,
        virtual_stages=2 if interleaved else 1,
        sequence_parallel=bool(rng.random() < 0.3),
        bucket_bytes=int(10 ** rng.uniform(4, 7)),
        overlap=bool(rng.random() < 0.8),
        placement=tuple(rng.permutation(AXES)),
    )


def random_cluster(rng: np.random.Generator, devices: int) -> ClusterSpec:
    per_node = int(rng.choice([1, 2, 4, 8]))
    links = [
        LinkSpec(kind, float(10 ** rng.uniform(-7, -5)), float(10 ** rng.uniform(8.5, 11.5)))
        for kind in ("nvlink", "infiniband")
    ]
    return ClusterSpec("c", "d", per_node, -(-devices // per_node), links[0], links[1])


def random_case(seed: int) -> tuple[RankProgram, np.ndarray, Plan, ClusterSpec] | None:
    rng = np.random.default_rng(seed)
    plan = random_plan(rng)
    rank = random_graph(rng, plan.tp)
    cluster = random_cluster(rng, plan.device_count)
    kernels = np.array([0.0 if op.work.family == "communication" else 1.0 for op in rank.program.ops])
    kernels *= 10 ** rng.uniform(-5, -3, len(kernels))
    return (rank, kernels, plan, cluster) if is_simulated(plan) else None


def test_timeline_is_that_of_all_ranks_simulated() -> None:
    checked, seed, groups = 0, 0, set()
    while checked < CASES:
        seed += 1
        case = random_case(seed)
        if case is None:
            continue
        rank, kernels, plan, cluster = case
        columns = rank_costs(rank, kernels, 1.0, plan, cluster)
        try:
            found = plan_time(columns, plan, cluster, training=True)
        except InvalidPlan:
            # Fewer pieces than virtual stages, or weight gradients put off under ZeRO-3.
            continue
        simulated = RankSimulator(rank, kernels.tolist(), plan, cluster, found.stages.ends.tolist()).end_s()
        error = abs(found.total_s / simulated - 1)
        assert error <= 1e-3, f"seed {seed}: {plan}, {found.total_s} s against {simulated} s"
        events = timeline(columns, plan, cluster, training=True)
        assert max(event.end_s for event in events.events) == pytest.approx(simulated, rel=1e-3)
        groups.add((plan.schedule, plan.zero, plan.pp > 1))
        checked += 1
    assert len(groups) > 20


def test_exchanges_inside_the_graph_go_first_on_a_shared_link() -> None:
    """All ranks in one node, and gradients that are averaged while tensor ranks still exchange."""
    checked = held_up = 0
    for seed in range(500, 570):
        rng = np.random.default_rng(seed)
        chosen = {"tp": 2, "dp": int(rng.choice([2, 4])), "zero": int(rng.integers(0, 2))}
        plan = replace(random_plan(rng), **chosen, shard_group=None, overlap=True)
        rank = random_graph(rng, plan.tp, rows=1024)
        cluster = random_cluster(rng, plan.device_count)
        cluster = replace(cluster, devices_per_node=plan.device_count, node_count=1)
        kernels = np.array([0.0 if op.work.family == "communication" else 1.0 for op in rank.program.ops])
        kernels *= 10 ** rng.uniform(-4.5, -3.5, len(kernels))
        columns = rank_costs(rank, kernels, 1.0, plan, cluster)
        alone = replace(columns, held_s={})
        try:
            found = plan_time(columns, plan, cluster, training=True)
        except InvalidPlan:
            continue
        simulated = RankSimulator(rank, kernels.tolist(), plan, cluster, found.stages.ends.tolist()).end_s()
        assert found.total_s == pytest.approx(simulated, rel=1e-3), f"seed {seed}: {plan}"
        events = timeline(columns, plan, cluster, training=True)
        assert max(event.end_s for event in events.events) == pytest.approx(simulated, rel=1e-3)
        without_s = plan_time(alone, plan, cluster, training=True).total_s
        assert without_s <= found.total_s
        held_up += found.total_s > without_s * 1.01
        checked += 1
    assert checked > 50
    assert held_up > 5


def test_streams_do_one_thing_at_a_time_and_parts_add_up() -> None:
    checked = 0
    for seed in range(300, 340):
        case = random_case(seed)
        if case is None:
            continue
        rank, kernels, plan, cluster = case
        columns = rank_costs(rank, kernels, 1.1, plan, cluster)
        try:
            found = timeline(columns, plan, cluster, training=True)
        except InvalidPlan:
            continue
        checked += 1
        whole = plan_time(columns, plan, cluster, training=True)
        assert sum(whole.breakdown_s.values()) == pytest.approx(whole.total_s, rel=1e-12)
        assert min(whole.breakdown_s.values()) >= 0
        for stage in range(plan.pp):
            assert 0 <= found.waiting_s(stage) <= found.total_s
            for stream in (COMPUTE, REPLICAS):
                assert not overlaps(found.of(stage, stream)), (seed, stage, stream)
        assert all(event.duration_s >= 0 for event in found.events)
        kinds = {event.kind for event in found.events if event.stream == COMPUTE}
        assert {"forward", "backward", "optimizer"} <= kinds
        if plan.dp * plan.cp > 1:
            assert any(event.stream == REPLICAS for event in found.events)
    assert checked > 25


def test_faster_links_never_slow_an_iteration() -> None:
    for seed in range(400, 430):
        case = random_case(seed)
        if case is None:
            continue
        rank, kernels, plan, cluster = case
        totals = []
        for factor in (1.0, 1.5, 4.0):
            links = {
                name: replace(getattr(cluster, name), bytes_per_s=getattr(cluster, name).bytes_per_s * factor)
                for name in ("intra_node", "inter_node")
            }
            faster = replace(cluster, **links)
            columns = rank_costs(rank, kernels, 1.0, plan, faster)
            try:
                totals.append(plan_time(columns, plan, faster, training=True).total_s)
            except InvalidPlan:
                break
        assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(totals))
