"""What one rank's microbatch costs, piece by piece: the numbers that every plan of its kind is made of.

The graph of a rank (sharded by tp, cp and ep, not yet cut into stages) is priced once; its pieces are the
narrow places where stages can begin. Plans that differ in stages, schedule, replicas or ZeRO share these
columns. Exchanges inside the graph (tensor, context and expert groups) stand in line with the kernels, except
that a hop round a ring runs beside the kernel before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from predictor.compose.interval import FloatArray
from predictor.compose.link_use import Exchanges
from predictor.features.lowering.layers import Segments
from predictor.features.programs.work import Collective, OpInstance, OpWork, Phase, Program, Transfer
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import collective_time_s, dispatch_time_s
from predictor.parallel.memory_stages import RankMemory
from predictor.parallel.offload import HostLinks
from predictor.parallel.placement import group_place
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Offload, Schedule

IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Parameter gradients of one microbatch, in the order in which they become ready.

    Attributes:
        piece: (g,) piece that makes each. offset_s: from the start of that piece's backward pass until ready.
        size_bytes: (g,) of the tensor. is_expert: (g,) whether only ranks with the same experts average it.
        held_s: (g,) by group, time on the link of the piece's exchanges after the gradient is ready.
    """

    piece: IntArray
    offset_s: FloatArray
    size_bytes: FloatArray
    is_expert: NDArray[np.bool_]
    held_s: Mapping[str, FloatArray]


@dataclass(frozen=True, slots=True)
class RankCosts:
    """Costs of one microbatch on one rank by piece, (k,) each; seconds unless said otherwise.

    Attributes:
        forward_s, backward_s: with launch gaps and exchanges in line; `backward_s` holds `weight_s`.
        weight_s: the part of `backward_s` that makes gradients of weights and nothing waits for.
        kernel_s: (2, k) the part of forward and backward in kernels, gap_s: in launch gaps.
        exchange_s: (2, k) by group, the part in exchanges.
        sent_bytes: (2, k) by group, what the rank sends. held_s: by group, what backward's exchanges spend on
        their link, beside kernels or not.
        parameter_bytes, expert_bytes: weights by the piece that reads them first, and those of experts.
        crossing_bytes: what goes to the next piece, gradients of the same size come back.
        optimizer_s: (2,) step over all weights: kernels, gaps.
        tied: (pieces, bytes) of each weight that several pieces read.
        partial_bytes: by group, gradients by piece that its ranks sum besides the replicas.
        kept_bytes: activations that each piece keeps for backward, where the plan keeps them elsewhere.
        adding_s_per_byte: time to add a byte of gradients to those of earlier microbatches.
        state_per_byte: optimizer state over weights. host: the link to what lives outside the device.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    kernel_s: FloatArray
    gap_s: FloatArray
    exchange_s: Mapping[str, FloatArray]
    sent_bytes: Mapping[str, FloatArray]
    held_s: Mapping[str, FloatArray]
    parameter_bytes: FloatArray
    expert_bytes: FloatArray
    crossing_bytes: FloatArray
    optimizer_s: FloatArray
    gradients: Gradients
    tied: tuple[tuple[tuple[int, ...], float], ...]
    partial_bytes: Mapping[str, FloatArray] = field(default_factory=dict)
    kept_bytes: FloatArray | None = None
    adding_s_per_byte: float = 0.0
    state_per_byte: float = 0.0
    host: HostLinks | None = None

    @property
    def pieces(self) -> int:
        """Pieces of the graph."""
        return len(self.forward_s)

    @property
    def total_s(self) -> FloatArray:
        """(k,) forward and backward."""
        return self.forward_s + self.backward_s


def repeated(columns: RankCosts, rows: IntArray) -> RankCosts | None:
    """Costs of a graph of which `columns` are those of a thin one (predictor.features.lowering.thin).

    Args:
        rows: (pieces of the whole graph,) piece of the thin one that stands for each.

    None when repeated layers share weights, which a thin graph cannot show.
    """
    copies = np.bincount(rows, minlength=columns.pieces)
    if any(copies[piece] > 1 for pieces, _ in columns.tied for piece in pieces):
        return None
    place = {int(piece): index for index, piece in enumerate(rows)}
    parameter_bytes = columns.parameter_bytes[rows]
    before = float(columns.parameter_bytes.sum())
    growth = float(parameter_bytes.sum()) / before if before else 1.0
    old = columns.gradients
    found: list[NDArray[np.intp]] = []
    where: list[NDArray[np.intp]] = []
    # Backward visits the pieces from the last to the first.
    for index in range(len(rows) - 1, -1, -1):
        mine = np.flatnonzero(old.piece == rows[index])
        found.append(mine)
        where.append(np.full(len(mine), index, dtype=np.intp))
    order = np.concatenate(found) if found else np.zeros(0, dtype=np.intp)
    return RankCosts(
        forward_s=columns.forward_s[rows],
        backward_s=columns.backward_s[rows],
        weight_s=columns.weight_s[rows],
        kernel_s=columns.kernel_s[:, rows],
        gap_s=columns.gap_s[:, rows],
        exchange_s={group: values[:, rows] for group, values in columns.exchange_s.items()},
        sent_bytes={group: values[:, rows] for group, values in columns.sent_bytes.items()},
        held_s={group: values[rows] for group, values in columns.held_s.items()},
        parameter_bytes=parameter_bytes,
        expert_bytes=columns.expert_bytes[rows],
        crossing_bytes=columns.crossing_bytes[rows],
        optimizer_s=columns.optimizer_s * growth,
        gradients=Gradients(
            np.concatenate(where) if where else order,
            old.offset_s[order],
            old.size_bytes[order],
            old.is_expert[order],
            {group: values[order] for group, values in old.held_s.items()},
        ),
        tied=tuple((tuple(place[piece] for piece in pieces), size) for pieces, size in columns.tied),
        partial_bytes={group: values[rows] for group, values in columns.partial_bytes.items()},
        kept_bytes=None if columns.kept_bytes is None else columns.kept_bytes[rows],
        adding_s_per_byte=columns.adding_s_per_byte,
        state_per_byte=columns.state_per_byte,
        host=columns.host,
    )


def rank_costs(
    rank: RankProgram,
    kernel_s: FloatArray,
    stretch: float,
    plan: Plan,
    cluster: ClusterSpec | None,
    host: HostLinks | None = None,
) -> RankCosts:
    """Costs of one microbatch of `rank`.

    Args:
        kernel_s: (ops,) device time of each op, exchanges 0.
        stretch: factor on device time that accounts for the host's launches.
        plan, cluster: where the groups of the exchanges lie.
        host: needed for plans that keep something outside the device.
    """
    program, pieces = rank.program, rank.pieces
    phases = np.array([_PHASES[op.work.phase] for op in program.ops], dtype=np.intp)
    piece = _piece_of_ops(pieces, program, phases)
    exchange_s, link_s, beside_s, owner = _exchanges(program, kernel_s, plan, cluster)
    spent_s = kernel_s * stretch + exchange_s
    count = 1 if pieces is None else len(pieces)

    def by_piece(values: FloatArray, chosen: NDArray[np.bool_] | None = None) -> FloatArray:
        rows = []
        for phase in (0, 1):
            mask = phases == phase if chosen is None else (phases == phase) & chosen
            rows.append(np.bincount(piece[mask], weights=values[mask], minlength=count))
        return np.array(rows)

    total = by_piece(spent_s)
    kernels = by_piece(kernel_s)
    groups = sorted(set(owner) - {""})
    masks = {group: np.array([name == group for name in owner], dtype=bool) for group in groups}
    backward = phases == 1
    end_s = np.cumsum(np.where(backward, spent_s, 0.0))
    # What runs beside kernels has begun with them.
    start_s = end_s - np.maximum(link_s, beside_s)
    links = {
        group: Exchanges(piece[rows], start_s[rows], start_s[rows] + link_s[rows])
        for group in groups
        if (rows := backward & masks[group]).any()
    }
    sent = np.array(
        [op.work.shape.sent_bytes if isinstance(op.work.shape, Transfer) else 0.0 for op in program.ops]
    )
    weight = np.array([is_weight_gradient(op.work) for op in program.ops], dtype=bool)
    owned, expert_owned, tied = _weights(rank)
    step_s = float(kernel_s[phases == _OPTIMIZER].sum())
    return RankCosts(
        forward_s=total[0],
        backward_s=total[1],
        weight_s=by_piece(spent_s, weight)[1],
        kernel_s=kernels,
        gap_s=kernels * (stretch - 1.0),
        exchange_s={group: by_piece(exchange_s, mask) for group, mask in masks.items()},
        sent_bytes={group: by_piece(sent, mask) for group, mask in masks.items()},
        held_s={group: exchanges.held_s(count) for group, exchanges in links.items()},
        parameter_bytes=owned,
        expert_bytes=expert_owned,
        crossing_bytes=_crossing_bytes(rank),
        optimizer_s=np.array([step_s, step_s * (stretch - 1.0)]),
        gradients=_gradients(program, end_s, spent_s, backward, piece, count, rank.experts, links),
        tied=tied,
        partial_bytes=_partial_bytes(rank, piece, count),
        kept_bytes=_kept_bytes(rank, count) if Offload.ACTIVATIONS in plan.offload else None,
        state_per_byte=program.memory.optimizer_state_bytes / max(1, program.memory.parameter_bytes),
        host=host,
    )


_PHASES = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.OPTIMIZER: 2}
_OPTIMIZER = 2


def is_weight_gradient(work: OpWork) -> bool:
    """True for products that make the gradient of a weight: nothing before the optimizer waits for them."""
    return work.phase is Phase.BACKWARD and (
        work.kind.endswith("weight_gradient") or getattr(work.shape, "pass_name", "") == "weight_gradient"
    )


def _piece_of_ops(pieces: Segments | None, program: Program, phases: IntArray) -> IntArray:
    """(ops,) piece of each op; ops of a node's body, and the loss's, belong where their neighbours do."""
    found = np.zeros(len(program.ops), dtype=np.intp)
    if pieces is None:
        return found
    names = {node.name: piece for node, piece in zip(pieces.nodes, pieces.piece_of_nodes(), strict=True)}
    last = {0: 0, 1: len(pieces) - 1, 2: 0}
    for index, (op, phase) in enumerate(zip(program.ops, phases.tolist(), strict=True)):
        found[index] = last[phase] = names.get(op.node, last[phase])
    return found


def _crossing_bytes(rank: RankProgram) -> FloatArray:
    if rank.graph is None or rank.pieces is None:
        return np.zeros(1)
    values = rank.graph.values
    return np.array([float(sum(values[name].size_bytes for name in names)) for names in rank.pieces.crossing])


def _exchanges(
    program: Program, kernel_s: FloatArray, plan: Plan, cluster: ClusterSpec | None
) -> tuple[FloatArray, FloatArray, FloatArray, list[str]]:
    """Of each exchange: (ops,) seconds of waiting, on its link, of kernels beside it, and its group.

    Kernels have 0 and the group "".
    """
    times, whole, hiding = (np.zeros(len(program.ops)) for _ in range(3))
    owner = [""] * len(program.ops)
    known: dict[Transfer, float] = {}
    # A schedule that puts weight gradients off leaves nothing beside the exchange of input gradients.
    put_off = plan.schedule is Schedule.ZERO_BUBBLE and plan.pp > 1
    beside = _Beside(program.ops, kernel_s, weights=not put_off)
    for index, op in enumerate(program.ops):
        shape = op.work.shape
        if not isinstance(shape, Transfer) or cluster is None:
            continue
        owner[index] = shape.group
        if shape not in known:
            place = group_place(plan, shape.group, cluster)
            size = float(shape.size_bytes)
            if shape.kind is Collective.ALL_TO_ALL and shape.group == "ep":
                known[shape] = dispatch_time_s(size, plan.ep_copies, place, cluster)
            else:
                known[shape] = collective_time_s(shape.kind.value, size, place, cluster)
        hidden_s = beside.hidden_s(index, shape) if plan.overlap else 0.0
        if plan.tp_overlap and not hidden_s and shape.group == "tp":
            # One of as many parts as ranks is exchanged before or after all products.
            hidden_s = min(known[shape], beside.product_s(index, shape)) * (1 - 1 / plan.tp)
        whole[index], hiding[index] = known[shape], hidden_s
        times[index] = max(0.0, known[shape] - hidden_s)
    return times, whole, hiding, owner


class _Beside:
    """What runs beside an exchange, by its place in the program.

    A hop round a ring: the kernel before it, on the keys and values that are there already. The exchange of a
    product's input gradient: its weight gradient, which nothing waits for. Gathering the input once more for
    that weight gradient: the product that makes the input gradient. The last two as in Megatron-LM
    (Korthikanti et al. 2022, section 4.2.2). With `Plan.tp_overlap`, part by part: the products that read
    what is gathered, or make what is scattered (Transformer Engine's userbuffers).
    """

    def __init__(self, ops: Sequence[OpInstance], kernel_s: FloatArray, *, weights: bool) -> None:
        self._ops, self._kernel_s, self._weights = ops, kernel_s, weights
        self._taken: set[tuple[int, bool]] = set()

    def hidden_s(self, index: int, shape: Transfer) -> float:
        """Time of kernels beside exchange number `index`; each kernel hides one exchange."""
        ops = self._ops
        if not index:
            return 0.0
        if shape.kind is Collective.SEND_RECV:
            return float(self._kernel_s[index - 1]) if ops[index - 1].node == ops[index].node else 0.0
        if ops[index].work.phase is not Phase.BACKWARD:
            return 0.0
        last = index - 1
        while last >= 0 and ops[last].node == ops[index].node:
            last -= 1
        wants_weight = shape.kind is not Collective.ALL_GATHER
        if last < 0 or (last, wants_weight) in self._taken or (wants_weight and not self._weights):
            return 0.0
        self._taken.add((last, wants_weight))
        total, first = 0.0, last
        while first >= 0 and ops[first].node == ops[last].node and ops[first].work.phase is Phase.BACKWARD:
            work = ops[first].work
            if is_weight_gradient(work) if wants_weight else work.kind.endswith("data_gradient"):
                total += float(self._kernel_s[first])
            first -= 1
        return total

    def product_s(self, index: int, shape: Transfer) -> float:
        """Time of the products that read what exchange number `index` gathers, or make what it scatters."""
        if shape.kind not in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
            return 0.0
        step = 1 if shape.kind is Collective.ALL_GATHER else -1
        total, at = 0.0, index + step
        while 0 <= at < len(self._ops) and self._ops[at].work.kind in _BESIDE_PARTS:
            total += 0.0 if is_weight_gradient(self._ops[at].work) else float(self._kernel_s[at])
            at += step
        return total


_BESIDE_PARTS = frozenset({"linear", "linear_data_gradient", "linear_weight_gradient", "cast"})
"""Kinds of work between an exchange of tensor ranks and the end of the products that it serves."""


def _weights(
    rank: RankProgram,
) -> tuple[FloatArray, FloatArray, tuple[tuple[tuple[int, ...], float], ...]]:
    """Bytes of weights by the first piece that reads them, those of experts, and what pieces share."""
    graph, pieces = rank.graph, rank.pieces
    if graph is None or pieces is None:
        size_bytes = float(sum(gradient.size_bytes for gradient in rank.program.gradients))
        return np.array([size_bytes]), np.zeros(1), ()
    holders: dict[str, list[int]] = {}
    for node, piece in zip(pieces.nodes, pieces.piece_of_nodes(), strict=True):
        for name in node.inputs:
            for root in pieces.weight_roots.get(name, ()):
                held = holders.setdefault(root, [])
                if piece not in held:
                    held.append(piece)
    owned, expert_owned = np.zeros(len(pieces)), np.zeros(len(pieces))
    tied: list[tuple[tuple[int, ...], float]] = []
    for name in sorted(holders):
        readers = tuple(sorted(holders[name]))
        size_bytes = float(graph.values[name].size_bytes)
        owned[readers[0]] += size_bytes
        if name in rank.experts:
            expert_owned[readers[0]] += size_bytes
        if len(readers) > 1:
            tied.append((readers, size_bytes))
    return owned, expert_owned, tuple(tied)


def _gradients(
    program: Program,
    end_s: FloatArray,
    spent_s: FloatArray,
    backward: NDArray[np.bool_],
    piece: IntArray,
    count: int,
    experts: frozenset[str],
    links: Mapping[str, Exchanges],
) -> Gradients:
    """`end_s`: (ops,) when each op of backward is done, with all pieces in a row."""
    # Backward visits the pieces from the last to the first.
    begin_s = np.full(count, np.inf)
    np.minimum.at(begin_s, piece[backward], (end_s - spent_s)[backward])
    items: Sequence[tuple[int, float, int, bool]] = [
        (int(piece[g.op_index]), float(end_s[g.op_index]), g.size_bytes, g.parameter in experts)
        for g in sorted(program.gradients, key=lambda g: g.op_index)
    ]
    where = np.array([item[0] for item in items], dtype=np.intp)
    ready_s = np.array([item[1] for item in items])
    return Gradients(
        piece=where,
        offset_s=ready_s - begin_s[where],
        size_bytes=np.array([float(item[2]) for item in items]),
        is_expert=np.array([item[3] for item in items], dtype=bool),
        held_s={group: exchanges.held_after_s(ready_s, where) for group, exchanges in links.items()},
    )


def _partial_bytes(rank: RankProgram, piece: IntArray, count: int) -> dict[str, FloatArray]:
    found: dict[str, FloatArray] = {}
    for gradient in rank.program.gradients:
        for group in rank.partial.get(gradient.parameter, ()):
            found.setdefault(group, np.zeros(count))[piece[gradient.op_index]] += gradient.size_bytes
    return found


def _kept_bytes(rank: RankProgram, count: int) -> FloatArray:
    memory = RankMemory(rank)
    return np.array([memory.chunk(piece, piece + 1, offloaded=False).kept_bytes for piece in range(count)])
