"""From wanted splits to the graph of one rank: nodes run in the cheapest way, with exchanges where needed.

A node may run along an axis or whole. Which is cheapest depends on how its operands lie by then: a sum is
finished by an all-reduce, or by a reduce-scatter where its value is wanted in parts; parts are gathered, cut
another way all-to-all, and a whole value is cut for free. In training every exchange has its conjugate on the
way back (predictor.features.ops.collectives), which is counted too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from predictor.features.graph import IN_PLACE, Attribute, Graph, Node, Value
from predictor.features.ops.collectives import GATHERS_AGAIN
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.choose import FLOPS_PER_BYTE
from predictor.parallel.sharding.layout import Split, local_shape
from predictor.parallel.sharding.registry import Axis, Linear

# Memory moves this many times as fast as links between ranks.
_MEMORY_OVER_LINK = 20
_GRADIENT_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pass wants of a graph.

    Attributes:
        layout: how values are split where that costs nothing.
        axes: by node, the axes along which it may run, best first; a node without any runs whole.
        weights: parameters that may be split; the others are whole on every rank, which may read a slice.
        inputs_split: graph inputs arrive split as `layout` says (each rank loads its part); else whole.
        all_to_all: axes that pass keys and values on exchange heads instead.
    """

    layout: Mapping[str, Split]
    axes: Mapping[int, Sequence[Axis]]
    weights: Collection[str] = ()
    inputs_split: bool = False
    all_to_all: bool = False


@dataclass(slots=True)
class Realised:
    """The graph of one rank and what became of its nodes and parameters.

    Attributes:
        split: parameters and their splits. partial: parameters whose gradient each rank holds a part of.
        whole: indices of nodes that run whole. notes: sentences of the rules.
    """

    graph: Graph
    split: dict[str, Split] = field(default_factory=dict)
    partial: set[str] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Held:
    """How a value lies on a rank: under which name, split how; `is_sum` is an unfinished sum."""

    name: str
    split: Split | None = None
    is_sum: bool = False


def realise(book: Book, group: str, wanted: Wanted) -> Realised:
    """The graph of one rank of `group`."""
    return _Realiser(book, group, wanted).run()


class _Realiser:
    def __init__(self, book: Book, group: str, wanted: Wanted) -> None:
        self._book = book
        self._graph = book.graph
        self._parts = book.parts
        self._group = group
        self._wanted = wanted
        self._held: dict[str, _Held] = {}
        self._made: dict[tuple[str, Split | None, bool], str] = {}
        self._values: dict[str, Value] = dict(book.graph.values)
        self._nodes: list[Node] = []
        self._result = Realised(book.graph)
        self._passes = 2 if book.training else 1
        if wanted.inputs_split:
            for name in self._graph.inputs:
                if name in wanted.layout:
                    self._hold(name, wanted.layout[name])

    def run(self) -> Realised:
        for index, node in enumerate(self._graph.nodes):
            self._place(index, node)
        outputs = tuple(self._finished(name).name for name in self._graph.outputs)
        self._drop_unread(outputs)
        self._load_parts()
        touched = {name for node in self._nodes for name in (*node.inputs, *node.outputs) if name}
        touched |= {*self._graph.inputs, *outputs, *self._graph.parameters, *self._graph.buffers}
        self._result.graph = replace(
            self._graph,
            nodes=tuple(self._nodes),
            values={name: value for name, value in self._values.items() if name in touched},
            outputs=outputs,
            opsets={"perfcast": 1, **self._graph.opsets},
        )
        return self._result

    def _drop_unread(self, outputs: tuple[str, ...]) -> None:
        """Takes out what nobody reads any more, after moves were made again elsewhere."""
        needed = {*outputs}
        kept = []
        for node in reversed(self._nodes):
            unread = not any(name in self._graph.consumers for name in node.outputs)
            if needed.intersection(node.outputs) or (unread and node.outputs[0] in self._graph.producer):
                kept.append(node)
                needed.update(node.inputs)
        self._nodes = kept[::-1]

    def _load_parts(self) -> None:
        """Inputs of which a rank reads one part alone arrive as that part: its heads of cached keys."""
        readers: dict[str, list[Node]] = {name: [] for name in self._graph.inputs}
        for node in self._nodes:
            for name in readers.keys() & set(node.inputs):
                readers[name].append(node)
        parts: dict[str, str] = {}
        for name, found in readers.items():
            if len(found) == 1 and (found[0].domain, found[0].op_type) == ("perfcast", "Scatter"):
                part = found[0].outputs[0]
                parts[part] = name
                self._values[name] = replace(self._values[name], shape=self._values[part].shape)
        self._nodes = [
            replace(node, inputs=tuple(parts.get(name, name) for name in node.inputs))
            for node in self._nodes
            if node.outputs[0] not in parts
        ]

    def _place(self, index: int, node: Node) -> None:
        options = self._wanted.axes.get(index, ())
        if self._wanted.all_to_all:
            options = [axis.instead_of_ring or axis for axis in options]
        if not options and all(name not in self._held for name in node.inputs):
            self._result.whole.add(index)
            self._nodes.append(node)
            return
        passing = self._sum_that_passes(index, node)
        if passing is not None:
            inputs = tuple(
                self._local(name)
                if not name or self._where(name).is_sum
                else self._read(name, None, partial=True)
                for name in node.inputs
            )
            self._nodes.append(replace(node, inputs=inputs))
            self._held[node.outputs[0]] = _Held(node.outputs[0], is_sum=True)
            return
        whole = Axis((None,) * len(node.inputs), (None,) * len(node.outputs))
        choices = [*options, whole]
        best = choices[0]
        if len(choices) > 1:
            costs = [self._cost(index, node, axis, is_whole=axis is whole) for axis in choices]
            best = choices[costs.index(min(costs))]
        self._emit(index, node, best, is_whole=best is whole)

    def _emit(self, index: int, node: Node, axis: Axis, *, is_whole: bool) -> None:
        if is_whole:
            self._result.whole.add(index)
        self._result.notes.update(axis.notes)
        inputs = []
        for position, (name, place) in enumerate(zip(node.inputs, axis.inputs, strict=True)):
            local = self._read(name, place, partial=not is_whole and not axis.sums) if name else ""
            if position in axis.taken:
                local = self._take(local, *axis.taken[position])
            inputs.append(local)
        attributes: dict[str, Attribute] = {**node.attributes, **axis.attributes}
        made = replace(node, inputs=tuple(inputs), attributes=attributes)
        if axis.ring:
            ring: dict[str, Attribute] = {**attributes, "group": self._group, "ranks": self._parts}
            made = replace(made, op_type="RingAttention", domain="perfcast", attributes=ring)
        self._nodes.append(made)
        for name, place in zip(node.outputs, axis.outputs, strict=True):
            if not name:
                continue
            if axis.sums:
                self._held[name] = _Held(name, is_sum=True)
            elif place is not None:
                self._hold(name, place)

    # How values lie

    def _hold(self, name: str, split: Split) -> None:
        value = self._values[name]
        self._values[name] = replace(value, shape=local_shape(value.shape, split, self._parts))
        self._held[name] = _Held(name, split)

    def _where(self, name: str) -> _Held:
        return self._held.get(name) or _Held(name)

    def _local(self, name: str) -> str:
        return self._where(name).name if name else ""

    def _is_free_weight(self, name: str) -> bool:
        """A parameter that no node has read yet: it may lie as its first reader likes."""
        readers = self._graph.consumers.get(name, ())
        return name in self._book.stored and name not in self._held and len(readers) == 1

    def _pinned(self, name: str) -> Split | None:
        """How a parameter with several readers lies."""
        return self._wanted.layout.get(name) if name in self._book.stored else None

    def _finished(self, name: str) -> _Held:
        """The value after its sum, if it is one, in the parts that are wanted of it."""
        held = self._where(name)
        if not held.is_sum:
            return held
        target = self._wanted.layout.get(name)
        if target is None:
            local = self._exchange("AllReduce", held.name, None, {IN_PLACE: 1})
        else:
            local = self._exchange("ReduceScatter", held.name, target, _cut(target))
        self._held[name] = _Held(local, target)
        return self._held[name]

    def _sum_that_passes(self, index: int, node: Node) -> str | None:
        """The unfinished sum on which the node works as well as on the finished one; None where it must not.

        Nothing else may read it. Views pass it on; others where less is left to finish behind them.
        """
        linear = self._book.linear(index)
        sums = [name for name in node.inputs if name and self._where(name).is_sum]
        if linear is None or not sums or len(node.outputs) > 1:
            return None
        for name in sums:
            if len(self._graph.consumers[name]) > 1 or name in self._graph.outputs:
                return None
        if linear is Linear.ALL:
            return sums[0] if len(sums) == len(node.inputs) else None
        if len(sums) > 1 or (linear is Linear.FIRST and node.inputs[0] != sums[0]):
            return None
        shrinks = self._book.sum_bytes(sums[0]) < self._book.size_bytes(sums[0])
        return sums[0] if shrinks or not self._book.work(index).moved_bytes else None

    # Reading

    def _read(self, name: str, place: Split | None, *, partial: bool) -> str:
        """Local name of a value as a node needs it; `partial`: its gradient there is a part of a sum."""
        if name in self._book.stored and name not in self._held:
            if name not in self._wanted.weights:
                return self._read_whole_weight(name, place, partial)
            lies = place if self._is_free_weight(name) else self._pinned(name)
            if lies is not None:
                self._hold(name, lies)
                self._result.split[name] = lies
        held = self._finished(name)
        if name in self._book.weights and held.split is None and place is None:
            if partial:
                self._result.partial.update(self._book.origins(name))
            return held.name
        whole_gradient = name not in self._book.with_gradient or not partial
        if held.split == place and (place is not None or whole_gradient):
            return held.name
        # Cut ones have one gradient each; whole ones may be read by nodes in parts and by whole nodes.
        key = name, place, place is None and not whole_gradient
        if key not in self._made:
            self._made[key] = self._convert(name, held, place, whole_gradient)
        return self._made[key]

    def _read_whole_weight(self, name: str, place: Split | None, partial: bool) -> str:
        """A weight that is whole, or the slice of it that a part of a sequence meets."""
        if partial:
            self._result.partial.update(self._book.origins(name))
        if place is None:
            return name
        length = local_shape(self._values[name].shape, place, self._parts)[place.dim]
        return self._take(name, place.dim, length)

    def _convert(self, name: str, held: _Held, place: Split | None, whole_gradient: bool) -> str:
        if place is None:
            moved_from = self._book.moved_from(name)
            if moved_from is not None:
                source = self._read(moved_from, None, partial=not whole_gradient)
                return self._move_again(self._graph.nodes[self._graph.producer[name]], source)
            if held.split is None:
                return self._exchange("GradientAllReduce", held.name, None)
            attributes: dict[str, Attribute] = {"backward": "slice"} if whole_gradient else {GATHERS_AGAIN: 1}
            attributes |= _cut(held.split)
            return self._exchange("AllGather", held.name, None, attributes, whole=name)
        if held.split is None:
            return self._exchange("Scatter", held.name, place, _cut(place))
        cuts = {f"from_{key}": given for key, given in _cut(held.split).items()} | _cut(place)
        return self._exchange("AllToAll", held.name, place, cuts, whole=name)

    def _move_again(self, node: Node, source: str) -> str:
        whole = self._graph.values[node.outputs[0]]
        name = self._new_name(f"{node.outputs[0]}.{self._group}.again")
        self._values[name] = replace(whole, name=name)
        others = (self._read(other, None, partial=False) if other else "" for other in node.inputs[1:])
        self._nodes.append(replace(node, name=name, inputs=(source, *others), outputs=(name,)))
        return name

    def _exchange(
        self,
        op_type: str,
        source: str,
        split: Split | None,
        attributes: Mapping[str, Attribute] | None = None,
        whole: str = "",
    ) -> str:
        """Adds an exchange; `whole` names a value whose shape on all ranks is that of the result, uncut."""
        value = self._graph.values[whole] if whole else self._values[source]
        name = self._new_name(f"{source}.{self._group}.{op_type}")
        self._values[name] = Value(name, local_shape(value.shape, split, self._parts), value.dtype)
        given: dict[str, Attribute] = {"group": self._group, "ranks": self._parts, **(attributes or {})}
        self._nodes.append(Node(name, op_type, (source,), (name,), "perfcast", given))
        return name

    def _new_name(self, stem: str) -> str:
        name, number = stem, 1
        while name in self._values:
            number += 1
            name = f"{stem}.{number}"
        return name

    def _take(self, name: str, dim: int, length: int) -> str:
        """A part of a whole operand."""
        key = name, Split(dim, 1, (length,)), True
        if key not in self._made:
            value, taken = self._values[name], f"{name}.{self._group}.part"
            shape = (*value.shape[:dim], length, *value.shape[dim + 1 :])
            self._values[taken] = Value(taken, shape, value.dtype)
            self._nodes.append(Node(taken, "Slice", (name,), (taken,)))
            self._made[key] = taken
        return self._made[key]

    # Costs

    def _cost(self, index: int, node: Node, axis: Axis, *, is_whole: bool) -> float:
        """Bytes that the node exchanges when it runs so, and its work as bytes."""
        work = self._book.work(index)
        factor = _GRADIENT_FACTOR if self._book.training else 1
        local = factor * work.matrix_flops / FLOPS_PER_BYTE + work.moved_bytes / _MEMORY_OVER_LINK
        total = local if is_whole else local / self._parts
        partial = not is_whole and not axis.sums
        for name, place in dict(zip(node.inputs, axis.inputs, strict=True)).items():
            if name:
                total += self._read_cost(name, place, partial)
        once = (self._parts - 1) / self._parts
        for name, place in zip(node.outputs, axis.outputs, strict=True):
            cut_later = name in self._wanted.layout
            if axis.sums and name:
                # A reduce-scatter is followed by a gather backward, an all-reduce by nothing.
                total += once * self._book.sum_bytes(name) * (self._passes if cut_later else 2)
            elif place is None and cut_later and name in self._book.with_gradient:
                total += once * self._book.size_bytes(name)
        return total

    def _read_cost(self, name: str, place: Split | None, partial: bool) -> float:
        size = (self._parts - 1) / self._parts * self._book.size_bytes(name)
        held = self._where(name)
        if name in self._book.stored and name not in self._held:
            if name not in self._wanted.weights:
                return 0.0
            lies = place if self._is_free_weight(name) else self._pinned(name)
            # A weight that is whole costs its parts on the other ranks, as in the choice of regions.
            return size * ((lies is None) + (0 if lies == place else self._passes))
        split = self._wanted.layout.get(name) if held.is_sum else held.split
        backward = size if name in self._book.with_gradient else 0.0
        total = 0.0
        if held.is_sum:
            total += size * self._passes if split is not None else 2 * size
        if name in self._book.weights and split is None and place is None:
            return total
        if split == place:
            return total + (2 * backward if place is None and partial else 0.0)
        if place is None:
            return total + size + (backward if partial else 0.0)
        if split is None:
            return total + backward
        return total + (size + backward) / self._parts


def _cut(split: Split) -> dict[str, Attribute]:
    """A split as attributes of an exchange."""
    return {"axis": split.dim, "outer": split.outer, "sizes": split.sizes}
