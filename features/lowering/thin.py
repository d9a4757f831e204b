"""A graph with most of its repeated layers left out, and what stands for what in the whole one.

Layers that are equal cost the same, so a search over many plans prices a few of each and counts them as many
times as they occur. Nothing else may use a thin graph: its parameters and activations are not all there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from predictor.features.graph import Graph, Node
from predictor.features.lowering.layers import Segments, segments

KEPT_LAYERS = 5
"""Kept of every run: what is different about the first layers and the last one stays visible."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A run of equal layers of which some were left out.

    Attributes:
        parameters: of the layers that stayed, layer by layer. left_out: number of layers that did not.
    """

    parameters: tuple[frozenset[str], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class ThinGraph:
    """The thin graph and the runs that were shortened; `graph` is the whole one where none could be."""

    graph: Graph
    runs: tuple[LayerRun, ...]


def thinned(graph: Graph) -> ThinGraph:
    """`graph` with all but a few layers of every run of equal ones left out."""
    pieces = segments(graph)
    runs = _runs(pieces)
    removed: set[int] = set()
    renamed: dict[str, str] = {}
    found: list[LayerRun] = []
    for first, last in runs:
        # Behind the last of the first layers, up to the last layer of all.
        cut, resume = first + KEPT_LAYERS - 2, last - 2
        before, after = pieces.crossing[cut], pieces.crossing[resume]
        if not _alike(graph, before, after):
            continue
        nodes = range(pieces.ends[cut], pieces.ends[resume])
        made = {name for index in nodes for name in pieces.nodes[index].outputs}
        new = dict(zip(after, before, strict=True))
        later = {name for node in pieces.nodes[pieces.ends[resume] :] for name in node.inputs}
        if (made & later) - new.keys() or made & set(graph.outputs):
            continue
        removed.update(nodes)
        renamed.update((name, old) for name, old in new.items() if name != old)
        kept = [*range(first, cut + 1), last - 1]
        found.append(LayerRun(tuple(_parameters(pieces, piece) for piece in kept), resume - cut))
    if not found:
        return ThinGraph(graph, ())
    return ThinGraph(_without(graph, pieces, removed, renamed), tuple(found))


def whole_rows(thin: ThinGraph, pieces: Segments) -> NDArray[np.intp] | None:
    """(pieces of the whole graph,) the piece of a thin one that stands for each.

    Args:
        pieces: of the thin graph, lowered and sharded.

    None when the layers of a run cannot be told apart from the rest.
    """
    rows = list(range(len(pieces)))
    begin = 0
    read: list[frozenset[str]] = []
    for end in pieces.ends:
        read.append(_read(pieces, pieces.nodes[begin:end]))
        begin = end
    for run in reversed(thin.runs):
        inner = frozenset().union(*run.parameters[:-1])
        mine = [piece for piece in range(len(pieces)) if read[piece] and read[piece] <= inner]
        counts = [
            piece
            for piece in mine
            if any(other != piece and pieces.repeats[other] == pieces.repeats[piece] for other in mine)
        ]
        if not counts:
            return None
        place = rows.index(counts[-1])
        rows[place:place] = [counts[-1]] * run.left_out
    return np.array(rows, dtype=np.intp)


def _runs(pieces: Segments) -> list[tuple[int, int]]:
    """(first, last + 1) of runs of equal pieces that are long enough to shorten."""
    found, first = [], 0
    for index in range(1, len(pieces) + 1):
        if index == len(pieces) or pieces.repeats[index] != pieces.repeats[first]:
            if index - first > KEPT_LAYERS:
                found.append((first, index))
            first = index
    return found


def _alike(graph: Graph, before: Sequence[str], after: Sequence[str]) -> bool:
    values = graph.values
    return len(before) == len(after) and all(
        values[one].shape == values[other].shape and values[one].dtype is values[other].dtype
        for one, other in zip(before, after, strict=True)
    )


def _parameters(pieces: Segments, piece: int) -> frozenset[str]:
    begin = pieces.ends[piece - 1] if piece else 0
    return _read(pieces, pieces.nodes[begin : pieces.ends[piece]])


def _read(pieces: Segments, nodes: Sequence[Node]) -> frozenset[str]:
    roots: Mapping[str, frozenset[str]] = pieces.weight_roots
    return frozenset().union(*(roots.get(name, frozenset()) for node in nodes for name in node.inputs))


def _without(graph: Graph, pieces: Segments, removed: set[int], renamed: Mapping[str, str]) -> Graph:
    gone = {pieces.nodes[index].name for index in removed}
    outputs = {name for index in removed for name in pieces.nodes[index].outputs}
    nodes = tuple(
        replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.name not in gone
    )
    read = {name for node in nodes for name in node.inputs}.union(graph.resident)
    unread = {name for name in (graph.parameters | graph.buffers) if name not in read}
    dropped = outputs | unread
    name = f"{graph.fingerprint}|thin|{len(nodes)}"
    return replace(
        graph,
        nodes=nodes,
        values={key: value for key, value in graph.values.items() if key not in dropped},
        parameters=graph.parameters - dropped,
        buffers=graph.buffers - dropped,
        constants={key: value for key, value in graph.constants.items() if key not in dropped},
        fingerprint=f"sha256:{hashlib.sha256(name.encode()).hexdigest()}",
    )
