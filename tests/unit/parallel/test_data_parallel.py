import numpy as np
import pytest

from predictor.errors import InvalidPlan
from predictor.features.programs.work import ParameterGradient
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import all_reduce_sent_bytes, all_reduce_time_s
from predictor.parallel.data_parallel import Bucket, OverlapResult, fill_buckets, schedule_gradients
from predictor.parallel.plan import Plan
from predictor.units import MIB

CLUSTER = ClusterSpec("c", "d", 8, 4, LinkSpec("nvlink", 1e-6, 100e9), LinkSpec("infiniband", 5e-6, 10e9))


def gradients(*sizes: int) -> tuple[ParameterGradient, ...]:
    return tuple(ParameterGradient(f"w{i}", size, i) for i, size in enumerate(sizes))


def test_buckets_fill_in_ready_order() -> None:
    shuffled = (
        ParameterGradient("late", 3 * MIB, 3),
        ParameterGradient("first", MIB // 2, 0),
        ParameterGradient("third", 5 * MIB, 2),
        ParameterGradient("second", MIB, 1),
    )
    assert fill_buckets(shuffled, [0.1, 0.2, 0.3, 0.4], 4 * MIB) == (
        Bucket(3 * MIB // 2, 0.2, 2),
        Bucket(5 * MIB, 0.3, 1),
        Bucket(3 * MIB, 0.4, 1),
    )


def test_the_first_bucket_is_small_like_torchs() -> None:
    sizes = [
        bucket.size_bytes for bucket in fill_buckets(gradients(*[MIB] * 60), np.arange(60) * 1e-3, 25 * MIB)
    ]
    assert sizes == [MIB, 25 * MIB, 25 * MIB, 9 * MIB]


def test_one_replica_sends_nothing() -> None:
    assert schedule_gradients(gradients(MIB), [1.0], Plan(), CLUSTER) == OverlapResult()
    assert schedule_gradients((), [], Plan(dp=4), CLUSTER) == OverlapResult()


def test_a_slow_backward_hides_all_but_the_last_bucket() -> None:
    plan = Plan(dp=4, bucket_bytes=8 * MIB)
    result = schedule_gradients(gradients(8 * MIB, 8 * MIB, 8 * MIB), [1.0, 2.0, 3.0], plan, CLUSTER)
    last_s = all_reduce_time_s(8 * MIB, 4, CLUSTER)
    assert result.exposed_s == pytest.approx(last_s)
    assert result.finish_s == pytest.approx(3.0 + last_s)
    assert result.communication_s == pytest.approx(3 * last_s)
    assert result.bucket_count == 3


def test_a_fast_backward_queues_the_buckets() -> None:
    plan = Plan(dp=4, bucket_bytes=8 * MIB)
    result = schedule_gradients(gradients(8 * MIB, 8 * MIB, 8 * MIB), [1e-9, 2e-9, 3e-9], plan, CLUSTER)
    assert result.exposed_s == pytest.approx(result.communication_s, rel=1e-4)


def test_without_overlap_everything_waits_for_backward() -> None:
    plan = Plan(dp=4, bucket_bytes=8 * MIB, overlap=False)
    result = schedule_gradients(gradients(8 * MIB, 8 * MIB), [1.0, 2.0], plan, CLUSTER)
    assert result.exposed_s == pytest.approx(result.communication_s)
    assert result.finish_s == pytest.approx(2.0 + result.communication_s)


def test_bytes_are_those_of_all_gradients() -> None:
    sizes = (MIB, 3 * MIB, 7 * MIB, 11)
    result = schedule_gradients(gradients(*sizes), np.array([1.0, 2.0, 3.0, 4.0]), Plan(dp=16), CLUSTER)
    assert result.bytes_sent == pytest.approx(all_reduce_sent_bytes(sum(sizes), 16))


def test_a_gradient_of_an_op_that_does_not_exist() -> None:
    with pytest.raises(InvalidPlan, match="after op 2, but 2 op times"):
        schedule_gradients(gradients(1, 1, 1), [1.0, 2.0], Plan(dp=2), CLUSTER)


def test_more_replicas_than_the_cluster_holds() -> None:
    with pytest.raises(InvalidPlan, match="33 ranks"):
        schedule_gradients(gradients(MIB), [1.0], Plan(dp=33), CLUSTER)
