"""Strides of gradients: where the backward pass of a strided-tensor framework copies one into order.

The counterpart of `lowering/layout.py` for the way back. A gradient leaves a kernel in row-major order
or, pointwise, in the order of the gradient it came from; views hand it on with other strides. It is copied
where a Reshape cannot be undone by strides, where a kernel cannot read it as it is, and where it becomes the
gradient of a parameter (which lies like the parameter).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from predictor.features.graph import Graph, Node, Shape
from predictor.features.lowering.layout import RECURRENT, RECURRENT_ORDER, accepts
from predictor.features.lowering.strides import (
    Strides,
    axes_by_stride,
    in_order,
    is_dense_in_order,
    is_row_major,
    reshaped,
    row_major,
)
from predictor.features.ops.einsum import operand_orders
from predictor.features.ops.elementwise import NARY, UNARY
from predictor.features.programs.op_view import element_bits, vector_compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase

_Rule: TypeAlias = Callable[[Graph, Node, int, Strides], Strides | None]
"""(graph, node, input position, strides of the gradient that arrives) -> of the one that leaves.

None stands for row-major order."""


class GradientStrides:
    """Follows the strides of the gradients of one backward pass, node by node from the last to the first."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        # Row-major gradients are absent.
        self._strided: dict[str, Strides] = {}

    def before(self, node: Node) -> Iterable[OpWork]:
        """Copies of the gradients that arrive at `node` in strides that its backward step cannot use."""
        for name in node.outputs:
            strides = self._strided.get(name)
            if strides is not None and not self._is_usable(node, name, strides):
                del self._strided[name]
                yield self._copy(name)

    def after(self, node: Node, name: str, *, is_first: bool) -> Iterable[OpWork]:
        """Notes the gradient of input `name`; a copy when it is a parameter's and lies otherwise.

        `is_first`: no other reader of the value has sent one yet; later ones are added to it, in its order.
        """
        if not is_first:
            return
        shape = self._shape(name)
        found = self._leaving(node, node.inputs.index(name))
        if found is None or is_row_major(shape, found):
            return
        if name in self._graph.parameters:
            yield self._copy(name)
        else:
            self._strided[name] = found

    def _shape(self, name: str) -> Shape:
        return self._graph.values[name].shape

    def _is_usable(self, node: Node, name: str, strides: Strides) -> bool:
        if node.op_type in _RESHAPES:
            return reshaped(self._shape(name), strides, self._shape(node.inputs[0])) is not None
        if node.op_type == "Gather":
            return False
        if node.op_type in RECURRENT:
            return is_dense_in_order(self._shape(name), strides, RECURRENT_ORDER)
        return accepts(node.op_type, self._shape(name), strides, 0)

    def _leaving(self, node: Node, position: int) -> Strides | None:
        rule = _LEAVING.get(node.op_type)
        arriving = next((self._strided[name] for name in node.outputs if name in self._strided), None)
        if rule is None or (arriving is None and node.op_type not in _REORDERS):
            return None
        return rule(self._graph, node, position, arriving or row_major(self._shape(node.outputs[0])))

    def _copy(self, name: str) -> OpWork:
        value = self._graph.values[name]
        return OpWork(
            family=Family.COPY,
            kind="transpose",
            phase=Phase.BACKWARD,
            compute=vector_compute((value,)),
            shape=Elements(value.elements),
            element_bits=element_bits((value,)),
            matrix_flops=0,
            vector_flops=0,
            read_bytes=value.size_bytes,
            write_bytes=value.size_bytes,
        )


def _transpose(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    # For a transposed weight the product itself writes the gradient in the weight's order.
    if not node.attributes.get("perfcast_view") or node.inputs[0] in graph.parameters:
        return None
    found = [0] * len(strides)
    for place, axis in enumerate(node.permutation(len(strides))):
        found[axis] = strides[place]
    return tuple(found)


def _reshape(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    return reshaped(graph.values[node.outputs[0]].shape, strides, graph.values[node.inputs[0]].shape)


def _same(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    """The gradient itself, or a part of it."""
    same_rank = len(graph.values[node.inputs[position]].shape) == len(strides)
    return strides if same_rank else None


def _sum(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    """The gradient itself; for an operand that was broadcast it is summed, into a new tensor."""
    is_whole = graph.values[node.inputs[position]].shape == graph.values[node.outputs[0]].shape
    return strides if is_whole else None


def _pointwise(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    shape = graph.values[node.inputs[position]].shape
    if shape != graph.values[node.outputs[0]].shape:
        return None
    return in_order(shape, axes_by_stride(shape, strides))


def _attention(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    # As forward: [B, L, H, D] in memory, so that splitting the heads is undone for free.
    shape = graph.values[node.inputs[position]].shape
    return in_order(shape, (0, 2, 1, 3)) if len(shape) == 4 and position < 3 else None


def _einsum(graph: Graph, node: Node, position: int, strides: Strides) -> Strides | None:
    shapes = [graph.values[name].shape for name in node.inputs]
    orders = operand_orders(str(node.attributes.get("equation", "")), shapes)
    return in_order(shapes[position], orders[position]) if orders else None


_RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
# Gradients of these may be strided whatever arrives.
_REORDERS = frozenset({"Transpose", "Concat", "Attention", "Einsum"})
_LEAVING: dict[str, _Rule] = {
    "Transpose": _transpose,
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(("Contiguous", "Identity", "Concat"), _same),
    **dict.fromkeys((*UNARY, *NARY, "Gelu", "Silu", "Mish", "Dropout", "Cast", "FusedPointwise"), _pointwise),
    **dict.fromkeys(("Add", "Sub", "Sum"), _sum),
    "Attention": _attention,
    "Einsum": _einsum,
}
