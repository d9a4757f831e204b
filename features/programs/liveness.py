"""Which tensors are alive when: lifetimes of storages over one iteration.

A view shares the storage of its base; a storage lives from the op that writes it to the last one that needs
it. In training that is the backward op of the last layer that saved it. Gradients of activations live from
the op that makes them to the one that consumes them, gradients of parameters until the optimizer has stepped.
Layers that are recomputed keep nothing but what enters them, and make the rest again when backward reaches
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from predictor.features.graph import Graph, Value
from predictor.features.programs.memory_timeline import Held, Lifetime, Line, MemoryTimeline


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """What one node does to memory.

    Attributes:
        reads, writes: value names.
        is_view: the outputs share the first input's storage.
        gradients: inputs whose gradient its backward step makes; empty when it has none.
        passes: those of `gradients` that share the memory of the output's gradient.
        saves: values kept for the backward step. extra_bytes: further bytes kept.
        temporary_bytes, backward_temporary_bytes: taken and given back within a step, beside the results.
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
    temporary_bytes: int = 0
    backward_temporary_bytes: int = 0
    workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    is_pinned: bool = False


class Part(IntEnum):
    """What runs in a step of the timeline."""

    FORWARD = 0
    REPLAY = 1
    BACKWARD = 2
    OPTIMIZER = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One step: node number `node` in execution order, in that part of the iteration."""

    part: Part
    node: int


@dataclass(frozen=True, slots=True)
class OptimizerMemory:
    """Bytes of each persistent state tensor, and of each temporary during the step."""

    state_bytes: tuple[int, ...] = ()
    temporary_bytes: tuple[int, ...] = ()


def plain_order(count: int, *, training: bool) -> tuple[Step, ...]:
    """Forward, then in training backward in reverse, then the optimizer's step."""
    forward = [Step(Part.FORWARD, node) for node in range(count)]
    if not training:
        return tuple(forward)
    backward = [Step(Part.BACKWARD, node) for node in range(count - 1, -1, -1)]
    return (*forward, *backward, Step(Part.OPTIMIZER, count))


def gradient_bytes(value: Value, *, wide: bool) -> int:
    """Bytes of a parameter's gradient: as wide as the parameter, or at least FP32."""
    bits = max(32, value.dtype.bits) if wide else value.dtype.bits
    return -(-value.elements * bits // 8)


def memory_timeline(
    graph: Graph,
    steps: Sequence[MemoryStep],
    order: Sequence[Step],
    *,
    seeds: frozenset[str] = frozenset(),
    optimizer: OptimizerMemory | None = None,
    wide_gradients: bool = False,
    names: Sequence[str] = (),
) -> MemoryTimeline:
    """The iteration of `graph` as storages over time.

    Args:
        steps: by node in execution order.
        order: what runs when; nodes that occur as REPLAY keep nothing in their forward step.
        seeds: outputs whose gradient the loss makes between the passes.
        optimizer: what the step keeps and takes.
        wide_gradients: gradients of parameters are summed up in FP32.
        names: of the nodes, for explanations.
    """
    values, optimizer = graph.values, optimizer or OptimizerMemory()
    training = any(step.part is not Part.FORWARD for step in order)
    length = max(1, len(order))
    lifetimes = _Sweep(graph, steps, order, seeds, wide_gradients).lifetimes()
    lifetimes += [
        Lifetime(Line.OPTIMIZER_TEMPORARY, size, length - 1, length - 1, "optimizer", len(steps))
        for size in optimizer.temporary_bytes
    ]
    return MemoryTimeline.of(
        lifetimes,
        length=length,
        forward_length=sum(step.part is Part.FORWARD for step in order),
        training=training,
        held=Held(
            parameter_bytes=sum(values[name].size_bytes for name in graph.parameters),
            buffer_bytes=sum(values[name].size_bytes for name in graph.buffers),
            persistent_bytes=tuple(
                values[name].size_bytes for name in sorted(graph.parameters | graph.buffers)
            ),
            input_bytes=tuple(values[name].size_bytes for name in graph.inputs),
            state_bytes=optimizer.state_bytes,
            state_step=length - 1,
        ),
        workspaces=_workspaces(steps, order),
        step_nodes=tuple(step.node for step in order),
        step_parts=tuple(int(step.part) for step in order),
        node_names=tuple(names),
    )


def _workspaces(steps: Sequence[MemoryStep], order: Sequence[Step]) -> dict[int, int]:
    """Bytes of the largest convolution's operands by step of the timeline."""
    found: dict[int, int] = {}
    for index, step in enumerate(order):
        if step.part is Part.OPTIMIZER:
            continue
        node = steps[step.node]
        backward = step.part is Part.BACKWARD
        size = node.backward_workspace_bytes if backward else node.workspace_bytes
        if size and (node.gradients or not backward):
            found[index] = size
    return found


@dataclass(slots=True)
class _Storage:
    """A storage that a node wrote: name of its value, size, and what the sweep has found so far."""

    name: str
    size_bytes: int
    begin: int
    end: int
    node: int
    reader: int = -1
    is_saved: bool = False


class _Sweep:
    """Finds storages and their lifetimes by running through the order once."""

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[MemoryStep],
        order: Sequence[Step],
        seeds: frozenset[str],
        wide_gradients: bool,
    ) -> None:
        self._graph = graph
        self._wide = wide_gradients
        self._seeds = seeds
        self._steps = steps
        self._order = order
        self._replayed = {step.node for step in order if step.part is Part.REPLAY}
        self._backward_at = {
            step.node: index for index, step in enumerate(order) if step.part is Part.BACKWARD
        }
        self._forward_end = sum(step.part is Part.FORWARD for step in order) - 1
        # Where a value lies now: names of values that are views, and of values that were made again, lead to
        # the storage that holds them.
        self._holder: dict[str, _Storage] = {}
        self._found: list[_Storage] = []
        self._maker: dict[str, int] = {}
        self._other: list[Lifetime] = []

    def lifetimes(self) -> list[Lifetime]:
        """All storages but the persistent ones, in no particular order."""
        for index, step in enumerate(self._order):
            if step.part is Part.FORWARD or step.part is Part.REPLAY:
                self._run(index, step)
        self._hold_results()
        if self._backward_at:
            self._gradients()
        found = [
            Lifetime(
                _line(item, self._forward_end),
                item.size_bytes,
                item.begin,
                item.end,
                item.name,
                item.node,
                item.reader,
            )
            for item in self._found
        ]
        return found + self._other

    def _run(self, index: int, step: Step) -> None:
        node, holder = self._steps[step.node], self._holder
        for name in node.reads:
            if name in holder:
                holder[name].end = max(holder[name].end, index)
                holder[name].reader = max(holder[name].reader, step.node)
        source = node.reads[0] if node.is_view and node.reads else ""
        values = self._graph.values
        for name in node.writes:
            if not name:
                continue
            if source and values[source].dtype is values[name].dtype:
                if source in holder:
                    holder[name] = holder[source]
                continue
            made = _Storage(name, values[name].size_bytes, index, index, step.node)
            self._maker[name] = step.node
            if node.is_pinned:
                made.end = max(index, self._forward_end)
            holder[name] = made
            self._found.append(made)
        if node.temporary_bytes:
            self._other.append(
                Lifetime(Line.TRANSIENT, node.temporary_bytes, index, index, node.writes[0], step.node)
            )
        until = self._backward_at.get(step.node)
        if until is None or (step.part is Part.FORWARD and step.node in self._replayed):
            return
        for name in node.saves:
            if name in holder:
                holder[name].is_saved = True
                holder[name].end = max(holder[name].end, until)
        if node.extra_bytes:
            line = Line.SAVED if step.part is Part.FORWARD else Line.RECOMPUTED
            self._other.append(Lifetime(line, node.extra_bytes, index, until, node.writes[0], step.node))

    def _hold_results(self) -> None:
        """The caller holds what the model returned until the iteration is over."""
        last = len(self._order) - 1
        for name in self._graph.outputs:
            if name in self._holder:
                self._holder[name].end = last

    def _gradients(self) -> None:
        """Of activations until their producer's backward step, of parameters until the iteration's end.

        A gradient that several readers of a value send is summed in place where nothing else holds the sum so
        far; where it is also the gradient of something else, the sum is a new tensor.
        """
        values, parameters = self._graph.values, self._graph.parameters
        held: dict[str, _Storage] = {}
        sharers: dict[int, int] = {}
        ready: dict[str, int] = {}
        first: dict[str, int] = {}
        last = len(self._order) - 1

        def make(name: str, begin: int, node: int) -> None:
            held[name] = _Storage(name, values[name].size_bytes, begin, begin, node)
            sharers[id(held[name])] = 1
            spans.append(held[name])

        spans: list[_Storage] = []
        for now, at in enumerate(self._order):
            if at.part is not Part.BACKWARD or not self._steps[at.node].gradients:
                continue
            node = self._steps[at.node]
            arrived: _Storage | None = None
            for name in node.writes:
                if not name:
                    continue
                if name not in held and name in self._seeds:
                    # Seeded by the loss, which stands between forward and backward.
                    make(name, self._forward_end + 1, at.node)
                if name in held:
                    held[name].end = max(held[name].end, now)
                    arrived = arrived or held[name]
                    sharers[id(held[name])] -= 1
            if node.backward_temporary_bytes:
                self._transient(node.backward_temporary_bytes, now, now, node.writes[0], at.node)
            for name in node.gradients:
                size = values[name].size_bytes
                if name in parameters:
                    if name in ready:
                        # A second use of the weight: its part stands beside the sum that it is added to.
                        self._transient(size, now, now, name, at.node)
                    first.setdefault(name, now)
                    ready[name] = now
                elif name in held:
                    sum_so_far = held[name]
                    sum_so_far.end = max(sum_so_far.end, now)
                    is_new = not (name in node.passes and arrived is not None)
                    if is_new:
                        self._transient(size, now, now, name, at.node)
                    if sharers[id(sum_so_far)] > 1:
                        sharers[id(sum_so_far)] -= 1
                        make(name, now, at.node)
                elif name in node.passes and arrived is not None:
                    held[name] = arrived
                    sharers[id(arrived)] += 1
                else:
                    make(name, now, at.node)
        for item in spans:
            self._transient(
                item.size_bytes, item.begin, item.end, item.name, item.node, self._maker.get(item.name, -1)
            )
        self._other += [
            Lifetime(
                Line.PARAMETER_GRADIENT,
                gradient_bytes(values[name], wide=self._wide),
                begin,
                last,
                name,
                self._order[ready[name]].node,
                -1,
                ready[name],
            )
            for name, begin in first.items()
        ]

    def _transient(
        self, size_bytes: int, begin: int, end: int, name: str, node: int, reader: int = -1
    ) -> None:
        self._other.append(
            Lifetime(Line.TRANSIENT, size_bytes, begin, end, f"gradient of {name}", node, reader)
        )


def _line(item: _Storage, forward_end: int) -> Line:
    if not item.is_saved:
        return Line.TRANSIENT
    return Line.SAVED if item.begin <= forward_end else Line.RECOMPUTED
