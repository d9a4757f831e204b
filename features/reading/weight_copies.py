"""One weight read many times: shared on purpose (tied), or several that merely held equal numbers.

Torch's exporters keep one of several equal tensors; the older one reaches it through Identity nodes. In an
untrained model every BatchNorm scale is all ones, every shift all zeros: equal, not shared, and merged all
the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType

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


# Operands that every layer has for itself: norm affines and statistics, biases, scales of a residual branch.
_PER_LAYER: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "BatchNormalization": (1, 2, 3, 4),
        "LayerNormalization": (1, 2),
        "InstanceNormalization": (1, 2),
        "GroupNormalization": (1, 2),
        "RMSNormalization": (1,),
        "Conv": (2,),
        "ConvTranspose": (2,),
        "Gemm": (2,),
        "Add": (0, 1),
        "Mul": (0, 1),
    }
)


def split_merged_vectors(graph: Graph) -> Graph:
    """The graph with one vector per layer where an exporter merged equal ones without leaving Identity nodes.

    Only vectors whose every use is one that each layer has for itself, and only where layers are not applied
    again as a whole, which shows in their matrices.
    """
    uses: dict[str, list[tuple[int, int]]] = {}
    for index, node in enumerate(graph.nodes):
        for position, name in enumerate(node.inputs):
            if name in graph.parameters:
                uses.setdefault(name, []).append((index, position))
    vectors = {
        name for name in uses if graph.values[name].elements == max(graph.values[name].shape, default=1)
    }
    shared = frozenset(name for name, found in uses.items() if len(found) > 1 and name not in vectors)
    if 2 * len(shared) >= max(len(uses) - len(vectors), 1):
        return graph
    shared = _with_views(graph, shared)
    inputs: dict[int, list[str]] = {}
    values, parameters = dict(graph.values), set(graph.parameters)
    for name in sorted(vectors):
        found = uses[name]
        if len(found) < 2 or len(graph.values[name].shape) != 1 or not _is_per_layer(graph, found, shared):
            continue
        for number, (index, position) in enumerate(found[1:], start=2):
            copy = f"{name}#{number}"
            values[copy] = replace(graph.values[name], name=copy)
            parameters.add(copy)
            inputs.setdefault(index, list(graph.nodes[index].inputs))[position] = copy
    if not inputs:
        return graph
    nodes = list(graph.nodes)
    for index, names in inputs.items():
        nodes[index] = replace(nodes[index], inputs=tuple(names))
    return replace(graph, nodes=tuple(nodes), values=values, parameters=frozenset(parameters))


def _with_views(graph: Graph, shared: frozenset[str]) -> frozenset[str]:
    """The shared matrices and what is computed from weights alone with them: exporters transpose per use."""
    found, weights = set(shared), set(graph.parameters | graph.buffers)
    if not found:
        return shared
    for node in graph.nodes:
        if all(name in weights for name in node.inputs if name):
            weights.update(node.outputs)
            if not found.isdisjoint(node.inputs):
                found.update(node.outputs)
    return frozenset(found)


def _is_per_layer(graph: Graph, uses: list[tuple[int, int]], shared: frozenset[str]) -> bool:
    """True when no use stands beside a matrix that is shared itself: then the whole layer is one."""
    for index, position in uses:
        node = graph.nodes[index]
        if position not in _PER_LAYER.get(node.op_type, ()):
            return False
        around = [graph.producer[name] for name in node.inputs if name in graph.producer]
        around.extend(reader for name in node.outputs for reader in graph.consumers.get(name, ()))
        beside = (name for neighbour in around for name in graph.nodes[neighbour].inputs)
        if not shared.isdisjoint((*node.inputs, *beside)):
            return False
    return True
