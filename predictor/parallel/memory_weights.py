"""What the ranks of each pipeline stage hold of weights, gradients and optimizer state under a plan.

    zero 1      optimizer state is cut into shards
    zero 2      gradients too: a rank keeps its shard of those reduced, and the piece's whose backward runs
    zero 3      weights too: a rank keeps its shard, and gathers each layer's for as long as it computes

Layers are the repeated pieces of the graph; all else (embeddings, head) is gathered throughout, as FSDP's
root is. The next layer's weights arrive while one computes. Rajbhandari et al. 2020, arXiv:1910.02054;
Zhao et al. 2023, arXiv:2304.11277.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.memory_timeline import Line, MemoryTimeline
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Offload

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PieceWeights:
    """Bytes by piece of a rank's graph, (k,) each, for dense weights [0] and experts' [1], (2, k).

    A weight counts in every piece that reads it; a stage counts it once, see `stage_sum`.

    Attributes:
        names: per piece, the weights that it reads.
        sizes: per weight (bytes of weight, of gradient, of state, is an expert's).
        is_layer: (k,) whether the piece is a repeated layer.
        frozen_bytes: of weights that are not trained (the graph's buffers); `sizes` has them, too.
    """

    names: tuple[frozenset[str], ...]
    sizes: dict[str, tuple[float, float, float, bool]]
    is_layer: NDArray[np.bool_]
    frozen_bytes: float = 0.0

    def stage_sum(self, pieces: Sequence[int]) -> FloatArray:
        """(3, 2) bytes of weights, gradients and state of a stage of these pieces: dense, and experts'."""
        # Plain numbers: a stage has tens of weights, and searches ask for thousands of stages.
        dense, experts = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for name in frozenset[str]().union(*(self.names[piece] for piece in pieces)):
            weight, gradient, state, expert = self.sizes[name]
            held = experts if expert else dense
            held[0] += weight
            held[1] += gradient
            held[2] += state
        return np.array([dense, experts]).T


def piece_weights(rank: RankProgram, timeline: MemoryTimeline) -> PieceWeights:
    """Weights of a rank by piece; one piece holds all where the graph is not known."""
    gradient_of: dict[str, float] = {}
    rows = np.flatnonzero(timeline.line == Line.PARAMETER_GRADIENT)
    for row in rows:
        name = timeline.name[row]
        gradient_of[name] = gradient_of.get(name, 0.0) + float(timeline.size_bytes[row])
    total = sum(gradient_of.values())
    per_byte = sum(timeline.held.state_bytes) / total if total else 0.0
    if rank.graph is None or rank.pieces is None:
        everything = (float(timeline.held.parameter_bytes), total, total * per_byte, False)
        return PieceWeights((frozenset({"all"}),), {"all": everything}, np.zeros(1, dtype=bool))
    values, pieces = rank.graph.values, rank.pieces
    names: list[frozenset[str]] = []
    begin = 0
    for end in pieces.ends:
        read = {name for node in pieces.nodes[begin:end] for name in node.inputs if name}
        roots = (pieces.weight_roots.get(name, frozenset()) for name in read)
        names.append(frozenset(read & rank.graph.buffers).union(*roots))
        begin = end
    unread = rank.graph.parameters - frozenset().union(*names)
    names[0] |= unread
    sizes = {
        name: (
            float(values[name].size_bytes),
            gradient_of.get(name, 0.0),
            gradient_of.get(name, 0.0) * per_byte,
            name in rank.experts,
        )
        for name in rank.graph.parameters
    }
    frozen = frozenset().union(*names) & rank.graph.buffers
    sizes |= {name: (float(values[name].size_bytes), 0.0, 0.0, False) for name in frozen}
    counts = Counter(pieces.repeats)
    is_layer = np.array([counts[repeat] > 1 for repeat in pieces.repeats], dtype=bool)
    return PieceWeights(tuple(names), sizes, is_layer, sum(sizes[name][0] for name in frozen))


@dataclass(frozen=True, slots=True)
class StageWeights:
    """What a stage holds whatever it computes, and what visits it piece by piece; bytes.

    Attributes:
        weights, gradients, state: resident through the iteration; `gradients` once they all exist.
        gathered: (pieces,) extra weights while the piece computes. whole_gradients: (pieces,) gradients that
            are not yet reduced while its backward runs; 0 where `gradients` has them.
        buffers: what gradients and weights travel in.
        grows: gradients come into being while backward runs (the first microbatch of a plain job).
        kept: share of a gradient that stays once its piece is reduced.
    """

    weights: float
    gradients: float
    state: float
    gathered: FloatArray
    whole_gradients: FloatArray
    buffers: float
    grows: bool
    kept: float = 1.0


@dataclass(frozen=True, slots=True)
class GradientBuffers:
    """How a framework keeps the gradients of weights.

    Attributes:
        resident: in one buffer that is never given back; else they come into being during backward.
        wide: summed up in FP32 beside 16-bit weights. fused: products add to the sum themselves.
        copied: a flat copy of all of them is sent, as torch's DDP keeps in its buckets.
    """

    resident: bool = False
    wide: bool = False
    fused: bool = False
    copied: bool = True


TORCH_BUFFERS = GradientBuffers()
MEGATRON_BUFFERS = GradientBuffers(resident=True, wide=True, copied=False)


def stage_weights(
    held: PieceWeights,
    pieces: Sequence[int],
    plan: Plan,
    *,
    training: bool,
    buffers: GradientBuffers = TORCH_BUFFERS,
    expert_shards: int | None = None,
) -> StageWeights:
    """Weights of a stage that runs `pieces`.

    Args:
        expert_shards: ranks that share a rank's experts under `zero` where they are not those of the plan.
    """
    whole = held.stage_sum(pieces)
    of_experts = shard_count(plan, experts=True) if expert_shards is None else expert_shards
    shards = np.array([shard_count(plan, experts=False), of_experts], dtype=np.float64)
    replicas = plan.group_size("dp_cp")
    weights = whole[0] / (shards if plan.shared == 3 else 1.0)
    gradients = whole[1] / (shards if plan.shared >= 2 else 1.0)
    state = whole[2] / (shards if plan.shared >= 1 else 1.0)
    if Offload.OPTIMIZER in plan.offload:
        state = np.zeros(2)
        # Each gradient leaves for the host as it is ready.
        gradients = np.zeros(2)
    # Kinds of weights of which a rank holds a shard or nothing: those visit while a piece computes.
    visits = (shards > 1) & (plan.shared == 3)
    if Offload.PARAMETERS in plan.offload:
        weights, visits = np.zeros(2), np.ones(2, dtype=bool)
    gathered, whole_gradients = np.zeros(len(held.names)), np.zeros(len(held.names))
    passes = (shards > 1) & (plan.shared >= 2) | (Offload.OPTIMIZER in plan.offload)
    units = {piece: held.stage_sum([piece]) for piece in pieces}
    layers = [piece for piece in pieces if held.is_layer[piece]]
    rest = [piece for piece in pieces if not held.is_layer[piece]]
    root = held.stage_sum(rest) if rest else np.zeros((3, 2))
    for piece in pieces:
        near = _neighbours(layers, piece)
        if visits.any():
            gathered[piece] = (root[0] + sum(units[other][0] for other in near)) @ visits
        if training and passes.any():
            whole_gradients[piece] = (units[piece][1] if held.is_layer[piece] else root[1]) @ passes
    sent = 0.0
    if training and replicas > 1 and buffers.copied:
        if plan.shared == 0:
            sent = float(gradients.sum())
        elif plan.shared in (1, 2):
            sent = 2.0 * min(float(plan.bucket_bytes), float(whole[1].sum()))
    return StageWeights(
        weights=float(weights.sum()),
        gradients=float(gradients.sum()) if training else 0.0,
        state=float(state.sum()) if training else 0.0,
        gathered=gathered,
        whole_gradients=whole_gradients,
        buffers=sent,
        grows=plan.microbatches == 1 and not buffers.resident and Offload.OPTIMIZER not in plan.offload,
        kept=float(gradients.sum() / whole[1].sum()) if whole[1].any() else 1.0,
    )


def _neighbours(layers: Sequence[int], piece: int) -> tuple[int, ...]:
    """The layer that computes and the one that is on its way."""
    if piece not in layers:
        return ()
    place = layers.index(piece)
    other = place + 1 if place + 1 < len(layers) else place - 1
    return (piece, layers[other]) if len(layers) > 1 else (piece,)


def shard_count(plan: Plan, *, experts: bool) -> int:
    """Ranks among which one copy of the dense weights, or of a rank's experts, is cut."""
    size = plan.group_size("expert_dp_cp" if experts else "dp_cp")
    shards = min(plan.shard_size, size)
    while size % shards:
        shards -= 1
    return shards
