import numpy as np
import pytest

from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import (
    KINDS,
    GroupShape,
    all_reduce_time_s,
    collective_time_s,
    group_shape,
    sent_bytes,
)
from predictor.parallel.placement import boundary_crosses_node, group_members, group_place, shard_place
from predictor.parallel.plan import GROUPS, Plan, axes_of

NODE, PORT = LinkSpec("nvlink", 1e-6, 300e9), LinkSpec("infiniband", 5e-6, 25e9)
CLUSTER = ClusterSpec("c", "d", 8, 16, NODE, PORT)


def test_tensor_groups_stay_in_a_node_and_replicas_span_them() -> None:
    plan = Plan(tp=8, dp=16)
    assert group_place(plan, "tp", CLUSTER) == GroupShape(8, 1, 8, 8)
    assert group_place(plan, "dp", CLUSTER) == GroupShape(1, 16, 1, 16)
    half = Plan(tp=4, dp=8)
    assert group_place(half, "tp", CLUSTER) == GroupShape(4, 1, 4, 4)
    assert group_place(half, "dp", CLUSTER) == GroupShape(2, 4, 2, 8)


def test_groups_that_straddle_nodes_count_the_worst() -> None:
    # Ranks 6, 7 and 8: two on the first node, one on the second.
    assert group_place(Plan(tp=3, dp=3), "tp", CLUSTER) == GroupShape(2, 2, 1, 3)


def test_placement_decides_who_is_near() -> None:
    apart = Plan(tp=2, dp=8, placement=("dp", "cp", "ep", "tp", "pp"))
    assert group_place(apart, "tp", CLUSTER).nodes == 2
    assert group_place(apart, "dp", CLUSTER) == GroupShape(8, 1, 8, 8)


@pytest.mark.parametrize("group", GROUPS)
def test_members_are_those_of_the_plan(group: str) -> None:
    plan = Plan(tp=2, cp=2, dp=4, ep=2, pp=2, placement=("cp", "tp", "dp", "pp", "ep"))
    found = group_members((2, 2, 2, 2, 2), plan.placement, axes_of(group))
    assert {tuple(row) for row in found} == {plan.group_ranks(group, rank) for rank in range(32)}


def test_hybrid_shards_are_neighbours() -> None:
    plan = Plan(dp=32, zero=3, shard_group=8)
    inside, across = shard_place(plan, "dp_cp", CLUSTER, 8)
    assert inside == GroupShape(8, 1, 8, 8)
    assert across == GroupShape(1, 4, 1, 4)
    alone, all_ranks = shard_place(plan, "dp_cp", CLUSTER, 1)
    assert (alone.ranks, all_ranks) == (1, group_place(plan, "dp_cp", CLUSTER))
    with pytest.raises(InvalidPlan, match="shards do not divide"):
        shard_place(plan, "dp_cp", CLUSTER, 5)


def test_stages_inside_a_node_and_between() -> None:
    assert boundary_crosses_node(Plan(tp=4, pp=4), CLUSTER).tolist() == [False, True, False, True]
    assert boundary_crosses_node(Plan(tp=8, pp=2), CLUSTER).tolist() == [True, True]
    with pytest.raises(InvalidPlan, match="129 devices"):
        group_place(Plan(dp=129), "dp", CLUSTER)


@pytest.mark.parametrize("ranks", [1, 2, 8, 9, 16, 24])
def test_all_reduce_is_the_one_of_data_parallelism(ranks: int) -> None:
    sizes = np.array([0.0, 1.0, 1e6, 1e9])
    times = collective_time_s("all_reduce", sizes, group_shape(ranks, CLUSTER), CLUSTER)
    expected = [all_reduce_time_s(size, ranks, CLUSTER) for size in sizes.tolist()]
    assert times.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_collectives_of_one_rank_or_nothing_are_free_and_grow_with_size(kind: str) -> None:
    place = GroupShape(8, 2, 8, 16)
    assert collective_time_s(kind, 1e9, GroupShape(1, 1, 1, 1), CLUSTER) == 0
    assert collective_time_s(kind, 0.0, place, CLUSTER) == 0
    times = collective_time_s(kind, np.geomspace(1, 1e10, 50), place, CLUSTER)
    assert (np.diff(times) > 0).all()
    faster = ClusterSpec("c", "d", 8, 16, NODE, LinkSpec("infiniband", 5e-6, 50e9))
    assert collective_time_s(kind, 1e9, place, faster) <= collective_time_s(kind, 1e9, place, CLUSTER)


def test_a_reduction_and_a_gathering_are_one_all_reduce() -> None:
    place = GroupShape(4, 2, 4, 8)
    parts = [sent_bytes(kind, 1e6, 8) for kind in ("reduce_scatter", "all_gather")]
    assert sum(parts) == pytest.approx(sent_bytes("all_reduce", 1e6, 8))
    half = collective_time_s("all_gather", 1e9, place, CLUSTER)
    assert 2 * half == pytest.approx(collective_time_s("all_reduce", 1e9, place, CLUSTER), rel=1e-3)


def test_an_all_to_all_leaves_the_node_through_each_port() -> None:
    # 16 ranks of 8 a node: half of what a rank sends goes to the other node over its own port.
    time_s = collective_time_s("all_to_all", 1e9, GroupShape(8, 2, 8, 16), CLUSTER)
    assert time_s == pytest.approx(0.5e9 / (25e9 * 0.84), rel=0.02)
    with pytest.raises(InvalidPlan, match="unknown"):
        collective_time_s("gossip", 1.0, GroupShape(2, 1, 2, 2), CLUSTER)
