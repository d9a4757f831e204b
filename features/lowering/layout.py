"""Makes hidden copies visible: follows strides through the graph as a strided-tensor framework does.

Transpose, Split, Slice, Expand, Squeeze and most Reshapes only change strides. A copy happens where a
kernel, or a Reshape, cannot work on the strides it gets: there a node perfcast::Contiguous is put in
front. Which kernel accepts what follows torch's eager mode: softmax, layer, RMS and group normalisation
and recurrent layers take row-major tensors, convolutions and pooling also channels-last, products
whatever folds into a batch of matrices with one unit stride (an operand that is broadcast over one of
several batch dimensions does not: torch writes it out), attention any layout with adjacent elements of a
head, pointwise ops anything (their result keeps the order of axes of the first operand that is not
broadcast).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TypeAlias

from predictor.features.draft import Draft
from predictor.features.graph import Graph, Node, Shape
from predictor.features.lowering.strides import (
    Strides,
    axes_by_stride,
    channels_last,
    in_order,
    is_dense_in_order,
    is_row_major,
    reshaped,
    row_major,
)
from predictor.features.ops.conv import IMAGES_IN_PLACE

_IMAGE_RANK = 4
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_FUSED = ("com.microsoft", "FusedConv")

_Strided: TypeAlias = dict[str, Strides]
"""Strides by value; row-major values are absent."""


def make_copies_explicit(draft: Draft, *, images_last: bool = False) -> None:
    """Marks transpositions as views and inserts perfcast::Contiguous(x) wherever the framework copies.

    `images_last`: the job keeps images and weights channels-last, so that a convolution copies its input
    into that order where it lies otherwise, and writes its output in it.
    """
    strided: _Strided = {}
    if images_last:
        for name in draft.graph.inputs:
            shape = draft.shape(name)
            if len(shape) == _IMAGE_RANK:
                _set(draft, strided, name, in_order(shape, channels_last(_IMAGE_RANK)))
    for index, slot in enumerate(draft.slots):
        nodes: list[Node] = []
        for node in slot:
            if images_last and _is_image_convolution(draft, node):
                nodes.extend(_convolution_step(draft, strided, node))
            elif (
                node.op_type in _REORDERS
                or any(name in strided for name in node.inputs)
                or (node.op_type == "MatMul" and _repeated(draft, node))
            ):
                nodes.extend(_step(draft, strided, node))
            else:
                nodes.append(node)
        if len(nodes) != len(slot) or any(a is not b for a, b in zip(nodes, slot, strict=True)):
            draft.put(index, tuple(nodes))


def mark_images_in_place(graph: Graph) -> Graph:
    """Marks all convolutions: who runs them decides how images lie, and their library converts none."""

    def marked(node: Node) -> Node:
        if not _is_convolution(node) and (node.domain, node.op_type) != _FUSED:
            return node
        return replace(node, attributes={**node.attributes, IMAGES_IN_PLACE: 1})

    return replace(graph, nodes=tuple(map(marked, graph.nodes)))


def _is_convolution(node: Node) -> bool:
    return node.op_type in _CONVOLUTIONS and not node.domain


def _is_image_convolution(draft: Draft, node: Node) -> bool:
    return _is_convolution(node) and len(draft.shape(node.inputs[0])) == _IMAGE_RANK


def _convolution_step(draft: Draft, strided: _Strided, node: Node) -> list[Node]:
    """A convolution whose weights lie channels-last."""
    order = channels_last(_IMAGE_RANK)
    data = node.inputs[0]
    copies: list[Node] = []
    if not is_dense_in_order(draft.shape(data), _strides(draft, strided, data), order):
        copies.append(_copy_of(draft, strided, node, data, order))
        node = replace(node, inputs=(*copies[0].outputs, *node.inputs[1:]))
    _set(draft, strided, node.outputs[0], in_order(draft.shape(node.outputs[0]), order))
    return [*copies, _marked(node)]


def _marked(node: Node) -> Node:
    return replace(node, attributes={**node.attributes, "perfcast_channels_last": 1})


def _step(draft: Draft, strided: _Strided, node: Node) -> list[Node]:
    view = _VIEWS.get(node.op_type) if not node.domain else None
    found = view(draft, node, _strides(draft, strided, node.inputs[0])) if view else None
    # A declared rank may contradict the operand's where the sizes of a view depend on data.
    if found is not None and _same_ranks(draft, node, found):
        for name, strides in zip(node.outputs, found, strict=False):
            _set(draft, strided, name, strides)
        if node.op_type == "Transpose":
            node = replace(node, attributes={**node.attributes, "perfcast_view": 1})
        return [node]
    copies: list[Node] = []
    if view is not None:
        node = _with_copy(draft, strided, node, 0, copies)
    if node.op_type == "MatMul" and not node.domain:
        node = _with_repeats(draft, strided, node, copies)
    accepts = _ACCEPTS.get(node.op_type)
    for position, name in enumerate(node.inputs):
        if accepts and name in strided and not accepts(draft.shape(name), strided[name], position):
            node = _with_copy(draft, strided, node, position, copies)
    if _reads_across(draft, strided, node):
        node = replace(node, attributes={**node.attributes, "perfcast_mixed_order": 1})
    for name, order in zip(node.outputs, _output_orders(draft, strided, node), strict=False):
        if name:
            _set(draft, strided, name, in_order(draft.shape(name), order))
    if node.op_type in _CONVOLUTIONS and node.outputs[0] in strided:
        node = _marked(node)
    return [*copies, node]


def _reads_across(draft: Draft, strided: _Strided, node: Node) -> bool:
    """Whether a pointwise kernel's whole operands differ in the axis that is adjacent in memory."""
    if node.domain or node.op_type in _ACCEPTS or node.op_type in _VIEWS or node.op_type == "Concat":
        return False
    target = draft.shape(node.outputs[0])
    whole = [name for name in node.inputs if name and draft.shape(name) == target]
    return len({_innermost(target, _strides(draft, strided, name)) for name in whole}) > 1


def _innermost(shape: Shape, strides: Strides) -> int:
    """The axis along which elements are adjacent; -1 where there is none."""
    wide = [axis for axis in axes_by_stride(shape, strides) if shape[axis] > 1]
    return wide[-1] if wide else -1


def _same_ranks(draft: Draft, node: Node, found: tuple[Strides, ...]) -> bool:
    pairs = zip(node.outputs, found, strict=False)
    return all(len(draft.shape(name)) == len(strides) for name, strides in pairs if name)


def _with_copy(draft: Draft, strided: _Strided, node: Node, position: int, copies: list[Node]) -> Node:
    name = node.inputs[position]
    shape = draft.shape(name)
    order = tuple(range(len(shape)))
    images = channels_last(len(shape))
    if node.op_type in _KEEPS_CHANNELS_LAST and axes_by_stride(shape, strided[name]) == images:
        order = images
    copies.append(_copy_of(draft, strided, node, name, order))
    return _with_input(node, position, copies[-1].outputs[0])


def _with_input(node: Node, position: int, name: str) -> Node:
    return replace(node, inputs=(*node.inputs[:position], name, *node.inputs[position + 1 :]))


def _repeated(draft: Draft, node: Node) -> list[tuple[int, Shape]]:
    """Operands of a batch of products that are broadcast over it: (position, shape when written out)."""
    left, right = (draft.shape(name) for name in node.inputs)
    if len(left) < 2 or len(right) < 3:
        return []
    batch = draft.shape(node.outputs[0])[:-2]
    wide = enumerate((*batch, *shape[-2:]) for shape in (left, right))
    return [(position, shape) for position, shape in wide if shape != (left, right)[position]]


def _with_repeats(draft: Draft, strided: _Strided, node: Node, copies: list[Node]) -> Node:
    """The product with an operand written out where its repetition cannot be one stride of the batch."""
    for position, shape in _repeated(draft, node):
        name = node.inputs[position]
        strides = _expanded(draft.shape(name), _strides(draft, strided, name), shape)
        if _matrices(shape, strides, position):
            continue
        wide = draft.new_value(f"{name}.repeated", shape, draft.values[name].dtype, like=name)
        _set(draft, strided, wide, strides)
        copies.append(Node(f"{node.name}.repeat", "Expand", (name,), (wide,)))
        copies.append(_copy_of(draft, strided, node, wide, tuple(range(len(shape)))))
        node = _with_input(node, position, copies[-1].outputs[0])
    return node


def _copy_of(draft: Draft, strided: _Strided, node: Node, name: str, order: tuple[int, ...]) -> Node:
    shape = draft.shape(name)
    copy = draft.new_value(f"{name}.contiguous", shape, draft.values[name].dtype, like=name)
    attributes = {} if order == tuple(range(len(shape))) else {"order": order}
    _set(draft, strided, copy, in_order(shape, order))
    return Node(f"{node.name}.copy", "Contiguous", (name,), (copy,), "perfcast", attributes)


def _strides(draft: Draft, strided: _Strided, name: str) -> Strides:
    return strided[name] if name in strided else row_major(draft.shape(name))


def _set(draft: Draft, strided: _Strided, name: str, strides: Strides) -> None:
    if name and not is_row_major(draft.shape(name), strides):
        strided[name] = strides


# Views: strides of the outputs, or None where a copy of the input must come first.


def _transpose(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...]:
    return (tuple(strides[axis] for axis in node.permutation(len(strides))),)


def _reshape(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...] | None:
    found = reshaped(draft.shape(node.inputs[0]), strides, draft.shape(node.outputs[0]))
    return None if found is None else (found,)


def _split(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...]:
    return (strides,) * len(node.outputs)


def _slice(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...]:
    steps = draft.graph.constants.get(node.inputs[4], ()) if len(node.inputs) > 4 else ()
    axes = draft.graph.constants.get(node.inputs[3], tuple(range(len(steps)))) if steps else ()
    found = list(strides)
    for axis, step in zip(axes, steps, strict=False):
        found[axis] *= max(1, step)
    return (tuple(found),)


def _expand(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...]:
    return (_expanded(draft.shape(node.inputs[0]), strides, draft.shape(node.outputs[0])),)


def _expanded(before: Shape, strides: Strides, after: Shape) -> Strides:
    offset = len(after) - len(before)
    return tuple(
        0 if axis < offset or (before[axis - offset] == 1 and size != 1) else strides[axis - offset]
        for axis, size in enumerate(after)
    )


def _gather(draft: Draft, node: Node, strides: Strides) -> tuple[Strides, ...] | None:
    """A scalar index selects; anything else copies, from whatever strides."""
    if draft.shape(node.inputs[1]) != ():
        return (row_major(draft.shape(node.outputs[0])),)
    axis = int(str(node.attributes.get("axis", 0))) % len(strides)
    return (strides[:axis] + strides[axis + 1 :],)


_VIEWS: dict[str, Callable[[Draft, Node, Strides], tuple[Strides, ...] | None]] = {
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshape),
    "Split": _split,
    "Slice": _slice,
    "Expand": _expand,
    "Gather": _gather,
}

# Kernels: which strides an input may have, by its position.


def _row_major_data(shape: Shape, strides: Strides, position: int) -> bool:
    return position > 0 or is_row_major(shape, strides)


def _image(shape: Shape, strides: Strides, position: int) -> bool:
    return position > 0 or is_row_major(shape, strides) or _is_channels_last(shape, strides)


def _matrices(shape: Shape, strides: Strides, position: int) -> bool:
    if len(shape) < 2:
        return True
    folded = (prod(shape[:-2]), *shape[-2:])
    found = reshaped(shape, strides, folded)
    return found is not None and _has_unit_stride(folded, found)


def _rows(shape: Shape, strides: Strides, position: int) -> bool:
    folded = (prod(shape[:-1]), *shape[-1:])
    found = reshaped(shape, strides, folded)
    return position > 0 or (found is not None and _has_unit_stride(folded, found))


def _heads(shape: Shape, strides: Strides, position: int) -> bool:
    return position > 2 or shape[-1] == 1 or strides[-1] == 1


def _has_unit_stride(shape: Shape, strides: Strides) -> bool:
    return any(size == 1 or stride == 1 for size, stride in zip(shape[-2:], strides[-2:], strict=True))


def _is_channels_last(shape: Shape, strides: Strides) -> bool:
    return len(shape) >= 3 and is_dense_in_order(shape, strides, channels_last(len(shape)))


_KEEPS_CHANNELS_LAST = frozenset(
    {"Conv", "ConvTranspose", "BatchNormalization", "MaxPool", "AveragePool", "Resize", "Upsample"}
)
_ACCEPTS: dict[str, Callable[[Shape, Strides, int], bool]] = {
    **dict.fromkeys(_KEEPS_CHANNELS_LAST, _image),
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
        _row_major_data,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "DepthToSpace", "SpaceToDepth"), _row_major_data),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _row_major_data),
    **dict.fromkeys(("MatMul", "Gemm"), _matrices),
    "Linear": _rows,
    "Attention": _heads,
}


def accepts(op_type: str, shape: Shape, strides: Strides, position: int) -> bool:
    """Whether the kernel of `op_type` reads input `position` at those strides, without a copy first."""
    accept = _ACCEPTS.get(op_type)
    return accept is None or accept(shape, strides, position)


RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
RECURRENT_ORDER = (0, 2, 1, 3)
# Ops whose outputs may be strided although every input is row-major.
_REORDERS = frozenset(
    {"Transpose", "Split", "Slice", "Expand", "Gather", "Attention", "Contiguous", *RECURRENT}
)


def _output_orders(draft: Draft, strided: _Strided, node: Node) -> list[tuple[int, ...]]:
    """Order of axes of each output of a kernel; outputs left out are row-major."""
    if node.op_type == "Attention" and node.domain == "perfcast":
        # Kernels write [B, L, H, D], so that merging the heads again is free.
        return [(0, 2, 1, 3)]
    if node.op_type in RECURRENT and not node.attributes.get("layout"):
        # Libraries write both directions of a step side by side, [T, B, directions, H].
        return [RECURRENT_ORDER]
    if node.op_type == "Contiguous":
        order = node.attributes.get("order")
        return [tuple(map(int, order))] if isinstance(order, tuple) else []
    first = node.inputs[0] if node.inputs else ""
    shape = draft.shape(first)
    if node.op_type in _KEEPS_CHANNELS_LAST:
        if first in strided and _is_channels_last(shape, strided[first]):
            return [channels_last(len(shape))]
        return []
    if node.op_type in _ACCEPTS:
        return []
    if node.op_type == "Concat":
        known = all(n in strided and _is_channels_last(draft.shape(n), strided[n]) for n in node.inputs)
        return [channels_last(len(shape))] if known else []
    if node.domain and node.domain != "perfcast":
        return []
    target = draft.shape(node.outputs[0])
    leading = next((name for name in node.inputs if name and draft.shape(name) == target), None)
    if leading is None or leading not in strided:
        return []
    return [axes_by_stride(target, strided[leading])]
