import pytest

from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import (
    ACHIEVED_FRACTION,
    GroupShape,
    all_reduce_floor_s,
    all_reduce_sent_bytes,
    all_reduce_time_s,
    collective_time_s,
    dispatch_time_s,
    group_shape,
)
from predictor.units import MIB


def cluster(per_node: int = 8, nodes: int = 4, intra: float = 300e9, inter: float = 25e9) -> ClusterSpec:
    return ClusterSpec(
        "c",
        "d",
        per_node,
        nodes,
        LinkSpec("nvlink", 1e-6, intra),
        LinkSpec("infiniband", 5e-6, inter),
    )


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (1, GroupShape(1, 1, 1)),
        (8, GroupShape(8, 1, 8)),
        (12, GroupShape(8, 2, 4)),
        (32, GroupShape(8, 4, 8)),
    ],
)
def test_groups_fill_nodes(size: int, shape: GroupShape) -> None:
    assert group_shape(size, cluster()) == shape


@pytest.mark.parametrize("size", [0, -1, 33])
def test_impossible_groups(size: int) -> None:
    with pytest.raises(InvalidPlan):
        all_reduce_time_s(1e6, size, cluster())


def test_ring_bytes() -> None:
    assert all_reduce_sent_bytes(100, 1) == 0
    assert all_reduce_sent_bytes(100, 2) == 100
    assert all_reduce_sent_bytes(100, 4) == 150


def test_floor_in_one_node_is_the_ring_formula() -> None:
    seconds = all_reduce_floor_s(1e9, 4, cluster())
    assert seconds == pytest.approx(1.5e9 / 300e9 + 2 * 3 * 1e-6)


def test_floor_over_nodes_is_set_by_the_slower_link() -> None:
    # 16 ranks on 2 nodes: 2 (2 - 1) / 2 of the tensor crosses 8 ports of 10 GB/s.
    seconds = all_reduce_floor_s(1e9, 16, cluster(inter=10e9))
    assert seconds == pytest.approx(1e9 / (8 * 10e9) + 2 * 7 * 1e-6 + 2 * 5e-6)
    # With fast ports the node's own link rules.
    fast = all_reduce_floor_s(1e9, 16, cluster(inter=1e12))
    assert fast == pytest.approx(1.75e9 / 300e9 + 2 * 7 * 1e-6 + 2 * 5e-6)


def test_a_node_with_few_ranks_has_few_ports() -> None:
    assert all_reduce_floor_s(1e9, 9, cluster()) > all_reduce_floor_s(1e9, 16, cluster())


def test_one_rank_or_nothing_to_send_takes_no_time() -> None:
    assert all_reduce_time_s(1e9, 1, cluster()) == 0
    assert all_reduce_time_s(0, 8, cluster()) == 0


def test_expected_time_is_above_the_floor() -> None:
    for size in (1, MIB, 25 * MIB, 1 << 30):
        for ranks in (2, 8, 16, 32):
            assert all_reduce_time_s(size, ranks, cluster()) > all_reduce_floor_s(size, ranks, cluster())


# Published measurements, bytes -> µs: AIConfigurator NCCL tables (512 MiB in half precision) and a
# nccl-tests log of eight nodes (CoreWeave). The alpha-beta form without a learned part must land near them.
@pytest.mark.parametrize(
    ("intra", "inter", "per_node", "ranks", "bus_bytes_per_s", "tolerance"),
    [(300e9, 25e9, 8, 8, 222e9, 0.1), (900e9, 50e9, 8, 8, 701e9, 0.15), (450e9, 50e9, 8, 64, 379e9, 0.25)],
)
def test_large_all_reduces_reach_the_published_bus_bandwidth(
    intra: float, inter: float, per_node: int, ranks: int, bus_bytes_per_s: float, tolerance: float
) -> None:
    size = 512 * MIB
    seconds = all_reduce_time_s(size, ranks, cluster(per_node, ranks // per_node, intra, inter))
    assert all_reduce_sent_bytes(size, ranks) / seconds == pytest.approx(bus_bytes_per_s, rel=tolerance)


def test_fractions_are_fractions() -> None:
    assert all(0 < fraction <= 1 for fraction in ACHIEVED_FRACTION.values())


@pytest.mark.parametrize("ranks", [8, 16, 32])
def test_tokens_that_travel_once_never_take_longer(ranks: int) -> None:
    where, place = cluster(), group_shape(ranks, cluster())
    every = collective_time_s("all_to_all", 256 * MIB, place, where)
    times = [dispatch_time_s(256 * MIB, copies, place, where) for copies in (1, 2, 4, 8, 64)]
    assert times[0] == every
    assert times == sorted(times, reverse=True)
    if ranks == 8:
        assert times[-1] == every


def test_copies_to_one_node_travel_as_one() -> None:
    where = cluster(intra=1e15)
    once = dispatch_time_s(256 * MIB, 8, group_shape(16, where), where)
    share = 2 * (1 - 0.5**8) / 8
    assert once == pytest.approx(
        collective_time_s("all_to_all", 256 * MIB * share, group_shape(16, where), where)
    )
