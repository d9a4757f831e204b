"""Programs of sizes between those that were built: what grows with one size grows as a polynomial of it.

Bytes of every tensor are a product of its dimensions, and one size (the batch, the length of a sequence)
stands in a few of them, so that sizes at two or three values give those at any other. Which op runs when does
not change: programs whose steps differ are no basis, and whoever needs certainty builds the one program that
the search ends at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidGraph
from predictor.features.programs.memory_timeline import LARGEST_BYTES, MemoryTimeline
from predictor.features.programs.work import Program

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SizedPrograms:
    """Programs of one graph at several values of one size, alike in all but sizes."""

    values: tuple[int, ...]
    programs: tuple[Program, ...]

    @classmethod
    def of(cls, values: Sequence[int], programs: Sequence[Program]) -> SizedPrograms | None:
        """None where the programs are not alike."""
        keys = {_steps(program) for program in programs}
        return cls(tuple(values), tuple(programs)) if len(keys) == 1 and None not in keys else None

    def weights(self, value: int) -> FloatArray:
        """(programs,) what each counts at `value`; they sum to 1 (Lagrange's polynomials)."""
        known = np.array(self.values, dtype=np.float64)
        found = np.ones(len(known))
        for index, here in enumerate(known):
            others = np.delete(known, index)
            found[index] = np.prod((value - others) / (here - others))
        return found

    def at(self, value: int, batch: int) -> Program:
        """The program at `value`; its ops are those of the nearest that was built.

        Raises InvalidGraph for more bytes than any memory holds.
        """
        nearest = self.programs[int(np.argmin([abs(value - known) for known in self.values]))]
        timelines = [program.timeline for program in self.programs]
        timeline = _mixed([item for item in timelines if item is not None], self.weights(value))
        return replace(nearest, batch=batch, timeline=timeline, memory=timeline.work())


def _steps(program: Program) -> object:
    """All that must agree; None without a timeline."""
    timeline = program.timeline
    if timeline is None:
        return None
    held = timeline.held
    return (
        len(program.ops),
        tuple(op.op_type for op in program.ops),
        timeline.length,
        timeline.line.tobytes(),
        timeline.begin.tobytes(),
        timeline.end.tobytes(),
        tuple(timeline.workspaces),
        len(held.persistent_bytes),
        len(held.input_bytes),
        len(held.state_bytes),
    )


def _mixed(timelines: Sequence[MemoryTimeline], weights: FloatArray) -> MemoryTimeline:
    def mix(columns: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        mixed = weights @ np.array(columns, dtype=np.float64)
        if float(np.maximum(mixed, 0.0).sum()) > LARGEST_BYTES:
            raise InvalidGraph("the graph's tensors add up to more than 2^60 bytes at that size")
        sizes: NDArray[np.int64] = np.maximum(np.rint(mixed), 0.0).astype(np.int64)
        return sizes

    def numbers(columns: Sequence[Sequence[int]]) -> tuple[int, ...]:
        return tuple(mix(columns).tolist())

    first = timelines[0]
    held = [item.held for item in timelines]
    totals = numbers([(item.parameter_bytes, item.buffer_bytes) for item in held])
    sizes = numbers([list(item.workspaces.values()) for item in timelines])
    return replace(
        first,
        size_bytes=mix([item.size_bytes.tolist() for item in timelines]),
        held=replace(
            first.held,
            parameter_bytes=totals[0],
            buffer_bytes=totals[1],
            persistent_bytes=numbers([item.persistent_bytes for item in held]),
            input_bytes=numbers([item.input_bytes for item in held]),
            state_bytes=numbers([item.state_bytes for item in held]),
        ),
        workspaces=dict(zip(first.workspaces, sizes, strict=True)),
    )
