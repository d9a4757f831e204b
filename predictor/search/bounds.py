"""Bounds of candidates in columns: no plan is faster, and none needs less memory.

The formulas are those of predictor.compose.plan_time with everything left out that only adds: waits between
stages beyond the longest path through one of them, buckets, exchanges that may hide behind backward.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.compose.plan_time import by_stage
from predictor.compose.rank_costs import IntArray
from predictor.compose.stage_costs import StageCosts, cut_ends, held_bytes, pipeline_shape, stage_costs
from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.pipeline import ChunkTimes, lower_bound_s
from predictor.parallel.plan import Plan
from predictor.parallel.schedule import PipelineShape
from predictor.parallel.zero import replicas_of
from predictor.search.source import CostSource, Microbatch
from predictor.search.space import PlanTable
from predictor.types import Schedule

FloatArray = NDArray[np.float64]


@dataclass(slots=True)
class Bounds:
    """Of n candidates.

    Attributes:
        time_s: no iteration is shorter; infinite where the graph cannot be split so.
        kernel_s: (n,) time of the kernels on a mean rank. peak_bytes: no device needs less.
        group: (n,) number of the candidate's group; `ends` and `microbatches` by group.
    """

    time_s: FloatArray
    kernel_s: FloatArray
    peak_bytes: FloatArray
    group: NDArray[np.intp]
    ends: list[IntArray | None]
    microbatches: list[Microbatch | None]


def bounds(table: PlanTable, source: CostSource, cluster: ClusterSpec, *, training: bool) -> Bounds:
    """Bounds of all candidates; costs of microbatches are asked for once each."""
    n = len(table)
    found = Bounds(np.full(n, np.inf), np.ones(n), np.full(n, np.inf), np.zeros(n, dtype=np.intp), [], [])
    reductions = _Reductions(cluster)
    known: dict[Hashable, Microbatch | None] = {}
    for rows in _groups(table, cluster):
        found.group[rows] = len(found.ends)
        plan = table.plan(int(rows[0]))
        samples = int(table.samples[rows[0]])
        key = microbatch_key(plan, samples)
        if key not in known:
            known[key] = source.microbatch(plan, samples)
        microbatch = known[key]
        found.microbatches.append(microbatch)
        if microbatch is None:
            found.ends.append(None)
            continue
        try:
            ends = cut_ends(microbatch.columns, plan, cluster, training=training)
            _bound(found, table, rows, plan, microbatch, ends, cluster, reductions, training)
        except InvalidPlan:
            ends = None
        found.ends.append(ends)
    return found


def microbatch_key(plan: Plan, samples: int) -> Hashable:
    """Equal for plans whose microbatches cost the same."""
    put_off = plan.schedule is Schedule.ZERO_BUBBLE and plan.pp > 1
    return plan.tp, plan.cp, plan.ep, plan.sequence_parallel, plan.recompute, samples, put_off


def _groups(table: PlanTable, cluster: ClusterSpec) -> Iterator[NDArray[np.intp]]:
    """Rows whose ranks, cuts and links between stages are the same."""
    stride = table.tp * table.cp * table.dp
    per_node = cluster.devices_per_node
    inside, apart = stride * table.pp <= per_node, stride % per_node == 0
    # Stages of one node, each on nodes of its own, or in a pattern that the stride makes.
    reach = np.where(inside, 0, np.where(apart, -1, stride))
    keys = [table.tp, table.cp, table.ep, table.sequence_parallel, table.samples, table.recompute]
    keys += [table.pp, table.schedule, table.virtual_stages, reach]
    code = np.zeros(len(table), dtype=np.int64)
    for key in keys:
        values, index = np.unique(key, return_inverse=True)
        code = code * len(values) + index
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    yield from np.split(order, cuts)


def _bound(
    found: Bounds,
    table: PlanTable,
    rows: NDArray[np.intp],
    plan: Plan,
    microbatch: Microbatch,
    ends: IntArray,
    cluster: ClusterSpec,
    reductions: _Reductions,
    training: bool,
) -> None:
    rank, pp, m = microbatch.columns, plan.pp, table.microbatches[rows]
    # ZeRO-3 only adds to the costs of whole replicas.
    whole = Plan(
        dp=plan.dp,
        tp=plan.tp,
        pp=pp,
        cp=plan.cp,
        ep=plan.ep,
        sequence_parallel=plan.sequence_parallel,
        microbatches=plan.microbatches,
        schedule=plan.schedule,
        virtual_stages=plan.virtual_stages,
    )
    stages = stage_costs(rank, ends, whole, cluster, None, None, training=training)
    shape = pipeline_shape(whole, training=training)
    count = len(rows)
    path_s = lower_bound_s(shape, _repeated(stages, count), m)
    every = held_bytes(rank, ends, pp)
    held = by_stage(np.add.reduceat(every, stages.begins), pp)
    dense = by_stage(np.add.reduceat(every - rank.expert_bytes, stages.begins), pp)
    total = max(float(rank.parameter_bytes.sum()), 1.0)
    zero, shards = table.zero[rows], table.dp[rows] * table.cp[rows]
    share = np.where(zero > 0, shards, 1)
    step_s = float(rank.optimizer_s.sum()) / total if training else 0.0
    # The stage with the most weights: its own path, its gradients, its step.
    heavy = int(held.argmax())
    busy = by_stage(stages.forward_s + stages.backward_s + stages.weight_s, pp)
    head = float((stages.forward_s + stages.send_forward_s)[:pp][:heavy].sum())
    own_s = head + m * busy[heavy]
    if training:
        backward = float(by_stage(stages.backward_s + stages.weight_s, pp)[heavy])
        reduce_s, gather_s = reductions.times(table, rows, float(dense[heavy]))
        if shape.chunks == 1:
            own_s = own_s + np.maximum(0.0, np.where(zero == 3, 0.0, reduce_s - backward))
        own_s = own_s + np.where((zero == 1) | (zero == 2), gather_s, 0.0)
        # ZeRO-3 gathers before each pass and reduces after it, at best all of it beside the kernels.
        forward = float(by_stage(stages.forward_s, pp)[heavy])
        shared = np.maximum(forward, gather_s) + np.maximum(backward, reduce_s)
        own_s = np.where(zero == 3, np.maximum(own_s, head + m * shared), own_s)
        own_s = own_s + step_s * held[heavy] / share
        path_s = path_s + step_s * held[0] / share
    found.time_s[rows] = np.maximum(path_s, own_s)
    kernels = m * float(stages.kernel_s.sum()) / pp
    found.kernel_s[rows] = kernels + (float(rank.optimizer_s[0]) / share / pp if training else 0.0)
    found.peak_bytes[rows] = _peak(microbatch, ends, shape, table, rows, training)


def _repeated(stages: StageCosts, count: int) -> ChunkTimes:
    one = stages.chunk_times()
    return ChunkTimes(*(np.repeat(getattr(one, name), count, axis=0) for name in one.__dataclass_fields__))


def _peak(
    microbatch: Microbatch,
    ends: IntArray,
    shape: PipelineShape,
    table: PlanTable,
    rows: NDArray[np.intp],
    training: bool,
) -> FloatArray:
    """(n,) weights, and activations of all microbatches in flight but the one that computes."""
    begins = np.concatenate([[0], ends[:-1]]).astype(np.intp)
    weight, gradient, state = (
        by_stage(np.add.reduceat(row, begins), shape.stages) for row in microbatch.weight_bytes
    )
    zero, m = table.zero[rows][:, None], table.microbatches[rows][:, None]
    shards = (table.dp[rows] * table.cp[rows])[:, None]
    peak = weight / np.where(zero == 3, shards, 1)
    if not training:
        return np.asarray(peak.max(axis=1))
    peak = peak + state / np.where(zero >= 1, shards, 1)
    peak = peak + np.where(m > 1, gradient / np.where(zero >= 2, shards, 1), 0.0)
    kept = np.add.reduceat(microbatch.kept_bytes, begins).reshape(-1, shape.stages).min(axis=0)
    stage = np.arange(shape.stages)
    if shape.schedule is Schedule.GPIPE:
        others = m - 1 + 0 * stage
    elif shape.splits_backward:
        others = np.minimum(shape.stages, m) - 1 + 0 * stage
    elif shape.chunks == 1:
        others = np.minimum(shape.stages - stage, m) - 1
    else:
        warm_up = 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages
        others = np.minimum(warm_up + 1, m * shape.chunks) - 1
    return np.asarray((peak + others * kept).max(axis=1))


class _Reductions:
    """Time to average and to gather weights of some size by who takes part; asked in bulk."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster = cluster
        self._known: dict[Hashable, tuple[float, float]] = {}

    def times(
        self, table: PlanTable, rows: NDArray[np.intp], size_bytes: float
    ) -> tuple[FloatArray, FloatArray]:
        """((n,) reduce, (n,) gather) seconds."""
        columns = (table.tp, table.cp, table.ep, table.dp, table.zero)
        keys = np.stack([column[rows] for column in columns], axis=1)
        unique, index = np.unique(keys, axis=0, return_inverse=True)
        found = np.array([self._time(tuple(key), size_bytes) for key in unique.tolist()])
        return found[index.ravel(), 0], found[index.ravel(), 1]

    def _time(self, key: tuple[int, ...], size_bytes: float) -> tuple[float, float]:
        known = self._known.get((key, size_bytes))
        if known is None:
            tp, cp, ep, dp, zero = key
            replicas = replicas_of(Plan(tp=tp, cp=cp, ep=ep, dp=dp, zero=zero), self._cluster)
            size = np.array([size_bytes])
            reduce_s = float(replicas.reduce_s(size, self._cluster)[0]) if replicas.count > 1 else 0.0
            gather_s = float(replicas.gather_s(size, self._cluster)[0]) if zero else 0.0
            known = self._known[key, size_bytes] = reduce_s, gather_s
        return known
