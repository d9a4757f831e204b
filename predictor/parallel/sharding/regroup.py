"""Adds sums over ranks to one another before anything else is added, so that one all-reduce finishes them.

Layers whose attention and feed-forward run side by side add both to their input: (x + a) + b becomes
x + (a + b).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from predictor.features.graph import Graph, Node
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.registry import Linear

_TWO = 2


def with_sums_together(book: Book, summing: Collection[int]) -> Graph | None:
    """The graph with such additions regrouped; None where there are none.

    Args:
        summing: nodes whose results the ranks add up.
    """
    graph = book.graph
    moved: dict[int, tuple[Node, Node]] = {}
    gone: set[int] = set()
    for index, node in enumerate(graph.nodes):
        if not _adds_two(book, index):
            continue
        for inner_name, other in (node.inputs, node.inputs[::-1]):
            inner = graph.producer.get(inner_name)
            if inner is None or inner in moved or not _alone(graph, inner_name) or not _adds_two(book, inner):
                continue
            first, second = graph.nodes[inner].inputs
            if not _is_sum(book, other, summing) or not (
                _is_sum(book, first, summing) ^ _is_sum(book, second, summing)
            ):
                continue
            whole, part = (second, first) if _is_sum(book, first, summing) else (first, second)
            together = replace(graph.nodes[inner], inputs=(part, other))
            moved[index] = together, replace(node, inputs=(whole, inner_name))
            gone.add(inner)
            break
    if not moved:
        return None
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        if index in moved:
            nodes.extend(moved[index])
        elif index not in gone:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _adds_two(book: Book, index: int) -> bool:
    """Whether a node adds two tensors of its result's shape."""
    node = book.graph.nodes[index]
    values = book.graph.values
    return (
        book.linear(index) is Linear.ALL
        and node.op_type == "Add"
        and len(node.inputs) == _TWO
        and all(values[name].shape == values[node.outputs[0]].shape for name in node.inputs)
    )


def _alone(graph: Graph, name: str) -> bool:
    return len(graph.consumers.get(name, ())) == 1 and name not in graph.outputs


def _is_sum(book: Book, name: str, summing: Collection[int]) -> bool:
    """Whether a value is an unfinished sum that nothing else reads, or a view of one."""
    while _alone(book.graph, name):
        index = book.graph.producer.get(name)
        if index is None:
            return False
        if index in summing:
            return True
        if book.linear(index) is not Linear.FIRST or book.work(index).moved_bytes:
            return False
        name = book.graph.nodes[index].inputs[0]
    return False
