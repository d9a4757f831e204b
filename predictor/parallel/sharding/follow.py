"""Follows one split through the graph: every value that is split with it, and every node that runs in parts.

A column of one weight is a row of the next: the values between them make one region, as Megatron-LM's pairs
of column- and row-parallel layers do, and nobody has to name the layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.layout import Recut, Split
from predictor.parallel.sharding.registry import Axis

_RECUTS = 4


@dataclass(slots=True)
class Region:
    """What one split reaches.

    Attributes:
        layout: split of every value inside.
        axes: how each node inside runs, by its index.
        breaks: why nodes at the edge cannot run on a part; they read the values whole.
    """

    layout: dict[str, Split]
    axes: dict[int, Axis] = field(default_factory=dict)
    breaks: dict[int, str] = field(default_factory=dict)


def follow(book: Book, seeds: Mapping[str, Split], *, rings: bool = False, reductions: bool = True) -> Region:
    """The region of `seeds`; nodes are visited in order, and the first operand of a node that can decides.

    Args:
        seeds: values and how they are split. A rule may ask for another cut of one of them, or of a value
            that they lead to; the region is then that value's.
        rings: whether nodes may exchange keys and values while they run.
        reductions: whether statistics of rows may be added up between ranks. Norms that a file spells out
            could then run on parts of a row, which nobody does for the sake of a weight.
    """
    for _ in range(_RECUTS):
        region, recut = _follow(book, seeds, rings, reductions)
        if recut is None:
            return region
        seeds = recut
    return _follow(book, seeds, rings, reductions, recuts=False)[0]


def _follow(
    book: Book, seeds: Mapping[str, Split], rings: bool, reductions: bool, *, recuts: bool = True
) -> tuple[Region, dict[str, Split] | None]:
    region = Region(dict(seeds))
    waiting = list({index for name in seeds for index in book.touching(name)})
    heapify(waiting)
    seen = set(waiting)
    nodes = book.graph.nodes
    while waiting:
        index = heappop(waiting)
        node = nodes[index]
        members = [
            (operand, name, region.layout[name])
            for operand, name in (
                *enumerate(node.inputs),
                *((~position, name) for position, name in enumerate(node.outputs)),
            )
            if name in region.layout
        ]
        reason = ""
        for operand, name, split in members:
            answer = book.ask(index, operand, split)
            if isinstance(answer, Recut):
                if recuts and len(seeds) == 1:
                    return region, {name: answer.split}
                reason = reason or f"{node.op_type} needs another cut of its operand"
            elif isinstance(answer, str):
                reason = reason or answer
            elif answer.ring and not rings:
                reason = reason or f"{node.op_type} would pass keys and values on"
            elif answer.sums and not (reductions or _is_product(book, index)):
                reason = reason or f"{node.op_type} runs over what is split"
            else:
                region.axes[index] = answer
                for other, place in (
                    *zip(node.inputs, answer.inputs, strict=False),
                    *zip(node.outputs, answer.outputs, strict=False),
                ):
                    if place is not None and other and other not in region.layout:
                        region.layout[other] = place
                        for touched in book.touching(other):
                            if touched not in seen:
                                seen.add(touched)
                                heappush(waiting, touched)
                break
        else:
            region.breaks[index] = reason
    return region, None


def _is_product(book: Book, index: int) -> bool:
    """Products, and look-ups of words in a table."""
    return book.work(index).matrix_flops > 0 or book.graph.nodes[index].inputs[0] in book.weights
