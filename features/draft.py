"""A graph under edit: the mutable side of the Graph -> Graph passes, private to this layer.

Nodes sit in slots in topological order. A replacement goes into the slot of the last node that it
replaces, so the order stays topological without sorting; deleted nodes leave an empty slot. Every
operation is O(nodes it touches).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Shape, Value

# How a value depends on the data: on constants alone, on parameters too, or on what the caller feeds.
CONSTANT, WEIGHT, DATA = 0, 1, 2

# These read only the type of their input.
_TYPE_ONLY = frozenset({"Shape", "Size"})


class Draft:
    """An editable copy of `graph`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.slots: list[tuple[Node, ...]] = [(node,) for node in graph.nodes]
        self.values: dict[str, Value] = dict(graph.values)
        self.buffers: set[str] = set(graph.buffers)
        self.outputs = graph.outputs
        self.producer: dict[str, tuple[int, Node]] = {}
        self.use_count: dict[str, int] = dict.fromkeys(graph.outputs, 1)
        for index, node in enumerate(graph.nodes):
            self._attach(index, node)
        self.dependence = _dependences(graph)

    def node(self, value: str) -> Node | None:
        """The node that writes `value`, or None for inputs, parameters and buffers."""
        found = self.producer.get(value)
        return found[1] if found else None

    def reader(self, value: str) -> Node | None:
        """The first node that read `value` before any edit and is still there; None where none is."""
        for place in self.graph.consumers.get(value, ()):
            found = self.graph.nodes[place]
            if any(self.node(output) is found for output in found.outputs if output):
                return found
        return None

    def producer_types(self, node: Node) -> tuple[str, ...]:
        """Op types of the nodes that make the inputs of `node`; "" where none does."""
        found = (self.producer.get(name) for name in node.inputs)
        return tuple(made[1].op_type if made else "" for made in found)

    def shape(self, value: str) -> Shape:
        """Shape of `value`; () for an omitted input."""
        return self.values[value].shape if value in self.values else ()

    def depends_on(self, value: str) -> int:
        """CONSTANT, WEIGHT or DATA."""
        return self.dependence.get(value, CONSTANT)

    def is_scalar_constant(self, value: str) -> bool:
        """True for a value of one element that depends neither on parameters nor on inputs."""
        found = self.values.get(value)
        return found is not None and found.elements == 1 and self.depends_on(value) == CONSTANT

    def new_value(self, stem: str, shape: Shape, dtype: DType, like: str) -> str:
        """Adds a value that depends on the data as `like` does; returns its name."""
        name, number = stem, 1
        while name in self.values:
            number += 1
            name = f"{stem}.{number}"
        self.values[name] = Value(name, shape, dtype)
        self.dependence[name] = self.depends_on(like)
        return name

    def put(self, index: int, nodes: tuple[Node, ...]) -> None:
        """Replaces the contents of one slot."""
        for node in self.slots[index]:
            self._detach(node)
        self.slots[index] = nodes
        for node in nodes:
            self._attach(index, node)

    def remove(self, node: Node) -> None:
        """Deletes one node from its slot."""
        index = self.producer[next(filter(None, node.outputs))][0]
        self.put(index, tuple(other for other in self.slots[index] if other is not node))

    def rename(self, renamed: dict[str, str]) -> None:
        """Points every reader (and graph output) of a key of `renamed` at its value. Chains are followed."""

        def final(name: str) -> str:
            while name in renamed:
                name = renamed[name]
            return name

        for index, slot in enumerate(self.slots):
            if any(name in renamed for node in slot for name in node.inputs):
                self.put(index, tuple(replace(n, inputs=tuple(map(final, n.inputs))) for n in slot))
        for position, name in enumerate(self.outputs):
            if name in renamed:
                self.use_count[name] -= 1
                self.use_count[final(name)] = self.use_count.get(final(name), 0) + 1
                self.outputs = (*self.outputs[:position], final(name), *self.outputs[position + 1 :])

    def drop_dead(self) -> None:
        """Deletes every node none of whose outputs is read."""
        for index in range(len(self.slots) - 1, -1, -1):
            slot = self.slots[index]
            for node in reversed(slot):
                if not any(self.use_count.get(name, 0) for name in node.outputs):
                    slot = tuple(other for other in slot if other is not node)
                    self._detach(node)
            self.slots[index] = slot

    def finish(self) -> Graph:
        """The frozen result; values that nothing touches any more are left out."""
        nodes = tuple(node for slot in self.slots for node in slot)
        graph = self.graph
        touched = {name for node in nodes for name in (*node.inputs, *node.outputs) if name}
        touched.update(graph.inputs, self.outputs, graph.parameters, graph.buffers)
        return replace(
            graph,
            nodes=nodes,
            values={name: value for name, value in self.values.items() if name in touched},
            outputs=self.outputs,
            buffers=frozenset(name for name in self.buffers if name in touched),
        )

    def _attach(self, index: int, node: Node) -> None:
        for name in node.outputs:
            if name:
                self.producer[name] = (index, node)
        for name in node.inputs:
            if name:
                self.use_count[name] = self.use_count.get(name, 0) + 1

    def _detach(self, node: Node) -> None:
        for name in node.outputs:
            if name and self.producer.get(name, (0, None))[1] is node:
                del self.producer[name]
        for name in node.inputs:
            if name:
                self.use_count[name] -= 1


def _dependences(graph: Graph) -> dict[str, int]:
    found = dict.fromkeys(graph.inputs, DATA) | dict.fromkeys(graph.parameters, WEIGHT)
    for node in graph.nodes:
        level = CONSTANT if node.op_type in _TYPE_ONLY else _highest(found, node.inputs)
        for name in node.outputs:
            found[name] = level
    return found


def _highest(found: dict[str, int], names: Iterable[str]) -> int:
    level = CONSTANT
    for name in names:
        other = found.get(name, CONSTANT)
        if other > level:
            level = other
    return level
