"""Which nodes backward runs again: whole layers, or the scores of attention.

FULL keeps what enters each repeated layer and runs the layer again, as torch.utils.checkpoint and Megatron-LM
do. SELECTIVE runs again what lies between the product of queries and keys and the product with the values
(Korthikanti et al. 2022, arXiv:2205.05198): softmax, masks and dropout, whose results are the largest and the
cheapest to make. A fused attention kernel does that by itself, so SELECTIVE changes nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from predictor.features.execution import execution_order
from predictor.features.graph import Graph, Node
from predictor.features.lowering.layers import segments
from predictor.types import Recompute

Runs: TypeAlias = tuple[tuple[int, ...], ...]
"""Ascending numbers of nodes in execution order, one tuple per run."""

_PRODUCTS = frozenset({"MatMul"})
# What may stand between the products: pointwise ops, masks, and ops that only change shape.
_BETWEEN = frozenset(
    {
        *("Mul", "Div", "Add", "Sub", "Where", "Max", "Min", "Cast", "Tanh", "Softmax", "Dropout"),
        *("Reshape", "Expand", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Contiguous", "Identity"),
    }
)


def replayed_nodes(graph: Graph, kind: Recompute, layers: int | None = None) -> Runs:
    """Runs of nodes that backward computes again.

    Args:
        graph: lowered for the job.
        layers: how many of the repeated layers, from the first on; None is all.
    """
    if kind is Recompute.NONE:
        return ()
    found = _layers(graph) if kind is Recompute.FULL else _attentions(graph)
    return found if layers is None else found[:layers]


def _layers(graph: Graph) -> Runs:
    """Pieces of the graph that occur at least twice."""
    pieces = segments(graph)
    counts = Counter(pieces.repeats)
    runs, begin = [], 0
    for repeat, end in zip(pieces.repeats, pieces.ends, strict=True):
        if counts[repeat] > 1:
            runs.append(tuple(range(begin, end)))
        begin = end
    return tuple(runs)


def _attentions(graph: Graph) -> Runs:
    """From each product of queries and keys to the product of its softmax with the values."""
    nodes, _ = execution_order(graph)
    place = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, []).append(index)

    def before(index: int) -> list[int]:
        return [place[name] for name in nodes[index].inputs if name in place]

    def after(index: int) -> list[int]:
        return [reader for name in nodes[index].outputs for reader in readers.get(name, ())]

    runs = []
    for index, node in enumerate(nodes):
        if node.op_type == "Softmax":
            upward, downward = _way(nodes, index, before), _way(nodes, index, after)
            if upward and downward:
                runs.append(tuple(sorted(upward | downward | {index})))
    return tuple(runs)


def _way(nodes: Sequence[Node], start: int, step: Callable[[int], list[int]]) -> set[int]:
    """Nodes between `start` and the nearest products, products included; empty when there is none."""
    leads: dict[int, bool] = {}

    def visit(index: int) -> bool:
        if index not in leads:
            leads[index] = False
            if nodes[index].op_type in _PRODUCTS:
                leads[index] = True
            elif nodes[index].op_type in _BETWEEN:
                for other in step(index):
                    # Every way is walked, whether or not an earlier one leads there.
                    leads[index] = visit(other) or leads[index]
        return leads[index]

    for index in step(start):
        visit(index)
    return {index for index, found in leads.items() if found}
