"""Which regions to split over tensor-parallel ranks: as much work and weight as exchange is worth it.

Each dimension of each weight leads to a region. A region saves the work of its nodes and the bytes of its
weights, and costs what its ranks exchange: all-reduces behind sums, forward; all-reduces of the gradients
that enter it, backward; gathers where a node needs a value whole. The densest saving is taken first, and what
is split already saves nothing again. So a transformer gets Megatron-LM's two all-reduces a layer and
direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from predictor.features.graph import Graph
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.follow import Region, follow
from predictor.parallel.sharding.layout import Split, cut, fits
from predictor.parallel.sharding.rules.attention import keys_and_values

# FLOPs that are worth one byte between ranks. Fast links and slow cores give 100 (V100 and NVLink in FP32),
# fast cores and slow links far more; who asks for tensor parallelism wants the weights split too, so low.
FLOPS_PER_BYTE = 32
# A region with less of all FLOPs and less of all parameters is left whole: routers, small heads.
_SMALLEST_SHARE = 1e-4
# A region whose work others split already, but for this share, is not worth its exchange: the features
# between the layers of a transformer touch every weight, and would be split for the sake of a router.
_LEAST_NEW = 0.25
_GRADIENT_FACTOR = 3
"""Forward, and two products backward."""


@dataclass(slots=True)
class Choice:
    """What is split, and why the rest is not.

    Attributes:
        layout: split of values. regions: what is split, densest first.
        reasons: by node, why it is in none of them.
    """

    layout: dict[str, Split] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Candidate:
    region: Region
    cost_bytes: float
    flops: dict[int, int]
    weights: dict[str, int]

    def saving(self, taken_nodes: set[int], taken_weights: set[str]) -> float:
        """Bytes that splitting what is not split yet is worth."""
        flops = sum(flops for index, flops in self.flops.items() if index not in taken_nodes)
        weights = sum(size for name, size in self.weights.items() if name not in taken_weights)
        return flops / FLOPS_PER_BYTE + weights


def choose(book: Book, stream: Region) -> Choice:
    """Regions of the graph's weights, densest first; `stream` is what runs along positions of a sequence."""
    candidates = [
        candidate for candidate in _candidates(book) if not _splits_samples(book, candidate.region, stream)
    ]
    saved_part = 1 - 1 / book.parts
    all_flops = sum(book.work(index).matrix_flops for index in range(len(book.graph.nodes))) or 1
    all_weights = sum(book.size_bytes(name) for name in book.stored) or 1
    if book.training:
        all_flops *= _GRADIENT_FACTOR

    def density(candidate: _Candidate) -> float:
        return candidate.saving(set(), set()) / (candidate.cost_bytes + 1)

    chosen = Choice()
    nodes: set[int] = set()
    weights: set[str] = set()
    for candidate in sorted(candidates, key=density, reverse=True):
        region = candidate.region
        small = (
            sum(candidate.flops.values()) < _SMALLEST_SHARE * all_flops
            and sum(candidate.weights.values()) < _SMALLEST_SHARE * all_weights
        )
        saving, alone = candidate.saving(nodes, weights), candidate.saving(set(), set())
        dear = saved_part * saving <= candidate.cost_bytes or saving < _LEAST_NEW * alone
        if small or dear or _collides(book, region, chosen.layout):
            reason = "too little to split" if small else "its exchange costs more than splitting saves"
            for index in candidate.flops:
                chosen.reasons.setdefault(index, reason)
            continue
        for name, split in region.layout.items():
            chosen.layout.setdefault(name, split)
        chosen.regions.append(region)
        nodes.update(candidate.flops)
        weights.update(candidate.weights)
    for candidate in candidates:
        for index, reason in candidate.region.breaks.items():
            chosen.reasons.setdefault(index, reason)
    return chosen


def _splits_samples(book: Book, region: Region, stream: Region) -> bool:
    """Whether the region parts the data itself, or learned positions, and not a weight's features."""
    nodes = (book.graph.nodes[index] for index in region.axes)
    if all(name in book.weights for node in nodes for name in node.outputs):
        return True
    return any(
        (name in book.graph.inputs and not is_state(book.graph, name)) or stream.layout.get(name) == split
        for name, split in region.layout.items()
        if name not in book.weights
    )


def is_state(graph: Graph, name: str) -> bool:
    """Whether an input holds cached keys and values, whose heads each rank keeps.

    It is given back, written on, or attended to as it is: an encoder's, of which a step adds none.
    """
    readers = [graph.nodes[index] for index in graph.consumers.get(name, ())]
    return bool(readers) and all(
        node.outputs[0] in graph.outputs or name in keys_and_values(node) for node in readers
    )


def _collides(book: Book, region: Region, layout: dict[str, Split]) -> bool:
    """Whether an activation inside is split already, some other way."""
    return any(
        layout.get(name, split) != split for name, split in region.layout.items() if name not in book.weights
    )


def _candidates(book: Book) -> list[_Candidate]:
    graph, found = book.graph, []
    known: set[tuple[str, int]] = set()
    for node in graph.nodes:
        for name in node.inputs:
            shape = graph.values[name].shape if name in book.stored else ()
            if len(shape) < 2:
                continue
            for dim, size in enumerate(shape):
                seed = cut(dim, (size,))
                if (name, dim) in known or not fits(seed, book.parts):
                    continue
                known.add((name, dim))
                region = follow(book, {name: seed}, reductions=False)
                known.update(
                    (inner, split.dim) for inner, split in region.layout.items() if inner in book.weights
                )
                found.append(_weighed(book, region))
    return found


def _weighed(book: Book, region: Region) -> _Candidate:
    """What the region saves and costs when nothing else is split."""
    parts, graph = book.parts, book.graph
    once = (parts - 1) / parts
    factor = _GRADIENT_FACTOR if book.training else 1
    exchanged = 0.0
    entering: set[str] = set()
    for index, axis in region.axes.items():
        node = graph.nodes[index]
        if axis.sums:
            exchanged += sum(2 * once * book.sum_bytes(name) for name in node.outputs if name)
        else:
            entering.update(
                name
                for name, place in zip(node.inputs, axis.inputs, strict=False)
                if place is None and name in book.with_gradient and name not in book.weights
            )
    entering = {book.entry(name) for name in entering}
    exchanged += sum(2 * once * book.size_bytes(name) for name in entering)
    gathered = {
        name for index in region.breaks for name in graph.nodes[index].inputs if name in region.layout
    }
    # The gradient of what is read whole is whole: it is cut, not exchanged.
    exchanged += sum(once * book.size_bytes(name) for name in gathered)
    # The gradient of what is made whole and then cut is joined.
    cut_off = {
        name
        for index in region.breaks
        for name in graph.nodes[index].outputs
        if name in region.layout and name in book.with_gradient
    }
    exchanged += sum(once * book.size_bytes(name) for name in cut_off)
    flops = {index: factor * book.work(index).matrix_flops for index in region.axes}
    return _Candidate(
        region,
        exchanged,
        {index: value for index, value in flops.items() if value},
        {name: book.size_bytes(name) for name in region.layout if name in book.stored},
    )
