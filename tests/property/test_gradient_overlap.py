from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from predictor.features.programs.work import ParameterGradient
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.collectives import all_reduce_floor_s, all_reduce_sent_bytes, all_reduce_time_s
from predictor.parallel.data_parallel import fill_buckets, schedule_gradients
from predictor.parallel.plan import Plan

Job: TypeAlias = tuple[tuple[ParameterGradient, ...], npt.NDArray[np.float64], Plan, ClusterSpec]

links = st.builds(
    LinkSpec,
    kind=st.sampled_from(["nvlink", "pcie", "infiniband", "efa", "something"]),
    latency_s=st.floats(1e-7, 1e-4),
    bytes_per_s=st.floats(1e8, 1e12),
)
clusters = st.builds(
    ClusterSpec,
    id=st.just("c"),
    device_id=st.just("d"),
    devices_per_node=st.integers(1, 16),
    node_count=st.integers(1, 8),
    intra_node=links,
    inter_node=links,
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    cluster = draw(clusters)
    steps = draw(st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=30))
    sizes = draw(
        st.lists(st.tuples(st.integers(1, 2**28), st.integers(0, len(steps) - 1)), min_size=1, max_size=40)
    )
    gradients = tuple(ParameterGradient(f"w{i}", size, op) for i, (size, op) in enumerate(sizes))
    plan = Plan(dp=draw(st.integers(1, cluster.device_count)), bucket_bytes=draw(st.integers(1, 2**27)))
    return gradients, np.cumsum(steps), plan, cluster


@given(jobs())
def test_exposed_communication_lies_between_nothing_and_all(job: Job) -> None:
    gradients, times, plan, cluster = job
    result = schedule_gradients(gradients, times, plan, cluster)
    assert 0 <= result.exposed_s <= result.communication_s
    if plan.dp > 1:
        last_ready = max(times[gradient.op_index] for gradient in gradients)
        assert result.finish_s >= last_ready
        assert np.isclose(result.finish_s - last_ready, result.exposed_s, rtol=1e-9, atol=1e-15)


@given(jobs())
def test_without_overlap_all_is_exposed_and_no_less_than_with_it(job: Job) -> None:
    gradients, times, plan, cluster = job
    overlapped = schedule_gradients(gradients, times, plan, cluster)
    after = schedule_gradients(gradients, times, replace(plan, overlap=False), cluster)
    assert np.isclose(after.exposed_s, after.communication_s, rtol=1e-6)
    assert after.communication_s == overlapped.communication_s
    assert after.exposed_s >= overlapped.exposed_s * (1 - 1e-9)


@given(jobs(), st.floats(1.0, 100.0))
def test_more_bandwidth_is_never_slower(job: Job, factor: float) -> None:
    gradients, times, plan, cluster = job
    faster = replace(
        cluster,
        intra_node=replace(cluster.intra_node, bytes_per_s=cluster.intra_node.bytes_per_s * factor),
        inter_node=replace(cluster.inter_node, bytes_per_s=cluster.inter_node.bytes_per_s * factor),
    )
    slow = schedule_gradients(gradients, times, plan, cluster)
    fast = schedule_gradients(gradients, times, plan, faster)
    assert fast.finish_s <= slow.finish_s * (1 + 1e-12)
    assert fast.exposed_s <= slow.exposed_s * (1 + 1e-9) + 1e-15


@given(jobs())
def test_bytes_are_conserved(job: Job) -> None:
    gradients, times, plan, cluster = job
    total = sum(gradient.size_bytes for gradient in gradients)
    buckets = fill_buckets(gradients, times, plan.bucket_bytes)
    assert sum(bucket.size_bytes for bucket in buckets) == total
    assert sum(bucket.gradient_count for bucket in buckets) == len(gradients)
    assert [bucket.ready_s for bucket in buckets] == sorted(bucket.ready_s for bucket in buckets)
    result = schedule_gradients(gradients, times, plan, cluster)
    assert np.isclose(result.bytes_sent, all_reduce_sent_bytes(total, plan.dp), rtol=1e-9)


@given(clusters, st.floats(1, 1e11), st.floats(1, 10), st.data())
def test_all_reduce_grows_with_its_tensor(
    cluster: ClusterSpec, size: float, factor: float, data: st.DataObject
) -> None:
    ranks = data.draw(st.integers(1, cluster.device_count))
    assert all_reduce_time_s(size, ranks, cluster) <= all_reduce_time_s(size * factor, ranks, cluster)
    assert all_reduce_floor_s(size, ranks, cluster) <= all_reduce_time_s(size, ranks, cluster)
