"""What replicas exchange: gradients in buckets beside backward, and the weights that ZeRO and FSDP share.

Every replica computes the gradients of its own samples; ranks of one sequence (cp) are replicas here too.

    zero 0      all-reduce of gradients (DDP)
    zero 1, 2   reduce-scatter of gradients, all-gather of the updated weights after the step; with 2 the
                gradients of every microbatch, with 1 those of the last alone
    zero 3      as FSDP: all-gather of each piece's weights before it runs, forward and backward, and a
                reduce-scatter of its gradients after, all in every microbatch
    shard_group hybrid: the above inside groups of that size, then an all-reduce of shards between them

One stream carries these exchanges in the order in which they are asked for, beside the kernels. Rajbhandari
et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape, collective_time_s, sent_bytes
from predictor.parallel.data_parallel import FIRST_BUCKET_BYTES
from predictor.parallel.placement import group_place, shard_place
from predictor.parallel.plan import Plan

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ranks that average one kind of gradient.

    Attributes:
        whole: all of them. shard: those that share one copy, replica: those that hold the same shard.
        zero: how much they share.
    """

    whole: GroupShape
    shard: GroupShape
    replica: GroupShape
    zero: int

    @property
    def count(self) -> int:
        """Replicas in all."""
        return self.whole.ranks

    @property
    def shards(self) -> int:
        """Parts into which one copy is cut."""
        return self.shard.ranks if self.zero else 1

    def reduce_s(self, size_bytes: FloatArray, cluster: ClusterSpec) -> FloatArray:
        """(n,) time to average gradients of these sizes; a shard is what each rank keeps under ZeRO."""
        if not self.zero:
            return collective_time_s("all_reduce", size_bytes, self.whole, cluster)
        inside = collective_time_s("reduce_scatter", size_bytes, self.shard, cluster)
        return inside + collective_time_s("all_reduce", size_bytes / self.shards, self.replica, cluster)

    def gather_s(self, size_bytes: FloatArray, cluster: ClusterSpec) -> FloatArray:
        """(n,) time until every rank of a copy has weights of these sizes again."""
        return collective_time_s("all_gather", size_bytes, self.shard, cluster)

    def reduce_sent_bytes(self, size_bytes: float) -> float:
        """Bytes that a rank sends to average this much."""
        if not self.zero:
            return sent_bytes("all_reduce", size_bytes, self.count)
        inside = sent_bytes("reduce_scatter", size_bytes, self.shards)
        return inside + sent_bytes("all_reduce", size_bytes / self.shards, self.replica.ranks)

    def gather_sent_bytes(self, size_bytes: float) -> float:
        """Bytes that a rank sends to gather this much."""
        return sent_bytes("all_gather", size_bytes, self.shards)


def replicas_of(plan: Plan, cluster: ClusterSpec, *, experts: bool = False) -> Replicas:
    """The replicas of dense weights or, with `experts`, of expert weights.

    Expert weights are shared among at most as many ranks as hold the same experts.
    """
    group = "expert_dp_cp" if experts else "dp_cp"
    whole = group_place(plan, group, cluster)
    size = plan.group_size(group)
    shards = min(plan.shard_size, size)
    while size % shards:
        shards -= 1
    inside, across = shard_place(plan, group, cluster, shards)
    return Replicas(whole, inside, across, plan.zero)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Gradients that travel together, in the order in which they become ready; (n,) each.

    Attributes:
        last: index of the gradient that completes each.
    """

    ready_s: FloatArray
    size_bytes: FloatArray
    last: NDArray[np.intp]


def fill_buckets(ready_s: FloatArray, size_bytes: FloatArray, bucket_bytes: int) -> Buckets:
    """As predictor.parallel.data_parallel.fill_buckets, on columns in the order of readiness."""
    completes: list[int] = []
    sizes: list[float] = []
    held, limit = 0.0, min(FIRST_BUCKET_BYTES, bucket_bytes)
    for index, size in enumerate(size_bytes.tolist()):
        held += size
        if held >= limit:
            completes.append(index)
            sizes.append(held)
            held, limit = 0.0, bucket_bytes
    if held:
        completes.append(len(size_bytes) - 1)
        sizes.append(held)
    last = np.array(completes, dtype=np.intp)
    return Buckets(ready_s[last], np.array(sizes), last)


def stream_end_s(ready_s: FloatArray, cost_s: FloatArray) -> float:
    """When a stream has done tasks that it takes in this order, each as soon as it is ready; 0 for none."""
    if not len(cost_s):
        return 0.0
    remaining = np.cumsum(cost_s[::-1])[::-1]
    return float((ready_s + remaining).max())


@dataclass(frozen=True, slots=True)
class Span:
    """A piece's `compute`, `gather` or `reduce`, in seconds from the begin of the pass."""

    what: str
    piece: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class ShardedPass:
    """One microbatch through pieces whose weights are gathered on the way; seconds.

    Attributes:
        forward_s, backward_s: durations, waiting included; backward ends when the last gradient is reduced.
        exposed_s: (2,) the part of each that waits.
        exchange_s: (2,) exchanges of each, hidden or not.
        spans: (2,) what runs when in either.
    """

    forward_s: float
    backward_s: float
    exposed_s: tuple[float, float]
    exchange_s: tuple[float, float]
    spans: tuple[tuple[Span, ...], tuple[Span, ...]]


def sharded_pass(
    forward_s: FloatArray,
    backward_s: FloatArray,
    gather_s: FloatArray,
    reduce_s: FloatArray,
    *,
    overlap: bool,
) -> ShardedPass:
    """A microbatch under ZeRO-3 on the pieces of one stage, in forward order.

    The next piece's weights are asked for when a piece starts to compute, without `overlap` when it has done
    so; gradients are reduced when their piece is done. The last piece keeps its weights for backward.
    """
    gathers, reduces = gather_s.tolist(), reduce_s.tolist()
    forward = _one_way(forward_s.tolist(), gathers, [0.0] * len(gathers), range(len(gathers)), overlap)
    kept = [*gathers[:-1], 0.0]
    backward = _one_way(backward_s.tolist(), kept, reduces, range(len(gathers) - 1, -1, -1), overlap)
    lengths = [max((span.end_s for span in spans), default=0.0) for spans in (forward, backward)]
    return ShardedPass(
        lengths[0],
        lengths[1],
        (lengths[0] - float(forward_s.sum()), lengths[1] - float(backward_s.sum())),
        (sum(gathers), sum(kept) + sum(reduces)),
        (tuple(forward), tuple(backward)),
    )


def _one_way(
    steps: list[float], gathers: list[float], reduces: list[float], order: range, overlap: bool
) -> list[Span]:
    """The pieces in `order`, each after its weights, its gradients after it, exchanges on one stream."""
    spans: list[Span] = []
    stream = done = arrives = 0.0

    def exchange(what: str, piece: int, ready_s: float, cost_s: float) -> float:
        nonlocal stream
        if cost_s:
            begin = max(stream, ready_s)
            stream = begin + cost_s
            spans.append(Span(what, piece, begin, stream))
            return stream
        return ready_s

    arrives = exchange("gather", order[0], 0.0, gathers[order[0]])
    for position, piece in enumerate(order):
        start = max(done, arrives)
        done = start + steps[piece]
        spans.append(Span("compute", piece, start, done))
        following = order[position + 1] if position + 1 < len(order) else None
        if following is not None and overlap:
            arrives = exchange("gather", following, start, gathers[following])
        reduced = exchange("reduce", piece, done, reduces[piece])
        if not overlap:
            done = max(done, reduced)
            if following is not None:
                arrives = exchange("gather", following, done, gathers[following])
    return spans
