"""Slices that together are a split: torch's older exporter spells `chunk` and `split` so.

It gives the exact end of the last part; a slice that somebody wrote without an end carries the largest
integer, so the two are told apart. It matters backwards: the gradients of a split are joined once, each slice
fills a tensor of the whole input's size, and those are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.features.draft import Draft
from predictor.features.graph import Node


@dataclass(frozen=True, slots=True)
class _Part:
    index: int
    node: Node
    begin: int
    end: int


def join_slices(draft: Draft) -> None:
    """Replaces every set of slices that partitions an axis of one value by a Split node."""
    parts: dict[tuple[str, int], list[_Part]] = {}
    for index, slot in enumerate(draft.slots):
        for node in slot:
            if node.op_type == "Slice" and not node.domain:
                found = _part(draft, index, node)
                if found is not None:
                    axis, part = found
                    parts.setdefault((node.inputs[0], axis), []).append(part)
    for (source, axis), slices in parts.items():
        ordered = sorted(slices, key=lambda part: part.begin)
        if len(ordered) > 1 and _is_partition(ordered, draft.shape(source)[axis]):
            first = min(ordered, key=lambda part: part.index)
            outputs = tuple(part.node.outputs[0] for part in ordered)
            for part in ordered:
                if part is not first:
                    draft.remove(part.node)
            split = Node(first.node.name, "Split", (source,), outputs, "", {"axis": axis})
            slot = draft.slots[first.index]
            draft.put(first.index, tuple(split if node is first.node else node for node in slot))


def _part(draft: Draft, index: int, node: Node) -> tuple[int, _Part] | None:
    """Axis and bounds of a slice of one axis in steps of 1, from constants; None for any other."""
    shape = draft.shape(node.inputs[0])
    begins, ends, axes, steps = (_constant(draft, node, place) for place in (1, 2, 3, 4))
    if begins is None or ends is None or len(begins) != 1 or len(ends) != 1:
        return None
    if steps not in (None, (1,)):
        return None
    axis = (axes or (0,))[0] % max(1, len(shape))
    return axis, _Part(index, node, begins[0], ends[0])


def _constant(draft: Draft, node: Node, place: int) -> tuple[int, ...] | None:
    return draft.graph.constants.get(node.inputs[place]) if place < len(node.inputs) else None


def _is_partition(ordered: list[_Part], size: int) -> bool:
    ends = [0, *(part.end for part in ordered)]
    return ends[-1] == size and all(part.begin == end for part, end in zip(ordered, ends, strict=False))
