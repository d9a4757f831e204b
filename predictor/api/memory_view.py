"""Memory over one iteration: bytes by line in each step, the peak, and the tensors that are alive then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidRequest
from predictor.features.programs.liveness import Part
from predictor.features.programs.memory_timeline import Line, MemoryTimeline
from predictor.parallel.memory_stages import RankMemory, stage_levels, stage_memories, worst_stage
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram

FloatArray = NDArray[np.float64]

LINES = (
    "parameters",
    "optimizer_state",
    "gradients",
    "activations",
    "workspace",
    "communication_buffers",
)
"""From the bottom of the picture to its top."""
_WORDS = {
    Line.SAVED: "saved for backward",
    Line.RECOMPUTED: "made again for backward",
    Line.TRANSIENT: "temporary",
    Line.PARAMETER_GRADIENT: "gradient of a weight",
    Line.OPTIMIZER_TEMPORARY: "temporary of the optimizer",
}


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor that is alive at the peak: its value, the node that made it, and what it is held for."""

    name: str
    node: str
    size_bytes: int
    held_for: str


@dataclass(frozen=True, slots=True)
class MemorySeries:
    """Tensors of one microbatch on the device that needs the most, step by step.

    Attributes:
        lines: (steps,) bytes by name of LINES; those that are never there are left out.
        parts: (steps,) what runs (programs.liveness.Part). nodes: (steps,) name of the node.
        peak_step: of the total. alive: tensors of that step, the largest first, weights and states left out.
        stage: of a pipeline.
    """

    lines: Mapping[str, FloatArray]
    parts: tuple[int, ...]
    nodes: tuple[str, ...]
    peak_step: int
    alive: tuple[LiveTensor, ...]
    stage: int = 0

    @property
    def total_bytes(self) -> FloatArray:
        """(steps,) all lines together."""
        total: FloatArray = np.sum(list(self.lines.values()), axis=0)
        return total


def memory_series(
    rank: RankProgram, plan: Plan, ends: Sequence[int] | NDArray[np.intp] | None, *, whole: bool
) -> MemorySeries:
    """The series of a rank under a plan.

    Args:
        ends: pieces up to and including each virtual stage; None is one stage.
        whole: the rank runs its batch at once and holds all weights.

    Raises InvalidRequest for a program that was read back without its timeline.
    """
    timeline = rank.program.timeline
    if timeline is None:
        raise InvalidRequest("memory: this program has no timeline; predict it anew", field="graph")
    if whole:
        return _series(timeline, _plain(timeline), 0)
    memory = RankMemory(rank)
    cut = [memory.pieces] if ends is None else ends
    training = timeline.training
    worst = worst_stage(stage_memories(memory, cut, plan, training=training))
    part, levels = stage_levels(memory, cut, plan, worst, training=training)
    return _series(part, levels, worst.stage)


def _plain(timeline: MemoryTimeline) -> dict[str, FloatArray]:
    by_line, held = timeline.bytes_by_line.astype(np.float64), timeline.held
    steps = by_line.shape[1]
    return {
        "parameters": np.full(steps, float(sum(held.persistent_bytes))),
        "optimizer_state": np.full(steps, float(sum(held.state_bytes))),
        "gradients": by_line[Line.PARAMETER_GRADIENT],
        "activations": by_line[Line.SAVED] + by_line[Line.RECOMPUTED] + float(sum(held.input_bytes)),
        "workspace": by_line[Line.TRANSIENT] + by_line[Line.OPTIMIZER_TEMPORARY],
    }


def _series(timeline: MemoryTimeline, levels: Mapping[str, FloatArray], stage: int) -> MemorySeries:
    lines = {name: levels[name] for name in LINES if name in levels and levels[name].any()}
    steps = len(next(iter(levels.values())))
    total = np.sum(list(levels.values()), axis=0)
    peak = int(total.argmax())
    names = timeline.node_names
    nodes = tuple(names[node] if node < len(names) else "optimizer" for node in timeline.step_nodes[:steps])
    parts = timeline.step_parts[:steps] or (int(Part.FORWARD),) * steps
    return MemorySeries(lines, parts, nodes or ("",) * steps, peak, _alive(timeline, peak), stage)


def _alive(timeline: MemoryTimeline, step: int) -> tuple[LiveTensor, ...]:
    names = timeline.node_names
    found = []
    for row in timeline.alive(step).tolist():
        node = int(timeline.node[row])
        line = Line(int(timeline.line[row]))
        words = (
            _WORDS[line] if timeline.training or line is not Line.TRANSIENT else "result that is still read"
        )
        maker = names[node] if node < len(names) else "optimizer"
        # Captured modules name no values.
        found.append(LiveTensor(timeline.name[row] or maker, maker, int(timeline.size_bytes[row]), words))
    return tuple(found)
