"""Identity on a weight: the same weight again (tied), or another one that merely held equal numbers.

Torch's exporter keeps one of several equal tensors and reaches it through Identity nodes. In an untrained
model every BatchNorm scale is all ones, every shift all zeros: equal, not shared, and merged all the same.
"""

from __future__ import annotations

from functools import cached_property

from predictor.features.graph import Graph, Node


class WeightCopies:
    """Decides for the Identity nodes of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.names: set[str] = set()
        """Outputs found to be weights of their own."""

    def claims(self, node: Node) -> bool:
        """True when the node's output is a weight of its own; remembered in `names`.

        A vector is, and so is a matrix (fresh ones may be zeros, too), with two exceptions that are sharing
        on purpose: a table that the input looks rows up in (tied embeddings), and graphs that reach most of
        their matrices this way (one layer applied many times).
        """
        source, output = node.inputs[0], node.outputs[0]
        if source not in self._graph.parameters and source not in self.names:
            return False
        if self._repeats_layers or (not self._is_vector(source) and self._is_looked_up(source)):
            return False
        if not self._is_vector(source) and self._is_looked_up(output):
            return False
        self.names.add(output)
        return True

    def _is_vector(self, name: str) -> bool:
        value = self._graph.values[name]
        return value.elements == max(value.shape, default=1)

    def _is_looked_up(self, name: str) -> bool:
        readers = [self._graph.nodes[index] for index in self._graph.consumers.get(name, ())]
        return any(
            node.op_type == "Gather" and node.inputs[0] == name and node.inputs[1] in self._input_dependent
            for node in readers
        )

    @cached_property
    def _repeats_layers(self) -> bool:
        parameters = self._graph.parameters
        matrices = sum(not self._is_vector(name) for name in parameters)
        again = sum(
            node.op_type == "Identity"
            and node.inputs[0] in parameters
            and not self._is_vector(node.inputs[0])
            for node in self._graph.nodes
        )
        return again >= max(matrices, 1)

    @cached_property
    def _input_dependent(self) -> frozenset[str]:
        found = set(self._graph.inputs)
        for node in self._graph.nodes:
            # The shape of an input is no contents of it, and already known.
            if node.outputs[0] not in self._graph.constants and not found.isdisjoint(node.inputs):
                found.update(node.outputs)
        found.discard("")
        return frozenset(found)
