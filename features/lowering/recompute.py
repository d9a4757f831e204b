"""Which nodes backward runs again: whole layers, or the scores of attention.

FULL keeps what enters each repeated layer and runs the layer again, as torch.utils.checkpoint and Megatron-LM
do; a graph that hardly repeats (U-Net, DenseNet) is cut into stretches instead, as by checkpoint_sequential.
SELECTIVE runs again what lies between the product of queries and keys and the product with the values
(Korthikanti et al. 2022, arXiv:2205.05198): softmax, masks and dropout, whose results are the largest and the
cheapest to make. A fused attention kernel does that by itself, so SELECTIVE changes nothing there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeAlias

from predictor.features.execution import execution_order
from predictor.features.graph import Graph, Node
from predictor.features.lowering.layers import Segments, segments
from predictor.features.lowering.thin import KEPT_LAYERS
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
    """Pieces of the graph that occur at least twice; stretches where those are few and not half of it.

    An op by itself is no layer: what enters it is all that backward needs of it.
    """
    pieces = segments(graph)
    spans = zip((0, *pieces.ends[:-1]), pieces.ends, strict=True)
    several = [
        (repeat, tuple(range(begin, end)))
        for repeat, (begin, end) in zip(pieces.repeats, spans, strict=True)
        if end - begin > 1
    ]
    counts = Counter(repeat for repeat, _ in several)
    runs = tuple(nodes for repeat, nodes in several if counts[repeat] > 1)
    # A thin graph, which has no more of any layer, must run the same layers again as the whole one.
    repeats = max(counts.values(), default=0) >= KEPT_LAYERS
    return runs if repeats or 2 * sum(map(len, runs)) >= len(pieces.nodes) else _stretches(pieces)


def _stretches(pieces: Segments) -> Runs:
    """About as many as each has pieces (Chen et al. 2016, arXiv:1604.06174); backward begins in the last."""
    count = round(sqrt(len(pieces)))
    shares = (len(pieces.nodes) * part / count for part in range(1, count))
    ends = sorted({min(pieces.ends, key=lambda end: abs(end - share)) for share in shares})
    return tuple(tuple(range(begin, end)) for begin, end in zip((0, *ends), ends, strict=False))


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
