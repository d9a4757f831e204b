"""Marks nodes whose first output may take over the memory of their first input: caches that are written to.

ONNX's TensorScatter models an in-place update of a cache of keys and values. It is one where nothing else
reads the old contents, and where no gradient asks for them.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.graph import IN_PLACE, Graph

_UPDATES = frozenset({("", "TensorScatter")})


def mark_updates(graph: Graph) -> Graph:
    """The graph with the attribute `perfcast_in_place` on updates of a value that nothing else reads."""
    if not any((node.domain, node.op_type) in _UPDATES for node in graph.nodes):
        return graph
    owned = graph.parameters | graph.buffers | set(graph.outputs)
    nodes = tuple(
        replace(node, attributes={**node.attributes, IN_PLACE: 1})
        if (node.domain, node.op_type) in _UPDATES
        and node.inputs[0] not in owned
        and len(graph.consumers[node.inputs[0]]) == 1
        and node.inputs.count(node.inputs[0]) == 1
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
