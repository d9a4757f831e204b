"""Peak of each pipeline stage: its microbatches in the schedule's order, over the timeline of one of them.

    at any moment = weights, gradients, state of the stage
                  + what every other microbatch in flight has kept for its backward pass
                  + what the one that computes holds in this step

The stage that needs the most decides; in 1F1B that is usually the first, with as many microbatches in flight
as there are stages (Narayanan et al. 2021, arXiv:2104.04473), or the last, with the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidPlan
from predictor.features.programs.memory_timeline import Line, MemoryTimeline
from predictor.parallel.memory_weights import (
    TORCH_BUFFERS,
    GradientBuffers,
    PieceWeights,
    StageWeights,
    piece_weights,
    shard_count,
    stage_weights,
)
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.parallel.schedule import PipelineShape, Task, TaskKind, stage_order
from predictor.parallel.sharding.choose import is_state
from predictor.types import Offload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

# Layers beside the running one whose activations are on the device when activations live elsewhere.
_NEAR_LAYERS = 1


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The peak on the ranks of one stage.

    Attributes:
        peak_bytes: all tensors at once. lines: what for; sums to it.
        moment: `forward`, `backward` or `optimizer`. chunk, step: of the stage's part of the timeline.
        in_flight: microbatches that hold activations then, the running one included.
    """

    stage: int
    peak_bytes: float
    lines: Mapping[str, float]
    moment: str
    chunk: int
    step: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One virtual stage over its own steps, bytes; `piece` of each step.

    Attributes:
        activations, transients, gradients, new_gradients: (steps,).
        kept_bytes: between its passes. forward: number of forward steps.
    """

    timeline: MemoryTimeline
    activations: FloatArray
    transients: FloatArray
    gradients: FloatArray
    new_gradients: FloatArray
    piece: IntArray
    kept_bytes: float
    forward: int


class RankMemory:
    """The memory of a rank's microbatch, cut wherever a plan cuts it; parts are remembered."""

    def __init__(self, rank: RankProgram, away: frozenset[str] = frozenset()) -> None:
        """Takes `rank` apart; `away` are kept values that leave for the host while other layers run."""
        timeline = rank.program.timeline
        if timeline is None:
            raise InvalidPlan("plan: the program was read back without its memory timeline; build it anew")
        self._timeline = timeline
        self._rank = rank
        self._away = away
        self._chunks: dict[tuple[int, int, bool], _Chunk] = {}
        self._inputs = _inputs(rank, len(timeline.held.input_bytes))
        self.weights: PieceWeights = piece_weights(rank, timeline)

    @property
    def pieces(self) -> int:
        """Places where stages can begin."""
        return len(self.weights.names)

    @property
    def timeline(self) -> MemoryTimeline:
        """Of the whole rank."""
        return self._timeline

    def input_bytes(self, pieces: Sequence[int], microbatches: int) -> float:
        """Of the inputs that these pieces are the first to read: caches lie where their layer runs.

        Those of every microbatch stay from step to step; of all else one microbatch's is there.
        """
        own, total = frozenset(pieces), 0.0
        for size, piece, stays in zip(self._timeline.held.input_bytes, *self._inputs, strict=True):
            if piece in own:
                total += size * (microbatches if stays else 1)
        return total

    def chunk(self, first: int, last: int, *, offloaded: bool) -> _Chunk:
        """Pieces `first` to `last` - 1; `offloaded`: activations leave while other layers run."""
        key = (first, last, offloaded)
        if key not in self._chunks:
            self._chunks[key] = self._cut(first, last, offloaded)
        return self._chunks[key]

    def _cut(self, first: int, last: int, offloaded: bool) -> _Chunk:
        whole, pieces = self._timeline, self._rank.pieces
        if pieces is None:
            part, of_node = whole, np.zeros(len(whole.step_nodes) + 1, dtype=np.intp)
        else:
            ends = (0, *pieces.ends)
            is_whole = (first, last) == (0, len(pieces))
            part = whole if is_whole else whole.part(ends[first], ends[last])
            of_node = np.array([*pieces.piece_of_nodes(), len(pieces) - 1], dtype=np.intp)
        nodes = np.minimum(np.asarray(part.step_nodes, dtype=np.intp), len(of_node) - 1)
        piece = of_node[nodes]
        lines = part.bytes_by_line.astype(np.float64)
        steps = len(piece)
        kept = float(part.kept_bytes)
        leaving = part.line == Line.SAVED
        if not offloaded:
            leaving &= np.array([name in self._away for name in part.name], dtype=bool)
        if leaving.any():
            rows = np.flatnonzero(leaving)
            lines[Line.SAVED] += _near_only(part, rows, of_node, piece) - _alive(part, rows, steps)
            last = part.forward_length - 1
            across = rows[(part.begin[rows] <= last) & (part.end[rows] > last)]
            kept -= float(part.size_bytes[across].sum())
        new = np.zeros(steps + 1)
        rows = np.flatnonzero(part.line == Line.PARAMETER_GRADIENT)
        np.add.at(new, part.begin[rows], part.size_bytes[rows])
        np.subtract.at(new, part.ready[rows] + 1, part.size_bytes[rows])
        activations, transients = lines[Line.SAVED] + lines[Line.RECOMPUTED], lines[Line.TRANSIENT]
        if not part.training:
            # Without a backward pass whatever is alive counts as activations, as on one device.
            activations, transients = activations + transients, np.zeros(steps)
        return _Chunk(
            timeline=part,
            activations=activations,
            transients=transients,
            gradients=lines[Line.PARAMETER_GRADIENT],
            new_gradients=np.cumsum(new)[:steps],
            piece=piece,
            kept_bytes=kept,
            forward=part.forward_length,
        )


def _near_only(part: MemoryTimeline, rows: IntArray, of_node: IntArray, piece: IntArray) -> FloatArray:
    """(steps,) bytes of these rows when only layers next to the running one keep theirs on the device."""
    found = np.zeros(len(piece))
    own = of_node[np.minimum(part.node[rows], len(of_node) - 1)]
    for number in np.unique(own):
        near = np.abs(piece - number) <= _NEAR_LAYERS
        found += np.where(near, _alive(part, rows[own == number], len(piece)), 0.0)
    return found


def _alive(part: MemoryTimeline, rows: IntArray, steps: int) -> FloatArray:
    """(steps,) bytes of these rows in each step."""
    delta = np.zeros(steps + 1)
    np.add.at(delta, part.begin[rows], part.size_bytes[rows])
    np.subtract.at(delta, part.end[rows] + 1, part.size_bytes[rows])
    total: FloatArray = np.cumsum(delta)[:steps]
    return total


def stage_memories(
    memory: RankMemory,
    ends: Sequence[int] | IntArray,
    plan: Plan,
    *,
    training: bool,
    buffers: GradientBuffers = TORCH_BUFFERS,
    expert_shards: int | None = None,
) -> list[StageMemory]:
    """The peak of every stage.

    Args:
        ends: (virtual stages,) pieces of virtual stage q are those from ends[q - 1] to ends[q] - 1; virtual
            stage q runs on stage q % pp.
        buffers: how the framework keeps gradients.
        expert_shards: ranks that share a rank's experts under `zero` where they are not those of the plan.
    """
    begins = [0, *[int(end) for end in ends[:-1]]]
    cuts = list(zip(begins, (int(end) for end in ends), strict=True))
    return [_stage(memory, cuts, stage, plan, training, buffers, expert_shards) for stage in range(plan.pp)]


def _inputs(rank: RankProgram, count: int) -> tuple[list[int], list[bool]]:
    """By input: the piece that first reads it, and whether it is a cache. The first piece where unknown."""
    graph, pieces = rank.graph, rank.pieces
    if graph is None or pieces is None:
        return [0] * count, [False] * count
    of_node = pieces.piece_of_nodes()
    readers = (graph.consumers.get(name, ()) for name in graph.inputs)
    first = [of_node[min(found)] if found else 0 for found in readers]
    return first, [is_state(graph, name) for name in graph.inputs]


def worst_stage(stages: Sequence[StageMemory]) -> StageMemory:
    """The stage that needs the most; the first of equals."""
    return max(stages, key=lambda item: (item.peak_bytes, -item.stage))


def _stage(
    memory: RankMemory,
    cuts: Sequence[tuple[int, int]],
    stage: int,
    plan: Plan,
    training: bool,
    buffers: GradientBuffers,
    expert_shards: int | None,
) -> StageMemory:
    offloaded = Offload.ACTIVATIONS in plan.offload
    own = cuts[stage :: plan.pp]
    chunks = [memory.chunk(first, last, offloaded=offloaded) for first, last in own]
    pieces = [piece for first, last in own for piece in range(first, last)]
    weights = stage_weights(
        memory.weights, pieces, plan, training=training, buffers=buffers, expert_shards=expert_shards
    )
    # A sum in FP32 is twice as wide as what a product of 16 bits adds to it; a fused product adds directly.
    new_share = 0.0 if buffers.fused else 0.5 if buffers.wide else 1.0
    held = memory.timeline.held
    inputs = memory.input_bytes(pieces, 1 if training else plan.microbatches)
    fixed = {
        "parameters": weights.weights + held.buffer_bytes - memory.weights.frozen_bytes,
        "optimizer_state": weights.state,
        "communication_buffers": weights.buffers,
    }
    shape = _shape(plan, len(own), training)
    best: StageMemory | None = None
    for chunk, forward, others, in_flight in _moments(shape, stage, tuple(c.kept_bytes for c in chunks)):
        found = _task(
            chunks[chunk],
            weights,
            fixed,
            forward,
            others,
            inputs * in_flight,
            stage,
            chunk,
            in_flight,
            new_share,
        )
        if best is None or found.peak_bytes > best.peak_bytes:
            best = found
    assert best is not None
    if training:
        last = _optimizer(memory, weights, fixed, plan, stage, inputs)
        best = max(best, last, key=lambda item: item.peak_bytes)
    return best


def _task(
    chunk: _Chunk,
    weights: StageWeights,
    fixed: Mapping[str, float],
    forward: bool,
    others: float,
    inputs: float,
    stage: int,
    number: int,
    in_flight: int,
    new_share: float,
) -> StageMemory:
    """The largest step of one microbatch's forward or backward pass."""
    part = _steps_of(chunk, forward)
    gathered, gradients, resident = _visiting(chunk, weights, part, forward, new_share)
    total = chunk.activations[part] + chunk.transients[part] + gathered + gradients
    at = int(total.argmax())
    step = part.start + at
    lines = {
        **fixed,
        "parameters": fixed["parameters"] + float(gathered[at]),
        "gradients": resident + float(gradients[at]),
        "activations": float(chunk.activations[step]) + others + inputs,
        "workspace": float(chunk.transients[step]),
    }
    moment = "forward" if forward else "backward"
    return StageMemory(stage, sum(lines.values()), lines, moment, number, step, in_flight)


def _steps_of(chunk: _Chunk, forward: bool) -> slice:
    """Of the chunk's timeline; the optimizer's step, its last, is judged apart."""
    steps = len(chunk.activations)
    if not forward:
        return slice(chunk.forward, max(chunk.forward + 1, steps - 1))
    return slice(0, chunk.forward or steps)


def _visiting(
    chunk: _Chunk, weights: StageWeights, part: slice, forward: bool, new_share: float
) -> tuple[FloatArray, FloatArray, float]:
    """(steps,) gathered weights and gradients in those steps, and gradients that are there throughout."""
    gathered, whole = weights.gathered[chunk.piece[part]], weights.whole_gradients[chunk.piece[part]]
    if weights.grows:
        made = chunk.gradients[part]
        running = np.minimum(made, whole)
        return gathered, running + weights.kept * (made - running), 0.0
    if forward:
        return gathered, np.zeros(len(whole)), weights.gradients
    return gathered, np.maximum(whole, new_share * chunk.new_gradients[part]), weights.gradients


def stage_levels(
    memory: RankMemory,
    ends: Sequence[int] | IntArray,
    plan: Plan,
    worst: StageMemory,
    *,
    training: bool,
) -> tuple[MemoryTimeline, dict[str, FloatArray]]:
    """The part of the timeline that the worst stage's chunk runs, and (steps,) bytes by line over it.

    As `stage_memories` has it at the chunk's largest moments, so that its peak is `worst`'s unless that is
    the optimizer's; the optimizer's step itself is left out.
    """
    begins = [0, *[int(end) for end in ends[:-1]]]
    cuts = list(zip(begins, (int(end) for end in ends), strict=True))[worst.stage :: plan.pp]
    offloaded = Offload.ACTIVATIONS in plan.offload
    chunks = [memory.chunk(first, last, offloaded=offloaded) for first, last in cuts]
    pieces = [piece for first, last in cuts for piece in range(first, last)]
    weights = stage_weights(memory.weights, pieces, plan, training=training, buffers=TORCH_BUFFERS)
    held = memory.timeline.held
    inputs = memory.input_bytes(pieces, 1 if training else plan.microbatches)
    chunk = chunks[worst.chunk]
    parts: dict[str, list[FloatArray]] = {
        name: [] for name in ("parameters", "gradients", "activations", "workspace")
    }
    shape = _shape(plan, len(cuts), training)
    moments = _moments(shape, worst.stage, tuple(item.kept_bytes for item in chunks))
    for number, forward, others, in_flight in sorted(moments, key=lambda item: not item[1]):
        if number != worst.chunk:
            continue
        part = _steps_of(chunk, forward)
        gathered, gradients, resident = _visiting(chunk, weights, part, forward, 1.0)
        base = weights.weights + held.buffer_bytes - memory.weights.frozen_bytes
        parts["parameters"].append(base + gathered)
        parts["gradients"].append(resident + gradients)
        parts["activations"].append(chunk.activations[part] + others + inputs * in_flight)
        parts["workspace"].append(chunk.transients[part])
    levels = {name: np.concatenate(found) for name, found in parts.items()}
    steps = len(levels["workspace"])
    levels["optimizer_state"] = np.full(steps, weights.state)
    levels["communication_buffers"] = np.full(steps, weights.buffers)
    return chunk.timeline, levels


def _optimizer(
    memory: RankMemory,
    weights: StageWeights,
    fixed: Mapping[str, float],
    plan: Plan,
    stage: int,
    inputs: float,
) -> StageMemory:
    """The step: all gradients, and temporaries as large as what the rank updates."""
    timeline = memory.timeline
    last = timeline.bytes_by_line[:, -1].astype(np.float64)
    gradients = float(timeline.sum_of(Line.PARAMETER_GRADIENT))
    shards = shard_count(plan, experts=False) if plan.zero else 1
    own = memory.weights.stage_sum(range(memory.pieces))[1].sum()
    share = (weights.gradients * (1 if plan.zero < 2 else shards) / own / shards) if own else 0.0
    temporaries = last[Line.OPTIMIZER_TEMPORARY] * min(1.0, share)
    results = last[Line.TRANSIENT] + last[Line.SAVED] if stage == plan.pp - 1 else 0.0
    lines = {
        **fixed,
        "gradients": weights.gradients if gradients else 0.0,
        "activations": inputs,
        "workspace": float(temporaries + results),
    }
    return StageMemory(stage, sum(lines.values()), lines, "optimizer", 0, timeline.length - 1, 0)


def _shape(plan: Plan, chunks: int, training: bool) -> PipelineShape:
    """The plan's pipeline; beyond a few rounds more microbatches hold no more at once."""
    rounds = (2 * chunks + 2) * plan.pp
    microbatches = min(plan.microbatches, rounds)
    if chunks > 1:
        microbatches = max(plan.pp, microbatches // plan.pp * plan.pp)
    return PipelineShape(plan.schedule, plan.pp, chunks, microbatches, training)


def _moments(shape: PipelineShape, stage: int, kept: tuple[float, ...]) -> list[tuple[int, bool, float, int]]:
    """(chunk, is forward, bytes kept by others, microbatches in flight): the worst of each kind of task."""
    found: dict[tuple[int, bool], tuple[float, int]] = {}
    held = [0] * shape.chunks
    release = TaskKind.WEIGHT if shape.splits_backward else TaskKind.BACKWARD
    for kind, chunk, _ in _tasks(shape, stage):
        forward = kind is TaskKind.FORWARD
        if forward:
            held[chunk] += 1
        bytes_held = sum(count * size for count, size in zip(held, kept, strict=True))
        others = bytes_held - kept[chunk]
        key = (chunk, forward)
        if key not in found or others > found[key][0]:
            found[key] = (others, sum(held))
        if kind is release or not shape.training:
            held[chunk] -= 1
    return [(chunk, forward, *rest) for (chunk, forward), rest in found.items()]


@lru_cache(maxsize=512)
def _tasks(shape: PipelineShape, stage: int) -> tuple[Task, ...]:
    return tuple(stage_order(shape, stage))


def without_pipeline(plan: Plan) -> Plan:
    """The plan of one of its stages alone, for questions about a single device."""
    return replace(plan, pp=1, virtual_stages=1)
