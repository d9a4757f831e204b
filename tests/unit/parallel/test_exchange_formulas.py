from dataclasses import replace

import numpy as np
import pytest

from predictor.compose.stage_costs import message_s
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import (
    KINDS,
    GroupShape,
    collective_floor_s,
    collective_time_s,
    group_shape,
    wires_of,
)
from predictor.parallel.exchange_formulas import algorithms, in_switch, one_shot, ring, tree
from predictor.parallel.placement import boundary_crosses_rack, group_place
from predictor.parallel.plan import Plan

NODE = LinkSpec("nvlink", 1e-6, 300e9)
PORT = LinkSpec("infiniband", 5e-6, 25e9)
CLUSTER = ClusterSpec("c", "d", 8, 16, NODE, PORT)
RACKS = replace(CLUSTER, nodes_per_rack=4, inter_rack=replace(PORT, bytes_per_s=5e9))
PAIRS = ClusterSpec("p", "d", 4, 2, LinkSpec("pcie", 1.5e-6, 31.5e9), PORT, devices_per_island=2, island=NODE)
GB = np.array([1e9])


def wires(place: GroupShape, cluster: ClusterSpec = CLUSTER):
    return wires_of(place, cluster, lambda link: 1.0)


def test_algorithms_by_hand() -> None:
    node = wires(GroupShape(8, 1, 8, 8))
    assert ring(2)(GB, node)[0] == pytest.approx(14e-6 + 2 * 7 / 8 * 1e9 / 300e9)
    assert in_switch(GB, node)[0] == pytest.approx(2e-6 + 9 / 8 * 1e9 / 300e9)
    assert one_shot(GB, node)[0] == pytest.approx(1e-6 + 7 * 1e9 / 300e9)
    nodes = wires(GroupShape(8, 16, 8, 128))
    assert tree(GB, nodes)[0] == pytest.approx(14e-6 + 2 * 4 * 5e-6 + 2 * 1e9 / 200e9)


def test_a_summing_switch_beats_the_ring_and_the_link() -> None:
    place = GroupShape(8, 1, 8, 8)
    summing = replace(CLUSTER, intra_node=replace(NODE, in_switch=True))
    ring_s = collective_floor_s("all_reduce", GB, place, CLUSTER)[0]
    switch_s = collective_floor_s("all_reduce", GB, place, summing)[0]
    assert switch_s < ring_s
    # Bus bandwidth as nccl-tests prints it: above the rate of the link, and not clamped.
    assert 2 * 7 / 8 * 1e9 / switch_s > NODE.bytes_per_s
    assert collective_floor_s("all_gather", GB, place, summing) == collective_floor_s(
        "all_gather", GB, place, CLUSTER
    )


def test_one_shot_wins_for_small_tensors_only() -> None:
    place, sizes = GroupShape(8, 1, 8, 8), np.array([1e3, 1e9])
    own = collective_floor_s("all_reduce", sizes, place, CLUSTER, own_kernels=True)
    library = collective_floor_s("all_reduce", sizes, place, CLUSTER)
    assert own[0] < library[0]
    assert own[1] == library[1]
    assert one_shot not in algorithms("all_reduce", wires(GroupShape(8, 2, 8, 16)), own_kernels=True)


def test_many_nodes_take_a_tree_for_small_tensors_and_a_ring_for_large_ones() -> None:
    place = group_shape(128, CLUSTER)
    assert collective_time_s("all_reduce", 8.0, place, CLUSTER) < 6e-6 + 14e-6 + 30 * 5e-6
    large = collective_time_s("all_reduce", 1e10, place, CLUSTER)
    assert large == pytest.approx(6e-6 + 164e-6 + 2 * 15 / 16 * 1e10 / (200e9 * 0.84), rel=0.01)


def test_racks_slow_what_leaves_them() -> None:
    inside, beyond = group_shape(32, RACKS), group_shape(128, RACKS)
    assert (inside.racks, beyond.racks, beyond.smallest_rack) == (1, 4, 32)
    assert collective_time_s("all_reduce", 1e9, inside, RACKS) == collective_time_s(
        "all_reduce", 1e9, group_shape(32, CLUSTER), CLUSTER
    )
    flat = collective_time_s("all_to_all", 1e9, group_shape(128, CLUSTER), CLUSTER)
    racked = collective_time_s("all_to_all", 1e9, beyond, RACKS)
    # Three quarters of what a rank sends leaves its rack, over a fifth of its port.
    assert racked == pytest.approx(0.75e9 / (5e9 * 0.84), rel=0.1)
    assert racked > 3 * flat


def test_groups_of_a_plan_know_their_racks() -> None:
    place = group_place(Plan(tp=8, dp=16), "dp_cp", RACKS)
    assert (place.nodes, place.racks, place.smallest_rack) == (16, 4, 4)
    assert group_place(Plan(tp=8, dp=16), "tp", RACKS).racks == 1


def test_stages_know_when_their_messages_leave_the_rack() -> None:
    plan = Plan(tp=8, pp=16)
    assert boundary_crosses_rack(plan, RACKS).tolist() == [(stage + 1) % 4 == 0 for stage in range(16)]
    assert not boundary_crosses_rack(plan, CLUSTER).any()
    near, far = (message_s(GB, True, plan, RACKS, racks=flag)[0] for flag in (False, True))
    # Each of eight ranks sends its part over its share of port or uplink; the node gathers them.
    assert far - near == pytest.approx(1e9 / 8 * (1 / 5e9 - 1 / 25e9) / 0.84, rel=0.06)


def test_an_island_is_fast_for_whom_it_holds() -> None:
    pair, four = group_place(Plan(tp=2, dp=2), "tp", PAIRS), group_place(Plan(tp=4), "tp", PAIRS)
    assert (pair.in_island, four.in_island) == (True, False)
    assert not group_place(Plan(tp=2, dp=2), "dp_cp", PAIRS).in_island
    assert group_shape(2, PAIRS).in_island
    fast, slow = (collective_time_s("all_reduce", 1e9, place, PAIRS) for place in (pair, four))
    assert fast == pytest.approx(1e9 / (300e9 * 0.72), rel=0.05)
    assert slow == pytest.approx(2 * 3 / 4 * 1e9 / (31.5e9 * 0.6), rel=0.05)


def test_rails_send_what_changes_rail_through_the_node() -> None:
    narrow = replace(CLUSTER, intra_node=replace(NODE, bytes_per_s=20e9))
    place = GroupShape(8, 2, 8, 16)
    plain = collective_time_s("all_to_all", 1e9, place, narrow)
    assert collective_time_s("all_to_all", 1e9, place, replace(narrow, rails=True)) > plain
    assert collective_time_s("all_reduce", 1e9, place, replace(narrow, rails=True)) == collective_time_s(
        "all_reduce", 1e9, place, narrow
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["intra_node", "inter_node", "inter_rack"])
def test_more_bandwidth_never_slows_and_more_racks_never_speed_up(kind: str, field: str) -> None:
    link = getattr(RACKS, field)
    faster = replace(RACKS, **{field: replace(link, bytes_per_s=2 * link.bytes_per_s)})
    sizes = np.geomspace(1, 1e10, 20)
    place = group_shape(128, RACKS)
    times = collective_time_s(kind, sizes, place, RACKS)
    assert (collective_time_s(kind, sizes, place, faster) <= times).all()
    assert (collective_time_s(kind, sizes, group_shape(128, CLUSTER), CLUSTER) <= times).all()
    assert (collective_floor_s(kind, sizes, place, RACKS) < times).all()
