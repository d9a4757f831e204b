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

        Vectors always are: fresh ones are filled with one number. Matrices are random, so equal ones are
        tied on purpose, except tables read at constant places (relative position biases start as zeros); a
        tied embedding is read at places that the input decides.
        """
        source, output = node.inputs[0], node.outputs[0]
        value = self._graph.values.get(source)
        if value is None or (source not in self._graph.parameters and source not in self.names):
            return False
        if value.elements != max(value.shape, default=1) and not self._is_fixed_table(output):
            return False
        self.names.add(output)
        return True

    def _is_fixed_table(self, name: str) -> bool:
        readers = [self._graph.nodes[index] for index in self._graph.consumers.get(name, ())]
        return bool(readers) and all(
            node.op_type == "Gather"
            and node.inputs[0] == name
            and node.inputs[1] not in self._input_dependent
            for node in readers
        )

    @cached_property
    def _input_dependent(self) -> frozenset[str]:
        found = set(self._graph.inputs)
        for node in self._graph.nodes:
            # The shape of an input is no contents of it, and already known.
            if node.outputs[0] not in self._graph.constants and not found.isdisjoint(node.inputs):
                found.update(node.outputs)
        found.discard("")
        return frozenset(found)
