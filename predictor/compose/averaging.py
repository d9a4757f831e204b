"""When the gradients of each stage are averaged over the replicas: buckets on a stream beside backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.compose.interval import FloatArray
from predictor.compose.link_use import share_a_link
from predictor.compose.rank_costs import IntArray, RankCosts
from predictor.compose.stage_costs import twin_weights
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.pipeline import PipelineTimes
from predictor.parallel.placement import group_place
from predictor.parallel.plan import Plan
from predictor.parallel.zero import Buckets, Replicas, fill_buckets, stream_end_s


@dataclass(frozen=True, slots=True)
class StageBuckets:
    """Buckets of all virtual stages, by virtual stage and in the order of readiness; (n,) each.

    Attributes:
        stage: virtual stage. size_bytes: of the gradients in it.
        offset_s: ready relative to the end of its backward pass, never above 0.
        is_expert: only ranks with the same experts average it; dense and expert gradients travel apart.
        held_s: by group, time on its link of the exchanges that the stage still runs after that.
    """

    stage: IntArray
    size_bytes: FloatArray
    offset_s: FloatArray
    is_expert: NDArray[np.bool_]
    held_s: Mapping[str, FloatArray]


def stage_buckets(
    rank: RankCosts, ends: IntArray, stages: int, bucket_bytes: int, *, put_off: bool
) -> StageBuckets:
    """Buckets of a rank that is cut at `ends`.

    Args:
        stages: devices in a row. put_off: weight gradients come after backward, all at its end.
    """
    gradients = rank.gradients
    begins = np.concatenate([[0], ends[:-1]])
    twins = twin_weights(rank, ends, stages)
    later = {group: _later_s(values, begins, stages) for group, values in rank.held_s.items()}
    found: list[tuple[int, Buckets, bool, dict[str, FloatArray]]] = []
    for q, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        inside = (gradients.piece >= begin) & (gradients.piece < end)
        # Backward visits the pieces from the last to the first: those below a piece follow it.
        below = _up_to(rank.backward_s[begin:end])
        copies = [(piece - begin, size) for piece, size, _ in twins if begin <= piece < end]
        for expert in (False, True):
            rows = np.flatnonzero(inside & (gradients.is_expert == expert))
            extra = [] if expert else copies
            if not rows.size and not extra:
                continue
            piece = gradients.piece[rows] - begin
            # A copy's gradient is complete when its piece is done.
            twin = np.array([at for at, _ in extra], dtype=np.intp)
            offset = np.append(gradients.offset_s[rows] - below[piece + 1], -below[twin])
            sizes = np.append(gradients.size_bytes[rows], [size for _, size in extra])
            if put_off:
                offset = np.zeros_like(offset)
            order = np.argsort(offset, kind="stable")
            buckets = fill_buckets(offset[order], sizes[order], bucket_bytes)
            held = {}
            for group, values in rank.held_s.items():
                follow = _up_to(values[begin:end])
                mine = np.append(gradients.held_s[group][rows] + follow[piece], follow[twin])
                held[group] = later[group][q] + mine[order][buckets.last] * (not put_off)
            found.append((q, buckets, expert, held))
    if not found:
        none = np.zeros(0)
        return StageBuckets(none.astype(np.intp), none, none, none.astype(bool), {})
    return StageBuckets(
        np.concatenate([np.full(len(each.size_bytes), q, dtype=np.intp) for q, each, _, _ in found]),
        np.concatenate([each.size_bytes for _, each, _, _ in found]),
        np.concatenate([each.ready_s for _, each, _, _ in found]),
        np.concatenate([np.full(len(each.size_bytes), expert) for _, each, expert, _ in found]),
        {group: np.concatenate([held[group] for _, _, _, held in found]) for group in rank.held_s},
    )


def _up_to(values: FloatArray) -> FloatArray:
    """(k + 1,) sum of the values before each, and of all."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _later_s(held_s: FloatArray, begins: IntArray, stages: int) -> FloatArray:
    """(q,) time on the link by chunks of the same stage that follow the last pass of each in backward.

    Only interleaved schedules have any: their last group, of as many microbatches as stages, then visits all
    chunks before it.
    """
    chunks = np.add.reduceat(held_s, begins).reshape(-1, stages)
    return np.asarray(stages * (np.cumsum(chunks, axis=0) - chunks)).ravel()


def bucket_costs(
    buckets: StageBuckets, dense: Replicas, experts: Replicas, cluster: ClusterSpec
) -> tuple[FloatArray, FloatArray]:
    """((n,) time to average each bucket, (n,) time to gather its weights after the step)."""
    reduce_s, gather_s = np.zeros(len(buckets.stage)), np.zeros(len(buckets.stage))
    for rows, replicas in ((~buckets.is_expert, dense), (buckets.is_expert, experts)):
        if replicas.count == 1 or not rows.any():
            continue
        reduce_s[rows] = replicas.reduce_s(buckets.size_bytes[rows], cluster)
        if replicas.zero:
            gather_s[rows] = replicas.gather_s(buckets.size_bytes[rows], cluster)
    return reduce_s, gather_s


def held_up_s(
    buckets: StageBuckets, plan: Plan, cluster: ClusterSpec, dense: Replicas, experts: Replicas
) -> FloatArray:
    """(n,) time after readiness in which the links of each bucket serve exchanges inside the graph.

    Those go first (predictor.compose.link_use). Left out are ZeRO-2 and -3, where every microbatch exchanges.
    """
    found = np.zeros(len(buckets.stage))
    if plan.zero >= 2 or not plan.overlap:
        return found
    for group, held in buckets.held_s.items():
        place = group_place(plan, group, cluster)
        for rows, replicas in ((~buckets.is_expert, dense), (buckets.is_expert, experts)):
            if share_a_link(place, replicas.whole):
                found[rows] += held[rows]
    return found


def averaged(
    buckets: StageBuckets,
    pipeline: PipelineTimes,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas,
) -> tuple[FloatArray, FloatArray]:
    """((stages,) when the gradients of each are averaged, time to gather its weights after the step)."""
    reduced = pipeline.stage_end_s[0].copy()
    if plan.zero == 3 or dense.count == 1:
        return reduced, np.zeros(plan.pp)
    reduce_s, gather_s = bucket_costs(buckets, dense, experts, cluster)
    held_s = held_up_s(buckets, plan, cluster, dense, experts)
    stage = buckets.stage % plan.pp
    gather = np.bincount(stage, weights=gather_s, minlength=plan.pp).astype(np.float64)
    ends_s = pipeline.last_backward_end_s[0][:, None]
    if plan.zero == 2:
        ends_s = pipeline.backward_end_s[0]
    for number in range(plan.pp):
        mine = np.flatnonzero((stage == number) & (reduce_s > 0))
        if not mine.size:
            continue
        end_s = float(reduced[number])
        # A link that is held before the stage's end might as well be given later.
        ready = (buckets.offset_s + held_s)[mine, None] + ends_s[buckets.stage[mine]]
        if not plan.overlap:
            ready = np.full_like(ready, end_s)
        left_out = plan.microbatches - ready.shape[1] if plan.zero == 2 else 0
        reduced[number] = max(end_s, _stream_s(ready, reduce_s[mine], left_out))
    return reduced, gather


def _stream_s(ready_s: FloatArray, cost_s: FloatArray, left_out: int) -> float:
    """When a stream has done all tasks.

    Args:
        ready_s: (tasks, microbatches); `left_out` microbatches in the middle are not given. cost_s: (tasks,)
    """
    count = ready_s.shape[1]
    if not left_out:
        order = np.argsort(ready_s, axis=None, kind="stable")
        return stream_end_s(ready_s.ravel()[order], np.repeat(cost_s, count)[order])
    half = count // 2
    later = _stream_s(ready_s[:, half:], cost_s, 0)
    earlier = _stream_s(ready_s[:, :half], cost_s, 0)
    return float(max(later, earlier + (left_out + count - half) * cost_s.sum()))
