"""Blocks spelled operator by operator, as files hold them, read back through the reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.graph import Graph, Node
from predictor.features.reading.reader import read_graph

VIEWS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "Slice", "Flatten", "Expand"})


class Spelling(GraphBuilder):
    """A GraphBuilder whose operators are called by name: `s("Mul", x, 0.5)`; numbers become constants."""

    def __call__(
        self, op_type: str, *operands: Tensor | float | Sequence[int], **attributes: object
    ) -> Tensor:
        inputs = [item if isinstance(item, Tensor) else self.constant(item) for item in operands]
        result: Tensor = self.op(op_type, inputs, **attributes)
        return result


def spelled(build: Callable[[Spelling, Tensor], Tensor], shape: Sequence[int], *, opset: int = 18) -> Graph:
    """The graph of one block on one input."""
    s = Spelling(opset=opset)
    return read_graph(s.build([build(s, s.input("x", shape))]))


def kinds(graph: Graph, *, views: bool = False) -> list[str]:
    """Op types in order; views are left out unless asked for."""
    return [node.op_type for node in graph.nodes if views or node.op_type not in VIEWS]


def only(graph: Graph, op_type: str) -> Node:
    """The single node of that type."""
    (node,) = (node for node in graph.nodes if node.op_type == op_type)
    return node
