"""Whether a compiler lays images channels-last: inductor's rule on the convolutions of a graph.

torch, _inductor/graph.py, `decide_layout_opt`: never where nodes outnumber convolutions 300 to 1; for
inference where the FLOPs, weighted by the time that kinds of convolutions were seen to take channels-last,
come out lower; for training where no convolution is grouped, none narrows its channels to half or less, and
not all are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import prod

from predictor.features.graph import Graph, Node

_MOST_NODES_PER_CONVOLUTION = 300
_SMALL_CHANNELS = 64


class _Kind(Enum):
    GROUPED = "grouped"
    NARROWING = "in_out"
    SMALL = "small"
    OTHER = "default"


_TIME_CHANNELS_LAST: Mapping[_Kind, float] = {
    _Kind.GROUPED: 1.358,
    _Kind.NARROWING: 0.725,
    _Kind.SMALL: 0.783,
    _Kind.OTHER: 0.823,
}


def lays_images_last(graph: Graph, *, training: bool) -> bool:
    """Whether compiled convolutions of `graph` run channels-last, whatever layout they are given."""
    convolutions = [node for node in graph.nodes if node.op_type == "Conv" and not node.domain]
    if not convolutions or len(graph.nodes) >= _MOST_NODES_PER_CONVOLUTION * len(convolutions):
        return False
    kinds = [_kind(graph, node) for node in convolutions]
    if training:
        are_small = all(_is_small(graph, node) for node in convolutions)
        return not {_Kind.GROUPED, _Kind.NARROWING} & set(kinds) and not are_small
    macs = [_macs(graph, node) for node in convolutions]
    weighted = sum(_TIME_CHANNELS_LAST[kind] * count for kind, count in zip(kinds, macs, strict=True))
    return weighted <= sum(macs)


def _kind(graph: Graph, node: Node) -> _Kind:
    outputs, inputs, *kernel = graph.values[node.inputs[1]].shape
    if int(str(node.attributes.get("group", 1))) > 1 and inputs > 1:
        return _Kind.GROUPED
    if outputs * 2 <= inputs and kernel and kernel[0] > 1:
        return _Kind.NARROWING
    return _Kind.SMALL if _is_small(graph, node) else _Kind.OTHER


def _is_small(graph: Graph, node: Node) -> bool:
    outputs, inputs = graph.values[node.inputs[1]].shape[:2]
    return max(outputs, inputs) <= _SMALL_CHANNELS


def _macs(graph: Graph, node: Node) -> int:
    return prod(graph.values[node.outputs[0]].shape) * prod(graph.values[node.inputs[1]].shape[1:])
