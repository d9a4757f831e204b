import numpy as np
import pytest

from predictor.features.programs.work import ParameterGradient
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel import data_parallel
from predictor.parallel.plan import Plan
from predictor.parallel.zero import fill_buckets, replicas_of, sharded_pass, stream_end_s
from predictor.units import MIB

CLUSTER = ClusterSpec("c", "d", 8, 16, LinkSpec("nvlink", 1e-6, 300e9), LinkSpec("infiniband", 5e-6, 25e9))


def test_buckets_are_those_of_data_parallelism() -> None:
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 9 * MIB, 60)
    ends = np.cumsum(rng.uniform(0, 1e-3, 60))
    old = data_parallel.fill_buckets(
        [ParameterGradient(f"w{i}", int(size), i) for i, size in enumerate(sizes)], ends, 25 * MIB
    )
    new = fill_buckets(ends, sizes.astype(float), 25 * MIB)
    assert new.size_bytes.tolist() == [bucket.size_bytes for bucket in old]
    assert new.ready_s.tolist() == [bucket.ready_s for bucket in old]


def test_a_stream_takes_tasks_in_order() -> None:
    ready, cost = np.array([0.0, 1.0, 5.0, 5.5]), np.array([2.0, 2.0, 1.0, 1.0])
    clock = 0.0
    for at, takes in zip(ready, cost, strict=True):
        clock = max(clock, at) + takes
    assert stream_end_s(ready, cost) == clock
    assert stream_end_s(ready[:0], cost[:0]) == 0.0


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_reduction_and_a_gathering_move_what_an_all_reduce_moves(zero: int) -> None:
    shared, whole = replicas_of(Plan(dp=16, zero=zero), CLUSTER), replicas_of(Plan(dp=16), CLUSTER)
    moved = shared.reduce_sent_bytes(1e9) + shared.gather_sent_bytes(1e9)
    assert moved == pytest.approx(whole.reduce_sent_bytes(1e9)) == 2 * 15 / 16 * 1e9


def test_hybrid_sharding_gathers_inside_nodes_only() -> None:
    hybrid = replicas_of(Plan(dp=32, zero=3, shard_group=8), CLUSTER)
    full = replicas_of(Plan(dp=32, zero=3), CLUSTER)
    size = np.array([1e9])
    assert (hybrid.shards, hybrid.replica.ranks, full.shards) == (8, 4, 32)
    assert hybrid.gather_s(size, CLUSTER)[0] < full.gather_s(size, CLUSTER)[0]
    assert hybrid.reduce_sent_bytes(8e9) == pytest.approx(7e9 + 2 * 3 / 4 * 1e9)


def test_experts_are_shared_among_those_that_hold_them() -> None:
    plan = Plan(dp=16, ep=4, zero=1)
    assert replicas_of(plan, CLUSTER).shards == 16
    experts = replicas_of(plan, CLUSTER, experts=True)
    assert (experts.count, experts.shards) == (4, 4)


def test_ranks_of_a_sequence_average_gradients_too() -> None:
    assert replicas_of(Plan(dp=4, cp=2), CLUSTER).count == 8


def test_gathers_hide_behind_the_piece_before() -> None:
    ones = np.ones(4)
    hidden = sharded_pass(ones, 2 * ones, 0.5 * ones, 0.5 * ones, overlap=True)
    # Forward waits for the first gathering; backward has the last piece, and waits for the last reduction.
    assert hidden.forward_s == 4.5
    assert hidden.backward_s == 8.5
    exposed = sharded_pass(ones, 2 * ones, 0.5 * ones, 0.5 * ones, overlap=False)
    assert (exposed.forward_s, exposed.backward_s) == (6.0, 8 + 3 * 0.5 + 4 * 0.5)


def test_slow_links_set_the_pace() -> None:
    ones = np.ones(3)
    slow = sharded_pass(ones, ones, 5 * ones, 5 * ones, overlap=True)
    assert slow.forward_s == 3 * 5 + 1
    assert slow.exposed_s[0] == slow.forward_s - 3
    # Two gatherings and three reductions follow one another from the beginning on.
    assert slow.backward_s == 2 * 5 + 3 * 5


def test_pieces_without_weights_gather_nothing() -> None:
    ones, none = np.ones(3), np.zeros(3)
    free = sharded_pass(ones, ones, none, none, overlap=True)
    assert (free.forward_s, free.backward_s, free.exposed_s) == (3.0, 3.0, (0.0, 0.0))
