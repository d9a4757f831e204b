"""Which tensors are alive when: lifetimes of storages, their peak, and what an allocator holds.

A view shares the storage of its base; a storage lives from the op that writes it to the last one that needs
it. In training that is the backward op of the first layer that saved it. Gradients of activations live from
the op that makes them to the one that consumes them, gradients of parameters until the optimizer has stepped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from predictor.features.allocator import CachingAllocator
from predictor.features.graph import Graph, Value
from predictor.features.work import MemoryWork

_LARGE_WORKSPACE_FACTOR = 4


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """What one node does to memory.

    Attributes:
        reads, writes: value names.
        is_view: the outputs share the first input's storage.
        gradients: inputs whose gradient its backward step makes; empty when it has none.
        passes: those of `gradients` that share the memory of the output's gradient.
        saves: values kept for the backward step. extra_bytes: further bytes kept.
        workspace_bytes, backward_workspace_bytes: operands of its largest convolution in either direction.
        is_pinned: the outputs live to the end of forward whoever reads them (autocast's weight cache).
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    is_view: bool
    gradients: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    extra_bytes: int = 0
    workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    is_pinned: bool = False


class Line(Enum):
    """What a storage is held for."""

    SAVED = 0
    TRANSIENT = 1
    PARAMETER_GRADIENT = 2


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`size_bytes` held during the steps `begin` to `end`, both included."""

    line: Line
    size_bytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """Bytes of each persistent state tensor, and of each temporary during the step."""

    state_bytes: tuple[int, ...] = ()
    temporary_bytes: tuple[int, ...] = ()


def memory_work(
    graph: Graph,
    steps: Sequence[MemoryStep],
    *,
    training: bool,
    seeds: frozenset[str] = frozenset(),
    optimizer: OptimizerMemory | None = None,
) -> MemoryWork:
    """Persistent bytes, and what is alive at the peak of one iteration.

    Steps 0..F-1 are the nodes forward, then in training F..2F-1 backward in reverse order, then the optimizer
    step.

    Args:
        seeds: outputs whose gradient the loss makes between the passes.
        optimizer: what the step keeps and takes.
    """
    values, optimizer = graph.values, optimizer or OptimizerMemory()
    lifetimes = _Sweep(graph, steps, training, seeds).lifetimes()
    length = 2 * len(steps) + 1 if training else max(1, len(steps))
    lifetimes += [
        Lifetime(Line.TRANSIENT, size, length - 1, length - 1) for size in optimizer.temporary_bytes
    ]
    return memory_of_lifetimes(
        lifetimes,
        length=length,
        training=training,
        held=Held(
            parameter_bytes=_total(values, graph.parameters),
            buffer_bytes=_total(values, graph.buffers),
            persistent_bytes=[values[name].size_bytes for name in sorted(graph.parameters | graph.buffers)],
            input_bytes=[values[name].size_bytes for name in graph.inputs],
            state_bytes=optimizer.state_bytes,
            state_step=length - 1,
        ),
        workspaces=_workspaces(steps, training),
    )


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


def memory_of_lifetimes(
    lifetimes: Sequence[Lifetime],
    *,
    length: int,
    training: bool,
    held: Held,
    workspaces: Mapping[int, int],
) -> MemoryWork:
    """The peak of a timeline of `length` steps, and what an allocator holds after running it twice.

    Args:
        workspaces: operands of the largest convolution, in bytes, by step.
    """
    saved_bytes, transient_bytes, allocated_bytes = _peak(lifetimes, length)
    if not training:
        saved_bytes, transient_bytes = saved_bytes + transient_bytes, 0
    schedule = _Schedule(
        held=held,
        sizes=[item.size_bytes for item in lifetimes],
        begins=_by_step(item.begin for item in lifetimes),
        ends=_by_step(item.end for item in lifetimes),
        workspaces=workspaces,
        length=length,
    )
    plain = schedule.reserved_bytes(0)
    return MemoryWork(
        parameter_bytes=held.parameter_bytes,
        gradient_bytes=sum(x.size_bytes for x in lifetimes if x.line is Line.PARAMETER_GRADIENT),
        optimizer_state_bytes=sum(held.state_bytes),
        buffer_bytes=held.buffer_bytes,
        input_bytes=sum(held.input_bytes),
        activation_bytes=saved_bytes,
        transient_bytes=transient_bytes,
        saved_bytes=sum(item.size_bytes for item in lifetimes if item.line is Line.SAVED),
        live_peak_bytes=sum(held.persistent_bytes)
        + sum(held.input_bytes)
        + sum(held.state_bytes)
        + saved_bytes
        + transient_bytes
        + allocated_bytes,
        reserved_bytes=plain,
        workspace_reserved_bytes=schedule.reserved_bytes(1) if workspaces else plain,
        large_workspace_reserved_bytes=(
            schedule.reserved_bytes(_LARGE_WORKSPACE_FACTOR) if workspaces else plain
        ),
    )


def _total(values: Mapping[str, Value], names: Iterable[str]) -> int:
    return sum(values[name].size_bytes for name in names)


def _peak(lifetimes: Sequence[Lifetime], length: int) -> tuple[int, int, int]:
    """(saved, transient, parameter gradients) at the first step with the largest sum."""
    differences = {line: [0] * (length + 1) for line in Line}
    for item in lifetimes:
        timeline = differences[item.line]
        timeline[item.begin] += item.size_bytes
        timeline[item.end + 1] -= item.size_bytes
    saved, transient, gradients = (list(accumulate(differences[line])) for line in Line)
    return max(zip(saved[:length], transient, gradients, strict=False), key=sum)


def _workspaces(steps: Sequence[MemoryStep], training: bool) -> dict[int, int]:
    """Bytes of the largest convolution's operands by step of the timeline."""
    found = {index: step.workspace_bytes for index, step in enumerate(steps) if step.workspace_bytes}
    if training:
        last = 2 * len(steps) - 1
        found.update(
            (last - index, step.backward_workspace_bytes)
            for index, step in enumerate(steps)
            if step.gradients and step.backward_workspace_bytes
        )
    return found


@dataclass(frozen=True, slots=True)
class _Schedule:
    """What an allocator is asked for, in order; sizes in bytes.

    Attributes:
        sizes: of the lifetimes. begins, ends: their indices by step.
        workspaces: taken and given back within a step.
    """

    held: Held
    sizes: Sequence[int]
    begins: Mapping[int, Sequence[int]]
    ends: Mapping[int, Sequence[int]]
    workspaces: Mapping[int, int]
    length: int

    def reserved_bytes(self, workspace_factor: int) -> int:
        """What a caching allocator has taken from the driver after two iterations."""
        allocator = CachingAllocator()
        allocate, release, sizes = allocator.allocate, allocator.release, self.sizes
        addresses = [0] * len(sizes)
        for size in self.held.persistent_bytes:
            allocate(size)
        for iteration in range(2):
            batch = [allocate(size) for size in self.held.input_bytes]
            for step in range(self.length):
                if step == self.held.state_step and iteration == 0:
                    for size in self.held.state_bytes:
                        allocate(size)
                for index in self.begins.get(step, ()):
                    addresses[index] = allocate(sizes[index])
                if workspace_factor and step in self.workspaces:
                    release(allocate(workspace_factor * self.workspaces[step]))
                for index in self.ends.get(step, ()):
                    release(addresses[index])
            for address in batch:
                release(address)
        return allocator.reserved_bytes


def _by_step(steps: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, step in enumerate(steps):
        found.setdefault(step, []).append(index)
    return found


class _Sweep:
    """Finds storages and their lifetimes."""

    def __init__(
        self, graph: Graph, steps: Sequence[MemoryStep], training: bool, seeds: frozenset[str]
    ) -> None:
        self._graph = graph
        self._seeds = seeds
        self._steps = steps
        self._training = training
        self._base: dict[str, str] = {}
        self._born: dict[str, int] = {}
        self._last_use: dict[str, int] = {}
        self._pinned: set[str] = set()
        for index, step in enumerate(steps):
            self._forward(index, step)

    def _root(self, name: str) -> str:
        return self._base.get(name, name)

    def _forward(self, index: int, step: MemoryStep) -> None:
        for name in step.reads:
            if name:
                self._last_use[self._root(name)] = index
        for name in step.writes:
            if not name:
                continue
            source = step.reads[0] if step.is_view and step.reads else ""
            if source and self._graph.values[source].dtype is self._graph.values[name].dtype:
                self._base[name] = self._root(source)
            else:
                self._born[name] = index
                self._last_use[name] = index
                if step.is_pinned:
                    self._pinned.add(name)

    def lifetimes(self) -> list[Lifetime]:
        """All storages but the persistent ones, in no particular order."""
        found = self._activations()
        if self._training:
            found += self._gradients()
        return found

    def _activations(self) -> list[Lifetime]:
        """Results of nodes; saved ones live until the backward step of their first saver."""
        count = len(self._steps)
        found: list[Lifetime] = []
        release: dict[str, int] = {}
        for index, step in enumerate(self._steps):
            backward_index = 2 * count - 1 - index
            for name in step.saves:
                release.setdefault(self._root(name), backward_index)
            if step.extra_bytes:
                found.append(Lifetime(Line.SAVED, step.extra_bytes, index, backward_index))
        results = {self._root(name) for name in self._graph.outputs}
        for name, begin in self._born.items():
            end = self._last_use[name]
            if name in results:
                end = 2 * count - 1 if self._training else count - 1
            elif name in self._pinned:
                end = count - 1
            line = Line.SAVED if name in release else Line.TRANSIENT
            end = max(end, release.get(name, end))
            found.append(Lifetime(line, self._graph.values[name].size_bytes, begin, end))
        return found

    def _gradients(self) -> list[Lifetime]:
        """Of activations until their producer's backward step, of parameters until the iteration's end."""
        count, values, parameters = len(self._steps), self._graph.values, self._graph.parameters
        storage: dict[str, str] = {}
        spans: dict[str, list[int]] = {}
        parameter_begins: dict[str, int] = {}
        found: list[Lifetime] = []
        for index in range(count - 1, -1, -1):
            step, now = self._steps[index], 2 * count - 1 - index
            if not step.gradients:
                continue
            arrived = ""
            for name in step.writes:
                if not name:
                    continue
                if name not in storage and name in self._seeds:
                    # Seeded by the loss, which stands between forward and backward.
                    storage[name] = name
                    spans[name] = [count, now]
                if name in storage:
                    arrived = arrived or storage[name]
                    spans[storage[name]][1] = now
            for name in step.gradients:
                if name in parameters:
                    parameter_begins.setdefault(name, now)
                elif name in storage:
                    spans[storage[name]][1] = now
                    # The new part and the sum stand beside the old sum while they are added.
                    found += [Lifetime(Line.TRANSIENT, values[name].size_bytes, now, now)] * 2
                elif name in step.passes and arrived:
                    storage[name] = arrived
                else:
                    storage[name] = name
                    spans[name] = [now, now]
        found += [Lifetime(Line.TRANSIENT, values[name].size_bytes, *span) for name, span in spans.items()]
        found += [
            Lifetime(Line.PARAMETER_GRADIENT, values[name].size_bytes, begin, 2 * count)
            for name, begin in parameter_begins.items()
        ]
        return found
