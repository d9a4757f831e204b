"""Bounds of candidates in columns: no plan is faster, and none needs less memory.

The formulas are those of predictor.compose.plan_time with everything left out that only adds: waits between
stages beyond the longest path through one of them, buckets, exchanges that may hide behind backward, copies
of weights that several stages read.

Candidates share much: microbatches (how tensors and sequences are split, how many samples, what is
recomputed), and cuts of these into stages. Both are made once; what is left are array operations over all
candidates of a number of stages.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.compose.rank_costs import IntArray
from predictor.compose.stage_costs import cut_s, message_s, pipeline_shape
from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.pipeline import ChunkTimes, lower_bound_s
from predictor.parallel.plan import Plan
from predictor.parallel.schedule import PipelineShape
from predictor.parallel.stages import balanced_chunks
from predictor.parallel.zero import Replicas, replicas_of
from predictor.search.source import CostSource, Microbatch
from predictor.search.space import PlanTable
from predictor.types import Schedule

FloatArray = NDArray[np.float64]
Rows = NDArray[np.intp]

# Rows of a microbatch's matrix of costs by piece.
(FORWARD, BACKWARD, WEIGHT, PARAMETERS, DENSE, KEPT, HELD, GRADIENTS, STATE) = range(9)
# What one more bucket costs at least.
_TINY = np.ones(1)
_BUCKET_BYTES = Plan().bucket_bytes


@dataclass(slots=True)
class Bounds:
    """Of n candidates.

    Attributes:
        time_s: no iteration is shorter; infinite where the graph cannot be split so.
        kernel_s: (n,) time of the kernels on a mean rank. peak_bytes: no device needs less.
        cut: (n,) number of the candidate's cut, -1 for none; `ends` and `microbatches` by cut.
    """

    time_s: FloatArray
    kernel_s: FloatArray
    peak_bytes: FloatArray
    cut: NDArray[np.intp]
    ends: list[IntArray]
    microbatches: list[Microbatch]


# Bounds come from thin graphs. The step model looks at the share of an op in its graph: the same op costs up
# to 1.5 % more or less there than in the whole model.
_SURE = 0.98


def bounds(table: PlanTable, cuts: Cuts) -> Bounds:
    """Bounds of all candidates; costs of microbatches are asked for once each."""
    n = len(table)
    found = Bounds(
        np.full(n, np.inf),
        np.ones(n),
        np.full(n, np.inf),
        np.full(n, -1, dtype=np.intp),
        cuts.ends,
        cuts.microbatches,
    )
    for rows in _groups(table.pp, table.virtual_stages, table.schedule):
        _bound_shape(found, table, rows, cuts)
    found.time_s[:] *= _SURE
    return found


def microbatch_key(plan: Plan, samples: int) -> Hashable:
    """Equal for plans whose microbatches cost the same."""
    put_off = plan.schedule is Schedule.ZERO_BUBBLE and plan.pp > 1
    return plan.tp, plan.cp, plan.ep, plan.sequence_parallel, plan.recompute, samples, put_off


def _groups(*keys: NDArray[np.int64]) -> list[Rows]:
    """Rows that agree in all keys."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for key in keys:
        values, index = np.unique(key, return_inverse=True)
        code = code * len(values) + index
    order = np.argsort(code, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(code[order])) + 1)


@dataclass(frozen=True, slots=True)
class _Piecewise:
    """A microbatch with its costs as one matrix: (9, k) by piece, and messages near and far, (2, k)."""

    microbatch: Microbatch
    matrix: FloatArray
    sends: FloatArray
    cut_s: FloatArray


class Cuts:
    """Microbatches of one model, job and cluster cut into virtual stages, each made once.

    With them remembered, bounds are array operations alone.
    """

    def __init__(self, source: CostSource, cluster: ClusterSpec, training: bool) -> None:
        self._source, self.cluster, self.training = source, cluster, training
        self._pieces: dict[Hashable, _Piecewise | None] = {}
        self._known: dict[Hashable, int] = {}
        self._replicas: dict[Hashable, tuple[Replicas, float, float]] = {}
        self.ends: list[IntArray] = []
        self.microbatches: list[Microbatch] = []
        self.sums: list[FloatArray] = []
        self.sends: list[FloatArray] = []

    def number(self, table: PlanTable, row: int, shape: PipelineShape) -> int:
        """The place in the lists of a candidate's cut; -1 where the graph cannot be split or cut so."""
        key = (
            *(int(axis[row]) for axis in (table.tp, table.cp, table.ep, table.sequence_parallel)),
            int(table.recompute[row]),
            int(table.samples[row]),
            shape.splits_backward,
        )
        cut_key = key, shape.stages, shape.chunks
        if cut_key not in self._known:
            try:
                made = self._made(key, table.plan(row), int(table.samples[row]), shape)
            except InvalidPlan:
                made = -1
            self._known[cut_key] = made
        return self._known[cut_key]

    def replicas(self, tp: int, cp: int, ep: int, dp: int, zero: int) -> tuple[Replicas, float, float]:
        """Who averages dense gradients, and what one more bucket costs to average and to gather at least."""
        key = tp, cp, ep, dp, zero
        if key not in self._replicas:
            found = replicas_of(Plan(tp=tp, cp=cp, ep=ep, dp=dp, zero=zero), self.cluster)
            gather_s = float(found.gather_s(_TINY, self.cluster)[0]) if zero else 0.0
            self._replicas[key] = found, float(found.reduce_s(_TINY, self.cluster)[0]), gather_s
        return self._replicas[key]

    def _made(self, key: Hashable, plan: Plan, samples: int, shape: PipelineShape) -> int:
        if key not in self._pieces:
            microbatch = self._source.microbatch(plan, samples)
            self._pieces[key] = None if microbatch is None else self._piecewise(microbatch, plan)
        pieces = self._pieces[key]
        if pieces is None or shape.virtual_stages > pieces.matrix.shape[1]:
            return -1
        costs = pieces.matrix[FORWARD] + (pieces.matrix[BACKWARD] if self.training else 0.0)
        ends = balanced_chunks(costs, pieces.cut_s, shape.stages, shape.chunks)
        begins = np.concatenate([[0], ends[:-1]])
        self.ends.append(ends)
        self.microbatches.append(pieces.microbatch)
        self.sums.append(np.add.reduceat(pieces.matrix, begins, axis=1))
        sends = pieces.sends[:, ends - 1].copy()
        sends[:, -1] = 0.0
        self.sends.append(sends)
        return len(self.ends) - 1

    def _piecewise(self, microbatch: Microbatch, plan: Plan) -> _Piecewise:
        rank = microbatch.columns
        sends = [message_s(rank.crossing_bytes, far, plan, self.cluster) for far in (False, True)]
        matrix = np.stack(
            [
                rank.forward_s,
                rank.backward_s,
                rank.weight_s,
                rank.parameter_bytes,
                rank.parameter_bytes - rank.expert_bytes,
                microbatch.kept_bytes,
                *microbatch.weight_bytes,
            ]
        )
        cost = cut_s(rank, plan, self.cluster, training=self.training)
        return _Piecewise(microbatch, matrix, np.array(sends), cost)


def _bound_shape(found: Bounds, table: PlanTable, rows: Rows, cuts: Cuts) -> None:
    """All candidates of one number of stages and chunks and one schedule."""
    cluster, training = cuts.cluster, cuts.training
    shape = pipeline_shape(table.plan(int(rows[0])), training=training)
    keys = (table.tp, table.cp, table.ep, table.sequence_parallel, table.samples, table.recompute)
    number = np.empty(len(rows), dtype=np.intp)
    for part in _groups(*(key[rows] for key in keys)):
        number[part] = cuts.number(table, int(rows[part[0]]), shape)
    rows, number = rows[number >= 0], number[number >= 0]
    if not rows.size:
        return
    found.cut[rows] = number
    used, index = np.unique(number, return_inverse=True)
    sums = np.stack([cuts.sums[item] for item in used])[index]
    added = _added_s(table, rows, sums, cuts, used, index) if training else np.zeros_like(sums[:, PARAMETERS])
    sums[:, BACKWARD] += added
    sums[:, WEIGHT] += added
    sends = np.stack([cuts.sends[item] for item in used])[index]
    times = _chunk_times(table, rows, sums, sends, cluster, shape)
    found.time_s[rows] = _time(table, rows, sums, times, cuts, used, index, shape)
    kernels = np.array([float(_kernels(cuts.microbatches[item], training)) for item in used])[index]
    step = np.array([float(cuts.microbatches[item].columns.optimizer_s[0]) for item in used])[index]
    shards = np.where(table.zero[rows] > 0, table.dp[rows] * table.cp[rows], 1)
    kernels = kernels + added.sum(axis=1)
    found.kernel_s[rows] = (table.microbatches[rows] * kernels + training * step / shards) / shape.stages
    factor = np.array([cuts.microbatches[item].memory_factor for item in used])[index]
    found.peak_bytes[rows] = factor * _peak(table, rows, sums, shape)


def _added_s(
    table: PlanTable, rows: Rows, sums: FloatArray, cuts: Cuts, used: Rows, index: Rows
) -> FloatArray:
    """(n, virtual stages) time to add a mean microbatch's gradients to those before it."""
    rates = np.array([cuts.microbatches[item].columns.adding_s_per_byte for item in used])[index]
    times = rates * (1 - 1 / table.microbatches[rows]) * (table.zero[rows] < 2)
    return np.asarray(times[:, None] * sums[:, PARAMETERS])


def _kernels(microbatch: Microbatch, training: bool) -> float:
    return float(microbatch.columns.kernel_s[: 2 if training else 1].sum())


def _chunk_times(
    table: PlanTable,
    rows: Rows,
    sums: FloatArray,
    sends: FloatArray,
    cluster: ClusterSpec,
    shape: PipelineShape,
) -> ChunkTimes:
    """(n, virtual stages) durations; messages cross nodes where those of the first ranks do."""
    stage = np.arange(shape.virtual_stages) % shape.stages
    stride = (table.tp * table.cp * table.dp)[rows][:, None]
    node = stage * stride // cluster.devices_per_node
    following = (stage + 1) % shape.stages * stride // cluster.devices_per_node
    send = np.where(node != following, sends[:, 1], sends[:, 0]) * (shape.stages > 1)
    back = np.zeros_like(send)
    back[:, 1:] = send[:, :-1]
    weight = sums[:, WEIGHT] if shape.splits_backward else np.zeros_like(send)
    backward = sums[:, BACKWARD] - weight if shape.training else np.zeros_like(send)
    return ChunkTimes(sums[:, FORWARD], backward, weight, send, back)


def _time(
    table: PlanTable,
    rows: Rows,
    sums: FloatArray,
    times: ChunkTimes,
    cuts: Cuts,
    used: Rows,
    index: Rows,
    shape: PipelineShape,
) -> FloatArray:
    m, p, every = table.microbatches[rows], shape.stages, np.arange(len(rows))
    path_s = lower_bound_s(shape, times, m)
    by_stage = sums.reshape(*sums.shape[:2], -1, p).sum(axis=2)
    # The stage with the most weights: its own path, its gradients, its step.
    heavy = by_stage[:, DENSE].argmax(axis=1)
    dense, forward = by_stage[every, DENSE, heavy], by_stage[every, FORWARD, heavy]
    head = np.cumsum(times.forward[:, :p] + times.send_forward[:, :p], axis=1)
    head = np.where(heavy > 0, head[every, heavy - 1], 0.0)
    largest = np.array([_largest(cuts.microbatches[item]) for item in used])[index]
    reduce_s, gather_s = _exchanges(table, rows, dense, largest, cuts)
    zero = table.zero[rows]
    if not shape.training:
        gathered = np.maximum(forward, gather_s)
        own = head + m * np.where(zero == 3, gathered, forward)
        return np.asarray(np.maximum(path_s, own))
    backward = by_stage[every, BACKWARD, heavy]
    own = head + m * (forward + backward)
    # From the first gradient on that can be averaged, backward passes of other chunks remain.
    passes = sums[:, BACKWARD].reshape(len(rows), -1, p)[every, :, heavy]
    remaining = passes[:, -1] + np.minimum(p, m) * passes[:, :-1].sum(axis=1)
    own += np.where(zero < 3, np.maximum(0.0, reduce_s - remaining), 0.0)
    own += np.where((zero == 1) | (zero == 2), gather_s, 0.0)
    # ZeRO-3 gathers before each pass and reduces after it, at best all of it beside the kernels.
    shared = np.maximum(forward, gather_s) + np.maximum(backward, reduce_s)
    if p == 1:
        shared = np.maximum(shared, _piece_by_piece(table, rows, cuts, used, index))
    own = np.where(zero == 3, np.maximum(own, head + m * shared), own)
    total = np.array([max(1.0, float(cuts.microbatches[i].columns.parameter_bytes.sum())) for i in used])
    step = np.array([float(cuts.microbatches[i].columns.optimizer_s.sum()) for i in used])
    shards = np.where(zero > 0, table.dp[rows] * table.cp[rows], 1)
    per_byte = (step / total)[index] / shards
    # The path through all stages ends on the first one; with weight gradients put off, on any.
    held = by_stage[:, PARAMETERS]
    path_s = path_s + per_byte * (held.min(axis=1) if shape.splits_backward else held[:, 0])
    return np.asarray(np.maximum(path_s, own + per_byte * by_stage[every, PARAMETERS, heavy]))


def _piece_by_piece(table: PlanTable, rows: Rows, cuts: Cuts, used: Rows, index: Rows) -> FloatArray:
    """(n,) one microbatch of the whole model under ZeRO-3, 0 elsewhere: every piece has its own exchanges.

    The first gathering and the last reduction run beside nothing, and the last piece keeps its weights.
    """
    found = np.zeros(len(rows))
    shared = np.flatnonzero(table.zero[rows] == 3)
    if not shared.size:
        return found
    keys = (table.tp, table.cp, table.ep, table.dp)
    for part in _groups(*(key[rows[shared]] for key in keys), index[shared].astype(np.int64)):
        mine = shared[part]
        tp, cp, ep, dp = (int(key[rows[mine[0]]]) for key in keys)
        rank = cuts.microbatches[used[index[mine[0]]]].columns
        replicas, _, _ = cuts.replicas(tp, cp, ep, dp, 3)
        gather = replicas.gather_s(rank.parameter_bytes - rank.expert_bytes, cuts.cluster)
        reduce = replicas.reduce_s(rank.parameter_bytes - rank.expert_bytes, cuts.cluster)
        forward, backward = float(rank.forward_s.sum()), float(rank.backward_s.sum())
        again = float(gather[:-1].sum())
        found[mine] = max(forward + float(gather[0]), float(gather.sum())) + max(
            backward + float(reduce[0]), again + float(reduce.sum())
        )
    return found


def _largest(microbatch: Microbatch) -> float:
    """Bytes of the largest gradient, by which a bucket may exceed its size."""
    return float(microbatch.columns.gradients.size_bytes.max(initial=0.0))


def _exchanges(
    table: PlanTable, rows: Rows, size_bytes: FloatArray, largest_bytes: FloatArray, cuts: Cuts
) -> tuple[FloatArray, FloatArray]:
    """((n,) to average gradients of these sizes, (n,) to gather weights), in as few buckets as can be."""
    reduce_s, gather_s = np.zeros(len(rows)), np.zeros(len(rows))
    keys = (table.tp, table.cp, table.ep, table.dp, table.zero)
    for part in _groups(*(key[rows] for key in keys)):
        tp, cp, ep, dp, zero = (int(key[rows[part[0]]]) for key in keys)
        if dp * cp == 1:
            continue
        replicas, reduce_more_s, gather_more_s = cuts.replicas(tp, cp, ep, dp, zero)
        more = np.zeros(len(part))
        if zero < 3:
            more = np.maximum(0.0, np.floor(size_bytes[part] / (_BUCKET_BYTES + largest_bytes[part])) - 1)
        reduce_s[part] = replicas.reduce_s(size_bytes[part], cuts.cluster) + more * reduce_more_s
        if zero:
            gather_s[part] = replicas.gather_s(size_bytes[part], cuts.cluster) + more * gather_more_s
    return reduce_s, gather_s


def _peak(table: PlanTable, rows: Rows, sums: FloatArray, shape: PipelineShape) -> FloatArray:
    """(n,) weights, and activations of all microbatches in flight when the last one has run forward."""
    p = shape.stages
    by_stage = sums[:, HELD:].reshape(len(rows), 3, -1, p).sum(axis=2)
    zero, m = table.zero[rows][:, None], table.microbatches[rows][:, None]
    shards = (table.dp[rows] * table.cp[rows])[:, None]
    peak = by_stage[:, 0] / np.where(zero == 3, shards, 1)
    if not shape.training:
        return np.asarray(peak.max(axis=1))
    peak = peak + by_stage[:, 2] / np.where(zero >= 1, shards, 1)
    peak = peak + np.where(m > 1, by_stage[:, 1] / np.where(zero >= 2, shards, 1), 0.0)
    kept = sums[:, KEPT].reshape(len(rows), -1, p).min(axis=1)
    stage = np.arange(p)
    if shape.schedule is Schedule.GPIPE:
        in_flight = m + 0 * stage
    elif shape.splits_backward:
        in_flight = np.minimum(p, m) + 0 * stage
    elif shape.chunks == 1:
        in_flight = np.minimum(p - stage, m)
    else:
        in_flight = np.minimum(2 * (p - stage - 1) + (shape.chunks - 1) * p + 1, m * shape.chunks)
    return np.asarray((peak + in_flight * kept).max(axis=1))
