"""Iteration time of any plan: pipeline, exchanges of replicas, the optimizer's step, and who waits for whom.

    end of a stage = its last task in the pipeline
                     -> its gradients are averaged (buckets beside backward; what outlives it is exposed)
                     -> weights that stages share are averaged
                     -> its optimizer step over what it holds -> updated weights are gathered
    iteration      = the latest of all stages

One formula serves a single plan and columns of plans: `stage_ends` works on arrays of stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

import numpy as np

from predictor.compose.averaging import StageBuckets, averaged, stage_buckets
from predictor.compose.interval import FloatArray
from predictor.compose.rank_costs import IntArray, RankCosts
from predictor.compose.stage_costs import (
    StageCosts,
    cut_ends,
    held_bytes,
    pipeline_shape,
    stage_costs,
    twin_weights,
)
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape, collective_time_s, sent_bytes
from predictor.parallel.offload import host_step_s
from predictor.parallel.pipeline import PipelineTimes, pipeline_times
from predictor.parallel.placement import group_place
from predictor.parallel.plan import Plan
from predictor.parallel.zero import Replicas, replicas_of
from predictor.types import Offload, Schedule


@dataclass(frozen=True, slots=True)
class StageEnds:
    """What follows the pipeline on each stage, (..., stages) seconds each.

    Attributes:
        pipeline_s: end of its last task. reduced_s: when its gradients are averaged as well.
        tied_s: time to average weights shared with another stage. partial_s: by group, time to sum gradients
        of which each of its ranks has a part. optimizer_s: its step. gather_s: updated weights gathered.
    """

    pipeline_s: FloatArray
    reduced_s: FloatArray
    tied_s: FloatArray
    partial_s: Mapping[str, FloatArray]
    optimizer_s: FloatArray
    gather_s: FloatArray

    @property
    def done_s(self) -> FloatArray:
        """(..., stages) end of the iteration on each stage."""
        partial = sum(self.partial_s.values(), np.zeros_like(self.tied_s))
        return np.asarray(self.reduced_s + self.tied_s + partial + self.optimizer_s + self.gather_s)


@dataclass(frozen=True, slots=True)
class PlanTime:
    """Time of one iteration under a plan.

    Attributes:
        total_s: the latest stage's end. breakdown_s: sums to it; that stage's compute stream.
        critical_stage: that stage. slowest_stage: the one with the most work per microbatch.
        busy_s: (stages,) work of each stage in the iteration, kernels, gaps and exchanges in line.
        kernel_s: mean over stages of the time in kernels.
        sent_bytes: by group, what the busiest stage's rank sends.
        stages: costs by virtual stage. ends: what follows the pipeline.
    """

    total_s: float
    breakdown_s: Mapping[str, float]
    critical_stage: int
    slowest_stage: int
    busy_s: FloatArray
    kernel_s: float
    sent_bytes: Mapping[str, float]
    stages: StageCosts
    ends: StageEnds


EXCHANGE_NAMES = {"tp": "tp_communication", "cp": "cp_communication", "ep": "ep_communication"}
"""Names in the breakdown of exchanges inside the graph, by group."""


def plan_time(rank: RankCosts, plan: Plan, cluster: ClusterSpec | None, *, training: bool) -> PlanTime:
    """Time of one iteration of `plan`.

    Args:
        rank: costs of one microbatch of one rank, sharded as the plan says.
        cluster: needed for more than one device.

    Raises InvalidPlan when the graph cannot be cut into the plan's stages.
    """
    dense, experts = plan_replicas(plan, cluster)
    ends = cut_ends(rank, plan, cluster, training=training)
    stages = stage_costs(rank, ends, plan, cluster, dense, experts, training=training)
    shape = pipeline_shape(plan, training=training)
    pipeline = pipeline_times(shape, stages.chunk_times())
    buckets = plan_buckets(rank, ends, plan)
    found = stage_ends(rank, stages, buckets, pipeline, plan, cluster, dense, experts, training=training)
    without = pipeline
    if shape.stages > 1:
        without = pipeline_times(shape, stages.chunk_times(messages=False))
    done_s = found.done_s
    critical = int(done_s.argmax())
    busy_s = by_stage(plan.microbatches * (stages.forward_s + stages.backward_s + stages.weight_s), plan.pp)
    parts = _breakdown(rank, stages, found, plan, critical, busy_s, float(without.stage_end_s[0, critical]))
    on_device = training and Offload.OPTIMIZER not in plan.offload
    held = _held(rank, stages, plan, dense, experts) if on_device else np.zeros(1)
    kernels = plan.microbatches * stages.kernel_s.sum() + rank.optimizer_s[0] * held.sum()
    return PlanTime(
        total_s=fsum(parts.values()),
        breakdown_s=parts,
        critical_stage=critical,
        slowest_stage=int(busy_s.argmax()),
        busy_s=busy_s,
        kernel_s=float(kernels) / plan.pp,
        sent_bytes=_sent_bytes(rank, stages, plan, dense, experts, training),
        stages=stages,
        ends=found,
    )


def plan_total_s(
    rank: RankCosts,
    ends: IntArray,
    buckets: StageBuckets,
    plan: Plan,
    cluster: ClusterSpec | None,
    *,
    training: bool,
) -> float:
    """`plan_time(...).total_s` alone, for a cut and buckets that are known; a small part of the time."""
    dense, experts = plan_replicas(plan, cluster)
    stages = stage_costs(rank, ends, plan, cluster, dense, experts, training=training)
    pipeline = pipeline_times(pipeline_shape(plan, training=training), stages.chunk_times())
    found = stage_ends(rank, stages, buckets, pipeline, plan, cluster, dense, experts, training=training)
    return float(found.done_s.max())


def plan_buckets(rank: RankCosts, ends: IntArray, plan: Plan) -> StageBuckets:
    """Buckets of gradients of a plan's virtual stages."""
    put_off = plan.schedule is Schedule.ZERO_BUBBLE and plan.pp > 1
    return stage_buckets(rank, ends, plan.pp, plan.bucket_bytes, put_off=put_off)


def plan_replicas(plan: Plan, cluster: ClusterSpec | None) -> tuple[Replicas | None, Replicas | None]:
    """Who averages dense weights and who those of experts; None without a cluster."""
    if cluster is None:
        return None, None
    return replicas_of(plan, cluster), replicas_of(plan, cluster, experts=True)


def by_stage(values: FloatArray, stages: int) -> FloatArray:
    """(stages,) sums over the virtual stages of each."""
    return np.asarray(values.reshape(-1, stages).sum(axis=0))


def stage_ends(
    rank: RankCosts,
    stages: StageCosts,
    buckets: StageBuckets,
    pipeline: PipelineTimes,
    plan: Plan,
    cluster: ClusterSpec | None,
    dense: Replicas | None,
    experts: Replicas | None,
    *,
    training: bool,
) -> StageEnds:
    """What follows the pipeline of one plan; without training, nothing."""
    end_s = pipeline.stage_end_s[0]
    zeros = np.zeros(plan.pp)
    if not training:
        return StageEnds(end_s, end_s, zeros, {}, zeros, zeros)
    reduced, gather = end_s, zeros
    if cluster is not None and dense is not None and experts is not None:
        reduced, gather = averaged(buckets, pipeline, plan, cluster, dense, experts)
    tied = _tied_s(rank, stages, plan, cluster)
    # Both stages wait for the later one.
    shared = tied > 0
    if shared.any():
        reduced = np.where(shared, reduced[shared].max(), reduced)
    held = by_stage(_held(rank, stages, plan, dense, experts), plan.pp)
    optimizer = rank.optimizer_s.sum() * held
    if Offload.OPTIMIZER in plan.offload and rank.host is not None:
        optimizer = host_step_s(held * rank.parameter_bytes.sum(), rank.state_per_byte, rank.host)
    return StageEnds(end_s, reduced, tied, _partial_s(rank, stages, plan, cluster), optimizer, gather)


def _partial_s(
    rank: RankCosts, stages: StageCosts, plan: Plan, cluster: ClusterSpec | None
) -> dict[str, FloatArray]:
    """(stages,) by group: one all-reduce of the small gradients, e.g. of norms under sequence parallelism."""
    if cluster is None:
        return {}
    return {
        group: collective_time_s(
            "all_reduce",
            by_stage(np.add.reduceat(values, stages.begins), plan.pp),
            group_place(plan, group, cluster),
            cluster,
        )
        for group, values in rank.partial_bytes.items()
    }


def _held(
    rank: RankCosts,
    stages: StageCosts,
    plan: Plan,
    dense: Replicas | None,
    experts: Replicas | None,
) -> FloatArray:
    """(q,) share of all weights that a rank of each virtual stage updates."""
    total = rank.parameter_bytes.sum()
    if not total:
        return np.zeros(len(stages.ends))
    plain = held_bytes(rank, stages.ends, plan.pp) - rank.expert_bytes
    held = plain / (dense.shards if dense else 1) + rank.expert_bytes / (experts.shards if experts else 1)
    return np.asarray(np.add.reduceat(held, stages.begins) / total)


def _tied_s(rank: RankCosts, stages: StageCosts, plan: Plan, cluster: ClusterSpec | None) -> FloatArray:
    """(stages,) time to average the gradients of weights that stages share, e.g. of tied embeddings."""
    found = np.zeros(plan.pp)
    if cluster is None:
        return found
    sizes: dict[frozenset[int], float] = {}
    for _, size_bytes, holders in twin_weights(rank, stages.ends, plan.pp):
        # One entry for each copy but the first.
        sizes[holders] = sizes.get(holders, 0.0) + size_bytes / (len(holders) - 1)
    for holders, size_bytes in sizes.items():
        time_s = collective_time_s("all_reduce", size_bytes, _stages_place(plan, cluster, holders), cluster)
        for stage in holders:
            found[stage] += time_s
    return found


def _stages_place(plan: Plan, cluster: ClusterSpec, holders: frozenset[int]) -> GroupShape:
    """Where the ranks of some stages lie that hold the same part of a replica."""
    row = plan.group_ranks("pp", 0)
    nodes = Counter(row[stage] // cluster.devices_per_node for stage in holders)
    return GroupShape(max(nodes.values()), len(nodes), min(nodes.values()), len(holders))


def _breakdown(
    rank: RankCosts,
    stages: StageCosts,
    ends: StageEnds,
    plan: Plan,
    stage: int,
    busy_s: FloatArray,
    without_messages_s: float,
) -> dict[str, float]:
    """Where the time of a stage's compute stream goes."""
    m = plan.microbatches

    def mine(values: FloatArray) -> float:
        return m * float(by_stage(values, plan.pp)[stage])

    step = float(ends.optimizer_s[stage])
    on_device = step > 0 and Offload.OPTIMIZER not in plan.offload
    gap_share = float(rank.optimizer_s[1] / rank.optimizer_s.sum()) if on_device else 0.0
    idle = float(ends.pipeline_s[stage] - busy_s[stage])
    bubble = min(max(0.0, without_messages_s - float(busy_s[stage])), idle)
    parts = {
        "forward": mine(stages.kernel_s[0]),
        "backward": mine(stages.kernel_s[1]),
        "optimizer": step * (1 - gap_share),
        # Rounding may leave a little less than nothing.
        "host_launch": max(0.0, mine(stages.gap_s.sum(axis=0)) + step * gap_share),
        "communication": mine(stages.shared_wait_s)
        + float(ends.reduced_s[stage] - ends.pipeline_s[stage] + ends.tied_s[stage] + ends.gather_s[stage]),
    }
    if plan.offload:
        parts["offload"] = mine(stages.offload_wait_s)
    for group, values in stages.exchange_s.items():
        name = EXCHANGE_NAMES.get(group, f"{group}_communication")
        parts[name] = parts.get(name, 0.0) + mine(values.sum(axis=0))
    for group, values in ends.partial_s.items():
        name = EXCHANGE_NAMES.get(group, f"{group}_communication")
        parts[name] = parts.get(name, 0.0) + float(values[stage])
    if plan.pp > 1:
        parts["pp_communication"] = max(0.0, idle - bubble)
        parts["pipeline_bubble"] = max(0.0, bubble)
    return parts


def _sent_bytes(
    rank: RankCosts,
    stages: StageCosts,
    plan: Plan,
    dense: Replicas | None,
    experts: Replicas | None,
    training: bool,
) -> dict[str, float]:
    """Bytes that a rank sends in an iteration by group: of the stage that sends the most in that group."""
    m = plan.microbatches
    passes = 2 if training else 1
    found = {
        group: m * float(by_stage(np.add.reduceat(values[:passes].sum(axis=0), stages.begins), plan.pp).max())
        for group, values in rank.sent_bytes.items()
    }
    for group, values in rank.partial_bytes.items():
        most = float(by_stage(np.add.reduceat(values, stages.begins), plan.pp).max())
        found[group] = found.get(group, 0.0) + sent_bytes("all_reduce", most, plan.group_size(group))
    if plan.pp > 1:
        sizes = stages.message_bytes / (1 if plan.sequence_parallel else plan.tp)
        back = np.roll(sizes, 1) if training else np.zeros_like(sizes)
        found["pp"] = m * float(by_stage(sizes + back, plan.pp).max())
    if dense is None or experts is None:
        return found
    replicated = 0.0
    for q_bytes, replicas in (
        (held_bytes(rank, stages.ends, plan.pp) - rank.expert_bytes, dense),
        (rank.expert_bytes, experts),
    ):
        held = float(by_stage(np.add.reduceat(q_bytes, stages.begins), plan.pp).max())
        if not held or replicas.count == 1:
            continue
        if training:
            times = m if plan.zero >= 2 else 1
            replicated += times * replicas.reduce_sent_bytes(held)
        gathers = {1: 1, 2: 1, 3: 2 * m}.get(plan.zero, 0) if training else (m if plan.zero == 3 else 0)
        replicated += gathers * replicas.gather_sent_bytes(held)
    if replicated:
        found["dp"] = replicated
    return found
