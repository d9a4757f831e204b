"""Which reorderings copy where tensors have no strides: inference engines keep every tensor dense.

A Transpose, Slice, Split or Expand is a copy then, unless the kernel beside it reorders as it reads or
writes: fused attention takes heads wherever they are, products take either operand transposed.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.draft import DATA, Draft
from predictor.features.graph import Node

COPIES = "perfcast_copies"
"""Attribute of a Slice, Split or Expand that is a kernel."""
VIEW = "perfcast_view"
_CUTS = frozenset({"Slice", "Split", "Expand"})
_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_PASSED = _RESHAPES | {"Transpose", "Split", "Slice", "Expand"}
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_DEEPEST = 8


def make_copies_of_dense_tensors(draft: Draft) -> None:
    """Marks transpositions that run nothing as views, and cuts that run as copies."""
    readers: dict[str, list[Node]] = {}
    for slot in draft.slots:
        for node in slot:
            for name in dict.fromkeys(node.inputs):
                if name:
                    readers.setdefault(name, []).append(node)
    for index, slot in enumerate(draft.slots):
        marked = tuple(_marked(draft, readers, node) for node in slot)
        if marked != slot:
            draft.put(index, marked)


def _marked(draft: Draft, readers: dict[str, list[Node]], node: Node) -> Node:
    if node.domain or not node.inputs or draft.depends_on(node.outputs[0]) != DATA:
        return node
    if node.op_type == "Transpose":
        free = (
            _from_attention(draft, node.inputs[0])
            or _to_attention(draft, readers, node.outputs[0], 0)
            or _is_swap_for_products(draft, readers, node)
        )
        return _with(node, VIEW) if free else node
    # A part that is all there is has nothing to copy.
    cuts = node.op_type in _CUTS and draft.shape(node.outputs[0]) != draft.shape(node.inputs[0])
    return _with(node, COPIES) if cuts and not _to_attention(draft, readers, node.outputs[0], 0) else node


def _with(node: Node, mark: str) -> Node:
    return replace(node, attributes={**node.attributes, mark: 1})


def _from_attention(draft: Draft, name: str) -> bool:
    made_by = draft.node(name)
    return made_by is not None and made_by.op_type == "Attention"


def _to_attention(draft: Draft, readers: dict[str, list[Node]], name: str, depth: int) -> bool:
    """True when all that is done with a value ends in fused attention, reorderings aside."""
    found = readers.get(name, ())
    return bool(found) and all(
        reader.op_type == "Attention"
        or (
            depth < _DEEPEST
            and reader.op_type in _PASSED
            and not reader.domain
            and all(_to_attention(draft, readers, output, depth + 1) for output in reader.outputs if output)
        )
        for reader in found
    )


def _is_swap_for_products(draft: Draft, readers: dict[str, list[Node]], node: Node) -> bool:
    """The last two axes change places, and only products read it."""
    rank = len(draft.shape(node.inputs[0]))
    order = node.permutation(rank)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    found = readers.get(node.outputs[0], ())
    return (
        rank >= 2
        and order == swapped
        and bool(found)
        and all(reader.op_type in _PRODUCTS and not reader.domain for reader in found)
    )
