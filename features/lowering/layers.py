"""Where a graph can be cut: narrow places between its nodes, and layers that repeat.

A cut lies between two nodes of the execution order. What crosses it are results of earlier nodes that later
ones read and that carry a gradient: weights stand where they are used, and masks, positions and the like are
made again on either side.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from predictor.features.execution import execution_order, with_gradient
from predictor.features.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Segments:
    """A graph as a row of pieces.

    Attributes:
        nodes: of the graph, in execution order.
        ends: (pieces,) number of nodes up to and including each piece.
        crossing: per piece, the values that cross from it to the next; empty for the last.
        repeats: what each piece runs; equal for pieces that are the same layer again.
        weight_roots: parameters that each weight or value made of weights alone stands for.
    """

    nodes: tuple[Node, ...]
    ends: tuple[int, ...]
    crossing: tuple[tuple[str, ...], ...]
    repeats: tuple[Hashable, ...]
    weight_roots: dict[str, frozenset[str]]

    def __len__(self) -> int:
        return len(self.ends)

    def piece_of_nodes(self) -> list[int]:
        """(nodes,) piece of each node."""
        found: list[int] = []
        for piece, end in enumerate(self.ends):
            found += [piece] * (end - len(found))
        return found


# What ranks exchange around a product runs beside it, or finishes it: no cut comes between.
_BEFORE_PRODUCTS = frozenset({"GradientAllReduce", "AllGather", "Scatter"})
_AFTER_PRODUCTS = frozenset({"AllReduce", "ReduceScatter"})


def segments(graph: Graph) -> Segments:
    """Cuts `graph` wherever little crosses; layers that repeat stay whole.

    A cut is taken where one value crosses, fewer bytes than on either side, or no more values than nearby.
    """
    nodes, weights = execution_order(graph)
    crossing = _crossing(graph, nodes, weights)
    values = graph.values
    sizes = [sum(values[name].size_bytes for name in names) for names in crossing]
    ends = [
        index + 1
        for index in range(len(nodes) - 1)
        # What is made of weights alone stays with its first reader.
        if crossing[index]
        and nodes[index].op_type not in _BEFORE_PRODUCTS
        and nodes[index + 1].op_type not in _AFTER_PRODUCTS
        and not weights.issuperset(filter(None, nodes[index].inputs))
        and (_is_narrow(sizes, index) or _has_fewest(crossing, index))
    ]
    ends.append(len(nodes))
    signatures = _signatures(graph, nodes, ends)
    behind = [crossing[end - 1] for end in ends]
    images = [len(names) == 1 and len(values[names[0]].shape) >= _IMAGE_RANK for names in behind]
    kept = [ends[piece] for piece in _layer_ends(signatures, [sizes[end - 1] for end in ends], images)]
    merged = _signatures(graph, nodes, kept)
    return Segments(
        nodes=tuple(nodes),
        ends=tuple(kept),
        crossing=tuple(crossing[end - 1] if end < len(nodes) else () for end in kept),
        repeats=tuple(merged),
        weight_roots=_weight_roots(graph, nodes, weights),
    )


def named_segments(graph: Graph, pieces: Sequence[str], repeats: Sequence[Hashable]) -> Segments:
    """Pieces as the graph's maker names them.

    Args:
        pieces: by node in execution order; a piece is a run of nodes of one name.
        repeats: what each piece runs, in order.
    """
    nodes, weights = execution_order(graph)
    last = len(nodes) - 1
    ends = [index + 1 for index in range(len(nodes)) if index == last or pieces[index] != pieces[index + 1]]
    crossing = _crossing(graph, nodes, weights)
    return Segments(
        nodes=tuple(nodes),
        ends=tuple(ends),
        crossing=tuple(crossing[end - 1] if end < len(nodes) else () for end in ends),
        repeats=tuple(repeats),
        weight_roots=_weight_roots(graph, nodes, weights),
    )


def _crossing(graph: Graph, nodes: Sequence[Node], weights: set[str]) -> list[tuple[str, ...]]:
    """Values that cross behind each node."""
    carries = with_gradient(graph, nodes)
    if not carries:
        carries = {name for node in nodes for name in node.outputs if name}
    last_read: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            last_read[name] = index
    alive: dict[str, None] = {}
    leaving: dict[int, list[str]] = {}
    found: list[tuple[str, ...]] = []
    for index, node in enumerate(nodes):
        for name in leaving.pop(index, ()):
            alive.pop(name, None)
        for name in node.outputs:
            if name in carries and name not in weights and last_read.get(name, -1) > index:
                alive[name] = None
                leaving.setdefault(last_read[name], []).append(name)
        found.append(tuple(alive))
    return found


def _is_narrow(sizes: Sequence[int], index: int) -> bool:
    """Fewer bytes than at the nearest places before and after that differ."""
    here = sizes[index]
    before = next((size for size in reversed(sizes[:index]) if size != here), 0)
    after = next((size for size in sizes[index + 1 :] if size != here), 0)
    is_first = index == 0 or sizes[index - 1] != here
    return is_first and before > here and after > here


# Nodes on either side that a place is compared with.
_NEAR = 3


def _has_fewest(crossing: Sequence[tuple[str, ...]], index: int) -> bool:
    """As few values as anywhere near: skips that stay open for long do not count against a place."""
    near = crossing[max(0, index - _NEAR) : index + _NEAR + 1]
    here = len(crossing[index])
    return here == 1 or all(len(names) >= here for names in near if names)


def _signatures(graph: Graph, nodes: Sequence[Node], ends: Sequence[int]) -> list[Hashable]:
    """What each piece runs, whatever its values are called."""
    values = graph.values
    types = {name: (value.shape, value.dtype.value) for name, value in values.items()}
    found: list[Hashable] = []
    begin = 0
    for end in ends:
        found.append(
            tuple(
                (
                    node.op_type,
                    tuple(types[name] for name in node.inputs if name),
                    tuple(types[name] for name in node.outputs if name),
                )
                for node in nodes[begin:end]
            )
        )
        begin = end
    return found


# Samples, channels and two dimensions of space.
_IMAGE_RANK = 4


def _layer_ends(signatures: Sequence[Hashable], sizes: Sequence[int], images: Sequence[bool]) -> list[int]:
    """Indices of the pieces after which a cut stays.

    Runs of a repeated pattern are cut between repeats only, where least crosses; the pattern that covers the
    most pieces goes first, then what lies on either side of it. Beside a run, cuts through which more passes
    than between its layers are dropped: they lie inside a layer that differs a little from the others. Not
    so where one image crosses: networks shrink their images on the way, and early layers pass most.

    Args:
        sizes: bytes that cross behind each piece. images: whether that is one image.
    """
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(item, len(numbers)) for item in signatures]
    kept: list[int] = []
    todo = [(0, len(row), 0)]
    while todo:
        begin, end, most = todo.pop()
        run = _longest_run(row, begin, end)
        if run is not None:
            first, last, period = run
            shift = min(range(period), key=lambda offset: (sizes[first + offset], -offset))
        if run is None or (sizes[first + shift] > most > 0 and not images[first + shift]):
            kept += [
                i for i in range(begin, end) if not most or sizes[i] <= most or images[i] or i == len(row) - 1
            ]
            continue
        ends = range(first + shift, last, period)
        kept.extend(ends)
        most = max(most, sizes[ends[0]])
        left = first if shift == period - 1 else ends[0]
        todo += [(begin, left, most), (ends[-1] + 1, end, most)]
    return sorted(kept)


def _longest_run(row: Sequence[int], begin: int, end: int) -> tuple[int, int, int] | None:
    """(first, last + 1, period) of the pattern of at least two pieces that repeats over the most of `row`."""
    best: tuple[int, int, int] | None = None
    covered = 0
    for period in range(2, (end - begin) // 2 + 1):
        if end - begin <= covered:
            break
        matched = 0
        for index in range(begin, end - period):
            matched = matched + 1 if row[index] == row[index + period] else 0
            length = matched + period
            if matched >= period and length > covered:
                first = index - matched + 1
                if len(set(row[first : first + period])) > 1:
                    covered, best = length, (first, first + length, period)
    return best


def _weight_roots(graph: Graph, nodes: Sequence[Node], weights: set[str]) -> dict[str, frozenset[str]]:
    roots = {name: frozenset((name,)) for name in graph.parameters}
    for node in nodes:
        if all(not name or name in weights for name in node.inputs):
            made = frozenset().union(*(roots.get(name, frozenset()) for name in node.inputs if name))
            roots.update((name, made) for name in node.outputs if name)
    return roots
