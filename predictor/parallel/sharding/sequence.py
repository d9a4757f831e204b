"""Where a graph has positions of a sequence, found at its attention, and what is split along them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.follow import Region, follow
from predictor.parallel.sharding.layout import Split, fits
from predictor.registry import Registry

PositionRule: TypeAlias = Callable[[OpView], int | None]

POSITIONS: Registry[PositionRule] = Registry("rule of positions")
"""The dimension of an op's first input that counts positions of a sequence."""


@POSITIONS.register("perfcast", "Attention", "RingAttention", "LatentAttention")
@POSITIONS.register("", "Attention", since=23)
@POSITIONS.register("com.microsoft", "MultiHeadAttention", "GroupQueryAttention")
def _of_queries(op: OpView) -> int | None:
    rank = len(op.input(0).shape)
    return {4: 2, 3: 1}.get(rank)


@POSITIONS.register("", "Softmax")
def _of_scores(op: OpView) -> int | None:
    """Scores of attention are [..., queries, keys]; rows of a matrix (routers, classifiers) are not."""
    rank = len(op.input(0).shape)
    along_keys = op.integer("axis", -1) % max(1, rank) == rank - 1
    return rank - 2 if rank > 2 and along_keys else None


def positions(book: Book, *, rings: bool) -> Region:
    """All that is split along positions; an empty region where the graph has no sequence that divides.

    Args:
        rings: whether attention may pass keys and values on, or must have them whole.
    """
    seeds: dict[str, Split] = {}
    graph = book.graph
    for index, node in enumerate(graph.nodes):
        rule = POSITIONS.get(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
        dim = rule(book.view(index)) if rule else None
        if dim is None:
            continue
        split = Split(dim, 1, (graph.values[node.inputs[0]].shape[dim],))
        if fits(split, book.parts):
            seeds.setdefault(node.inputs[0], split)
    return follow(book, seeds, rings=rings)
