"""Memory over one iteration as columns: what lives from when to when, and for what.

Totals by line and step are sums over columns, so that peaks under other plans (sharded, accumulated, in a
pipeline) are a few vector operations on one program's timeline, not new sweeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidGraph
from predictor.features.programs.allocator import CachingAllocator, DeviceIsFull
from predictor.features.programs.work import MemoryWork

IntArray: TypeAlias = NDArray[np.int64]

_LARGE_WORKSPACE_FACTOR = 4
NEEDED_WITHIN = 0.004
"""How exact `MemoryTimeline.needed_bytes` is."""
# Beyond it, sums of sums leave 64 bits.
LARGEST_BYTES = 2**60


class Line(IntEnum):
    """What a storage is held for.

    SAVED lives from forward to backward. RECOMPUTED is what a recomputed layer keeps while backward is in it.
    """

    SAVED = 0
    RECOMPUTED = 1
    TRANSIENT = 2
    PARAMETER_GRADIENT = 3
    OPTIMIZER_TEMPORARY = 4


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`size_bytes` held during the steps `begin` to `end`, both included.

    Attributes:
        name: of the value. node: number of the node that makes it, in execution order.
        reader: of a result, the last node that reads it; of a gradient, the node that it is sent to.
        ready: of a parameter's gradient, the step that completes it.
    """

    line: Line
    size_bytes: int
    begin: int
    end: int
    name: str = ""
    node: int = 0
    reader: int = -1
    ready: int = -1


@dataclass(frozen=True, slots=True)
class Held:
    """What an iteration holds from its first step to its last, beside the lifetimes; sizes in bytes.

    Attributes:
        parameter_bytes, buffer_bytes: totals.
        persistent_bytes: the same, tensor by tensor, in the order in which they are allocated.
        input_bytes: the batch, allocated anew for each iteration.
        state_bytes: the optimizer's, allocated in step `state_step` of the first iteration.
    """

    parameter_bytes: int
    buffer_bytes: int
    persistent_bytes: Sequence[int]
    input_bytes: Sequence[int]
    state_bytes: Sequence[int] = ()
    state_step: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(self.persistent_bytes) + sum(self.input_bytes) + sum(self.state_bytes)


@dataclass(frozen=True, eq=False)
class MemoryTimeline:
    """Storages of one iteration of one microbatch, in columns of equal length.

    Attributes:
        line, size_bytes, begin, end, node, reader, ready: see Lifetime. name: of the values.
        length: steps. forward_length: those before backward.
        held: what is there throughout.
        workspaces: operands of the largest convolution, in bytes, by step.
        step_nodes, step_parts, node_names: what runs in each step, as far as known.
    """

    line: NDArray[np.int8]
    size_bytes: IntArray
    begin: IntArray
    end: IntArray
    node: IntArray
    reader: IntArray
    ready: IntArray
    name: tuple[str, ...]
    length: int
    forward_length: int
    training: bool
    held: Held
    workspaces: Mapping[int, int] = field(default_factory=dict)
    step_nodes: tuple[int, ...] = ()
    step_parts: tuple[int, ...] = ()
    node_names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        lifetimes: Sequence[Lifetime],
        *,
        length: int,
        forward_length: int,
        training: bool,
        held: Held,
        workspaces: Mapping[int, int],
        step_nodes: tuple[int, ...] = (),
        step_parts: tuple[int, ...] = (),
        node_names: tuple[str, ...] = (),
    ) -> MemoryTimeline:
        """Columns of `lifetimes`. Raises InvalidGraph for more bytes than the columns can add up."""
        if held.total_bytes + sum(item.size_bytes for item in lifetimes) > LARGEST_BYTES:
            raise InvalidGraph(
                "the graph's tensors add up to more than 2^60 bytes, which no memory holds; check its shapes"
            )

        def column(values: Iterable[int]) -> IntArray:
            return np.fromiter(values, dtype=np.int64, count=len(lifetimes))

        return cls(
            line=column(item.line for item in lifetimes).astype(np.int8),
            size_bytes=column(item.size_bytes for item in lifetimes),
            begin=column(item.begin for item in lifetimes),
            end=column(item.end for item in lifetimes),
            node=column(item.node for item in lifetimes),
            reader=column(item.reader for item in lifetimes),
            ready=column(item.ready for item in lifetimes),
            name=tuple(item.name for item in lifetimes),
            length=length,
            forward_length=forward_length,
            training=training,
            held=held,
            workspaces=workspaces,
            step_nodes=step_nodes,
            step_parts=step_parts,
            node_names=node_names,
        )

    def __len__(self) -> int:
        return len(self.size_bytes)

    @cached_property
    def bytes_by_line(self) -> IntArray:
        """(lines, length) bytes alive in each step, by Line."""
        found = np.zeros((len(Line), self.length + 1), dtype=np.int64)
        np.add.at(found, (self.line, self.begin), self.size_bytes)
        np.subtract.at(found, (self.line, self.end + 1), self.size_bytes)
        alive: IntArray = np.cumsum(found, axis=1)[:, : self.length]
        return alive

    @cached_property
    def total_bytes(self) -> IntArray:
        """(length,) bytes alive in each step, persistent tensors included."""
        total: IntArray = self.bytes_by_line.sum(axis=0) + self.held.total_bytes
        return total

    @property
    def peak_step(self) -> int:
        """The first step with the largest total."""
        return int(self.total_bytes.argmax())

    @cached_property
    def kept_bytes(self) -> int:
        """What a microbatch leaves between its forward and its backward pass."""
        if not self.training or not 0 < self.forward_length < self.length:
            return 0
        last = self.forward_length - 1
        across = (self.begin <= last) & (self.end > last)
        return int(self.size_bytes[across].sum())

    def part(self, first: int, last: int) -> MemoryTimeline:
        """What a rank that runs nodes `first` to `last` - 1 holds of this, what is sent to it included.

        Its steps are those of these nodes, and the optimizer's. `held` stays that of the whole.
        """
        nodes = np.asarray(self.step_nodes, dtype=np.int64)
        parts = np.asarray(self.step_parts, dtype=np.int64)
        optimizer = nodes >= len(self.node_names)
        kept = ((nodes >= first) & (nodes < last)) | optimizer
        before = np.concatenate([[0], np.cumsum(kept)])
        begin, end = before[self.begin], before[self.end + 1] - 1
        inside = (self.node >= first) & (self.node < last)
        # Results that come from before, and gradients that come from behind.
        comes_in = (self.node < first) & (self.reader >= first) & (self.line != Line.PARAMETER_GRADIENT)
        comes_back = (self.node >= last) & (self.reader >= first) & (self.reader < last)
        stays = (inside | comes_in | comes_back | (self.line == Line.OPTIMIZER_TEMPORARY)) & (end >= begin)
        rows = np.flatnonzero(stays)
        ready = np.where(self.ready >= 0, before[np.maximum(self.ready, 0) + 1] - 1, -1)
        steps = np.flatnonzero(kept)
        forward = kept[: self.forward_length].sum()
        places = before[list(self.workspaces)] if self.workspaces else ()
        return MemoryTimeline(
            line=self.line[rows],
            size_bytes=self.size_bytes[rows],
            begin=begin[rows],
            end=end[rows],
            node=self.node[rows],
            reader=self.reader[rows],
            ready=ready[rows],
            name=tuple(self.name[row] for row in rows),
            length=len(steps),
            forward_length=int(forward),
            training=self.training,
            held=self.held,
            workspaces={
                int(place): size
                for place, (step, size) in zip(places, self.workspaces.items(), strict=True)
                if kept[step]
            },
            step_nodes=tuple(nodes[steps].tolist()),
            step_parts=tuple(parts[steps].tolist()),
            node_names=self.node_names,
        )

    def with_kept_gradients(self) -> MemoryTimeline:
        """The same where gradients of weights outlive their iteration, set to zero but not freed."""
        of_weights = self.line == Line.PARAMETER_GRADIENT
        return replace(self, begin=np.where(of_weights, 0, self.begin))

    def sum_of(self, line: Line) -> int:
        """Bytes of all storages of a line, whenever they live."""
        return int(self.size_bytes[self.line == line].sum())

    def alive(self, step: int) -> NDArray[np.intp]:
        """Rows of what is alive in a step, the largest first."""
        rows = np.flatnonzero((self.begin <= step) & (self.end >= step))
        return rows[np.argsort(-self.size_bytes[rows], kind="stable")]

    def work(self) -> MemoryWork:
        """The timeline's totals, and what an allocator holds after running it twice."""
        step = self.peak_step
        at_peak = self.bytes_by_line[:, step]
        saved = int(at_peak[Line.SAVED] + at_peak[Line.RECOMPUTED])
        transient = int(at_peak[Line.TRANSIENT] + at_peak[Line.OPTIMIZER_TEMPORARY])
        if not self.training:
            saved, transient = saved + transient, 0
        schedule = _Schedule.of(self)
        plain = schedule.reserved_bytes(0)
        has_workspace = bool(self.workspaces)
        return MemoryWork(
            parameter_bytes=self.held.parameter_bytes,
            gradient_bytes=self.sum_of(Line.PARAMETER_GRADIENT),
            optimizer_state_bytes=sum(self.held.state_bytes),
            buffer_bytes=self.held.buffer_bytes,
            input_bytes=sum(self.held.input_bytes),
            activation_bytes=saved,
            transient_bytes=transient,
            saved_bytes=self.sum_of(Line.SAVED),
            live_peak_bytes=int(self.total_bytes[step]),
            reserved_bytes=plain,
            workspace_reserved_bytes=schedule.reserved_bytes(1) if has_workspace else plain,
            large_workspace_reserved_bytes=(
                schedule.reserved_bytes(_LARGE_WORKSPACE_FACTOR) if has_workspace else plain
            ),
        )

    def needed_bytes(self) -> int:
        """The least memory with which an allocator serves two iterations, workspaces apart, to NEEDED_WITHIN.

        Under pressure it gives unused segments back, so that this is less than what it would like to keep
        (`MemoryWork.reserved_bytes`), and more than the tensors by what blocks in use keep from it.
        """
        schedule = _Schedule.of(self)
        low, high = int(self.total_bytes.max()), schedule.reserved_bytes(0)
        while high > low * (1 + NEEDED_WITHIN):
            middle = isqrt(low * high)
            if schedule.runs_within(middle):
                high = middle
            else:
                low = middle
        return high


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What an allocator is asked for, in order: requests by number, as `CachingAllocator.run` takes them.

    The numbers are those of the lifetimes, then of inputs, persistent tensors, optimizer state, workspaces.

    Attributes:
        sizes: of all requests but workspaces, in bytes. workspaces: operands of convolutions, in bytes.
        persistent: what is allocated before the first iteration.
        iterations: events of the first and of the second one, by whether there are workspaces.
    """

    sizes: Sequence[int]
    workspaces: Sequence[int]
    persistent: Sequence[int]
    iterations: Mapping[bool, tuple[Sequence[int], Sequence[int]]]

    @classmethod
    def of(cls, timeline: MemoryTimeline) -> _Schedule:
        held, sizes = timeline.held, timeline.size_bytes.tolist()
        numbers: list[range] = []
        for group in (held.input_bytes, held.persistent_bytes, held.state_bytes):
            numbers.append(range(len(sizes), len(sizes) + len(group)))
            sizes.extend(group)
        inputs, persistent, states = numbers
        begins, ends = _by_step(timeline.begin.tolist()), _by_step(timeline.end.tolist())
        workspace = {step: len(sizes) + index for index, step in enumerate(timeline.workspaces)}

        def events(state: Sequence[int], with_workspaces: bool) -> list[int]:
            found = list(inputs)
            for step in range(timeline.length):
                if step == held.state_step:
                    found += state
                if step in begins:
                    found += begins[step]
                if with_workspaces and step in workspace:
                    found += (workspace[step], -1 - workspace[step])
                if step in ends:
                    found += [-1 - index for index in ends[step]]
            return found + [-1 - index for index in inputs]

        kinds = (False, True) if workspace else (False,)
        iterations = {kind: (events(states, kind), events((), kind)) for kind in kinds}
        return cls(sizes, tuple(timeline.workspaces.values()), persistent, iterations)

    def reserved_bytes(self, workspace_factor: int) -> int:
        """What a caching allocator has taken from the driver after two iterations."""
        return self._run(CachingAllocator(), workspace_factor).reserved_bytes

    def runs_within(self, capacity_bytes: float) -> bool:
        """Whether two iterations without workspaces find room."""
        try:
            self._run(CachingAllocator(capacity_bytes), 0)
        except DeviceIsFull:
            return False
        return True

    def _run(self, allocator: CachingAllocator, workspace_factor: int) -> CachingAllocator:
        sizes = [*self.sizes, *(workspace_factor * size for size in self.workspaces)]
        addresses = [-1] * len(sizes)
        for events in (self.persistent, *self.iterations[workspace_factor > 0]):
            allocator.run(sizes, events, addresses)
        return allocator


def _by_step(steps: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        found.setdefault(step, []).append(index)
    return found
