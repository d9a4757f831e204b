"""Costs of one microbatch by virtual stage: pieces summed, messages, shared weights gathered on the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from predictor.compose.interval import FloatArray
from predictor.compose.rank_costs import IntArray, RankCosts
from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape, collective_time_s
from predictor.parallel.offload import HostLinks, pass_waits_s
from predictor.parallel.pipeline import ChunkTimes
from predictor.parallel.placement import boundary_crosses_node, boundary_crosses_rack, group_place
from predictor.parallel.plan import Plan
from predictor.parallel.schedule import PipelineShape
from predictor.parallel.stages import balanced_chunks
from predictor.parallel.zero import Replicas, ShardedPass, sharded_pass
from predictor.types import Offload, Schedule

_ONE_LINK = GroupShape(2, 1, 2, 2)
_TWO_NODES = GroupShape(1, 2, 1, 2)
_TWO_RACKS = GroupShape(1, 2, 1, 2, racks=2, smallest_rack=1)


@dataclass(frozen=True, slots=True)
class StageCosts:
    """One microbatch by virtual stage, (q,) each; virtual stage q runs on stage q % stages.

    Attributes:
        ends: pieces of virtual stage q are those from ends[q - 1] to ends[q] - 1.
        forward_s, backward_s: all that keeps the compute stream; `backward_s` without `weight_s`.
        weight_s: weight gradients, where the schedule runs them apart; else 0.
        send_forward_s, send_backward_s: messages to the next and to the previous virtual stage.
        kernel_s, gap_s: (2, q) forward and backward parts. exchange_s: the same by group.
        shared_wait_s: (q,) waiting for weights or gradients under ZeRO-3; shared_s: exchanges of it, hidden
        ones included.
        message_bytes: to the next virtual stage. offload_wait_s: waiting for copies of what lives elsewhere.
    """

    ends: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    kernel_s: FloatArray
    gap_s: FloatArray
    exchange_s: dict[str, FloatArray]
    shared_wait_s: FloatArray
    shared_s: FloatArray
    message_bytes: FloatArray
    offload_wait_s: FloatArray

    @property
    def begins(self) -> IntArray:
        """(q,) first piece of each virtual stage."""
        return np.concatenate([[0], self.ends[:-1]]).astype(np.intp)

    def chunk_times(self, *, messages: bool = True) -> ChunkTimes:
        """As rows of one plan; without `messages` they arrive at once."""
        send = 1.0 if messages else 0.0
        return ChunkTimes(
            self.forward_s[None],
            self.backward_s[None],
            self.weight_s[None],
            send * self.send_forward_s[None],
            send * self.send_backward_s[None],
        )


def pipeline_shape(plan: Plan, *, training: bool) -> PipelineShape:
    """The pipeline of a plan; one stage runs one microbatch after the other, whatever the schedule."""
    if plan.pp == 1:
        return PipelineShape(Schedule.ONE_F_ONE_B, 1, 1, plan.microbatches, training)
    return PipelineShape(plan.schedule, plan.pp, plan.virtual_stages, plan.microbatches, training)


def stage_of_pieces(ends: IntArray, stages: int) -> IntArray:
    """(pieces,) stage that runs each piece."""
    return np.searchsorted(ends, np.arange(ends[-1]), side="right") % stages


def twin_weights(rank: RankCosts, ends: IntArray, stages: int) -> list[tuple[int, float, frozenset[int]]]:
    """Copies of weights that several stages read: (first piece that reads it there, bytes, all stages).

    The copy of the stage that reads it first of all is left out: `RankCosts.parameter_bytes` holds it.
    """
    if not rank.tied or stages == 1:
        return []
    stage_of = stage_of_pieces(ends, stages)
    found: list[tuple[int, float, frozenset[int]]] = []
    for pieces, size_bytes in rank.tied:
        first_of: dict[int, int] = {}
        for piece in pieces:
            first_of.setdefault(int(stage_of[piece]), piece)
        holders = frozenset(first_of)
        found += [(piece, size_bytes, holders) for piece in list(first_of.values())[1:]]
    return found


def held_bytes(rank: RankCosts, ends: IntArray, stages: int) -> FloatArray:
    """(pieces,) weights by the first piece of a stage that reads them, every stage's copy counted."""
    held = rank.parameter_bytes.copy()
    for piece, size_bytes, _ in twin_weights(rank, ends, stages):
        held[piece] += size_bytes
    return held


def cut_ends(rank: RankCosts, plan: Plan, cluster: ClusterSpec | None, *, training: bool) -> IntArray:
    """Where the virtual stages of `plan` end. Raises InvalidPlan when the graph has too few pieces."""
    shape = pipeline_shape(plan, training=training)
    cost = rank.total_s if training else rank.forward_s
    cut = np.zeros(rank.pieces)
    if shape.stages > 1 and cluster is not None:
        cut = cut_s(rank, plan, cluster, training=training)
    return balanced_chunks(cost, cut, shape.stages, shape.chunks)


def cut_s(rank: RankCosts, plan: Plan, cluster: ClusterSpec, *, training: bool) -> FloatArray:
    """(k,) time of the messages behind each piece, both ways, over the longest link of the cluster."""
    return message_s(rank.crossing_bytes, cluster.node_count > 1, plan, cluster) * (2 if training else 1)


def stage_costs(
    rank: RankCosts,
    ends: IntArray,
    plan: Plan,
    cluster: ClusterSpec | None,
    dense: Replicas | None,
    experts: Replicas | None,
    *,
    training: bool,
) -> StageCosts:
    """Sums of pieces by virtual stage.

    Args:
        dense, experts: who shares weights; None for one replica.
    """
    shape = pipeline_shape(plan, training=training)
    begins = np.concatenate([[0], ends[:-1]]).astype(np.intp)

    def total(values: FloatArray) -> FloatArray:
        return np.add.reduceat(values, begins, axis=-1)

    added = _added_s(rank, ends, plan) if training else np.zeros(len(ends))
    forward, backward = total(rank.forward_s), total(rank.backward_s) + added
    weight = total(rank.weight_s) + added
    wait, shared = np.zeros(len(ends)), np.zeros(len(ends))
    if plan.zero == 3 and dense is not None and cluster is not None and dense.count > 1:
        if shape.splits_backward:
            raise InvalidPlan(
                "plan: schedule zero_bubble puts weight gradients off, and zero=3 reduces them piece by "
                "piece; take schedule 1f1b, or zero of at most 2",
                field="plan.schedule",
            )
        forward, backward, wait, shared = _shared(rank, begins, ends, plan, cluster, dense, experts, training)
    send_forward, send_backward, message = _messages(rank, ends, plan, cluster, shape)
    if not shape.splits_backward:
        weight = np.zeros(len(ends))
    if not training:
        backward = np.zeros(len(ends))
    copies = np.zeros((2, len(ends)))
    if plan.offload and rank.host is not None:
        copies = _copies(rank, forward, backward, begins, ends, plan, rank.host, dense)
        forward, backward = forward + copies[0], backward + copies[1] * training
    phases = np.array([[1.0], [1.0 if training else 0.0]])
    return StageCosts(
        ends=ends,
        forward_s=forward,
        backward_s=backward - weight,
        weight_s=weight,
        send_forward_s=send_forward,
        send_backward_s=send_backward,
        kernel_s=total(rank.kernel_s) * phases + np.array([np.zeros(len(ends)), added]),
        gap_s=total(rank.gap_s) * phases,
        exchange_s={group: total(values) * phases for group, values in rank.exchange_s.items()},
        shared_wait_s=wait,
        shared_s=shared,
        message_bytes=message,
        offload_wait_s=copies[: 2 if training else 1].sum(axis=0),
    )


def _added_s(rank: RankCosts, ends: IntArray, plan: Plan) -> FloatArray:
    """(q,) time to add gradients of a microbatch to those before it; with ZeRO-2 and -3 only shards are kept.

    The first of all has nothing to be added to: a mean microbatch has its share of the others'.
    """
    if not rank.adding_s_per_byte or plan.shared >= 2:
        return np.zeros(len(ends))
    begins = np.concatenate([[0], ends[:-1]]).astype(np.intp)
    held = np.add.reduceat(held_bytes(rank, ends, plan.pp), begins)
    return np.asarray(held * rank.adding_s_per_byte * (1 - 1 / plan.microbatches))


def _copies(
    rank: RankCosts,
    forward_s: FloatArray,
    backward_s: FloatArray,
    begins: IntArray,
    ends: IntArray,
    plan: Plan,
    host: HostLinks,
    dense: Replicas | None,
) -> FloatArray:
    """(2, q) waiting for copies in the forward and the backward pass of one microbatch."""
    none = np.zeros(len(ends))
    shards = dense.shards if dense is not None else 1
    held = np.add.reduceat(held_bytes(rank, ends, plan.pp), begins)
    kept = none if rank.kept_bytes is None else np.add.reduceat(rank.kept_bytes, begins)
    # A rank fetches its own shard; the others' come over the links between devices.
    weights = held / (shards if plan.zero == 3 else 1) if Offload.PARAMETERS in plan.offload else none
    gradients = held / (shards if plan.zero >= 2 else 1) if Offload.OPTIMIZER in plan.offload else none
    return np.array(pass_waits_s(forward_s, backward_s, kept, weights, gradients, host))


def _messages(
    rank: RankCosts, ends: IntArray, plan: Plan, cluster: ClusterSpec | None, shape: PipelineShape
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(forward s, backward s, bytes forward) of each virtual stage."""
    forward, backward, sizes = (np.zeros(len(ends)) for _ in range(3))
    if cluster is None or shape.stages == 1:
        return forward, backward, sizes
    crosses = boundary_crosses_node(plan, cluster)[np.arange(len(ends)) % shape.stages]
    sizes[:-1] = rank.crossing_bytes[ends[:-1] - 1]
    near, far = (message_s(sizes, flag, plan, cluster) for flag in (False, True))
    forward = np.where(crosses, far, near)
    if cluster.inter_rack is not None:
        leaves = boundary_crosses_rack(plan, cluster)[np.arange(len(ends)) % shape.stages]
        forward = np.where(leaves, message_s(sizes, True, plan, cluster, racks=True), forward)
    backward[1:] = forward[:-1]
    return forward, backward, sizes


def message_s(
    sizes: FloatArray, crosses: bool, plan: Plan, cluster: ClusterSpec, *, racks: bool = False
) -> FloatArray:
    """Time of messages between stages: in a node, or where it `crosses` to another one, of another rack.

    Ranks of one tensor group hold the same tensor: each sends its part, and they gather it on arrival, where
    that is faster than each sending the whole (Narayanan et al. 2021, section 4.1). With sequence parallelism
    each holds its own part.
    """
    link = _ONE_LINK
    if crosses:
        link = _TWO_RACKS if racks else _TWO_NODES
    whole = collective_time_s("send_recv", sizes, link, cluster)
    if plan.tp == 1 or plan.sequence_parallel:
        return whole
    parts = collective_time_s("send_recv", sizes / plan.tp, link, cluster)
    gathered = collective_time_s("all_gather", sizes, group_place(plan, "tp", cluster), cluster)
    return np.minimum(whole, parts + gathered)


def _shared(
    rank: RankCosts,
    begins: IntArray,
    ends: IntArray,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas | None,
    training: bool,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """(forward, backward, waiting, exchanges) of each virtual stage under ZeRO-3."""
    gather, reduce = _shared_exchanges(rank, ends, plan, cluster, dense, experts)
    found = np.zeros((4, len(ends)))
    for q, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        result = _pass(rank, slice(begin, end), gather, reduce, plan, training)
        passes = 2 if training else 1
        found[:, q] = (
            result.forward_s,
            result.backward_s,
            sum(result.exposed_s[:passes]),
            sum(result.exchange_s[:passes]),
        )
    return found[0], found[1], found[2], found[3]


def shared_pass(
    rank: RankCosts,
    stages: StageCosts,
    q: int,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas | None,
    *,
    training: bool,
) -> ShardedPass:
    """One microbatch of virtual stage `q` under ZeRO-3, exchange by exchange."""
    gather, reduce = _shared_exchanges(rank, stages.ends, plan, cluster, dense, experts)
    return _pass(rank, slice(stages.begins[q], stages.ends[q]), gather, reduce, plan, training)


def _pass(
    rank: RankCosts, part: slice, gather: FloatArray, reduce: FloatArray, plan: Plan, training: bool
) -> ShardedPass:
    backward = rank.backward_s[part] if training else np.zeros(part.stop - part.start)
    return sharded_pass(rank.forward_s[part], backward, gather[part], reduce[part], overlap=plan.overlap)


def _shared_exchanges(
    rank: RankCosts,
    ends: IntArray,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas | None,
) -> tuple[FloatArray, FloatArray]:
    """(k,) time to gather the weights of each piece, and to reduce its gradients."""
    plain = held_bytes(rank, ends, plan.pp) - rank.expert_bytes
    gather, reduce = dense.gather_s(plain, cluster), dense.reduce_s(plain, cluster)
    if experts is not None and rank.expert_bytes.any():
        gather = gather + experts.gather_s(rank.expert_bytes, cluster)
        reduce = reduce + experts.reduce_s(rank.expert_bytes, cluster)
    return gather, reduce
