"""In which order the nodes of a graph or body run, and which of its values have a gradient."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.features.graph import Graph, Node


def execution_order(graph: Graph) -> tuple[list[Node], set[str]]:
    """Nodes in order, and the values that are weights; weight-only nodes move to just before their reader.

    Frameworks cast or reshape a weight where it is used; its gradient is complete soon after that layer's.
    """
    weights = {*graph.parameters, *graph.buffers}
    waiting: dict[str, Node] = {}
    ordered: list[Node] = []

    def release(name: str) -> None:
        node = waiting.get(name)
        if node is not None:
            for output in node.outputs:
                waiting.pop(output, None)
            for source in node.inputs:
                release(source)
            ordered.append(node)

    for node in graph.nodes:
        if all(not name or name in weights for name in node.inputs):
            weights.update(name for name in node.outputs if name)
            waiting.update((name, node) for name in node.outputs if name)
            continue
        if waiting:
            for name in node.inputs:
                if name in waiting:
                    release(name)
        ordered.append(node)
    for name in graph.outputs:
        release(name)
    return ordered, weights


def with_gradient(graph: Graph, nodes: Iterable[Node], sources: Iterable[str] = ()) -> set[str]:
    """Parameters (and `sources`), and every float computed from one."""
    found = {*graph.parameters, *sources}
    values = graph.values
    for node in nodes:
        if not found.isdisjoint(node.inputs):
            found.update(name for name in node.outputs if name and values[name].dtype.is_float)
    return found
