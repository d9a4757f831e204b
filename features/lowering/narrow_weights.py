"""Weights of an inference job in few bits: a Graph -> Graph pass over recognised products.

Linear layers become com.microsoft::MatMulNBits, which widens integers inside the product, or GemmFloat8
behind a QuantizeLinear of the activations; experts keep their product, on narrow operands. Heads, routers,
embeddings, convolutions and weights with several readers stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Value
from predictor.features.lowering.adapters import product_roles
from predictor.features.weight_format import FORMATS, WeightFormat
from predictor.types import Notice, Weights

_MS = "com.microsoft"
_EXPERT_DIMS = 3
# Between a router's product and the choice of experts.
_SCORING = frozenset({"Softmax", "Sigmoid", "Add", "Cast", "Reshape"})


def store_weights(graph: Graph, weights: Weights) -> Graph:
    """`graph`, recognised and not yet typed, with the weights of its products in `weights`."""
    if weights is Weights.FULL:
        return graph
    pass_ = _Pass(graph, FORMATS[weights])
    return pass_.run(weights)


class _Pass:
    def __init__(self, graph: Graph, stored: WeightFormat) -> None:
        self._graph = graph
        self._stored = stored
        self._values = dict(graph.values)
        self._nodes: list[Node] = []
        self._narrow: set[str] = set()
        self._made: set[str] = set()
        self._quantised: dict[str, str] = {}

    def run(self, weights: Weights) -> Graph:
        graph, roles = self._graph, product_roles(self._graph)
        for index, node in enumerate(graph.nodes):
            if self._is_layer(index, node, roles):
                self._linear(node)
            elif self._holds_experts(node):
                self._experts(node)
            else:
                self._nodes.append(node)
        notes = graph.notes
        if not self._narrow:
            said = f"no product of the graph has a weight of its own that could be stored in {weights.value}"
            notes = (*notes, Notice("WEIGHTS", said))
        return replace(
            graph,
            nodes=tuple(self._nodes),
            values=self._values,
            parameters=graph.parameters - self._narrow,
            buffers=graph.buffers | self._narrow | self._made,
            opsets={**graph.opsets, _MS: 1},
            notes=notes,
        )

    def _is_layer(self, index: int, node: Node, roles: Mapping[int, str]) -> bool:
        is_inner = roles.get(index, "head") != "head"
        return is_inner and self._is_own(node.inputs[1]) and not self._is_router(node)

    def _is_router(self, node: Node) -> bool:
        """Whether the results are scores by which experts are chosen."""
        todo = list(node.outputs)
        for name in todo:
            for index in self._graph.consumers.get(name, ()):
                reader = self._graph.nodes[index]
                if reader.op_type == "TopK":
                    return True
                if reader.op_type in _SCORING:
                    todo += (out for out in reader.outputs if out not in todo)
        return False

    def _is_own(self, weight: str) -> bool:
        return len(self._graph.consumers.get(weight, ())) == 1

    def _holds_experts(self, node: Node) -> bool:
        if node.op_type not in ("GroupedMatMul", "MatMul") or node.inputs[1] not in self._graph.parameters:
            return False
        return len(self._values[node.inputs[1]].shape) == _EXPERT_DIMS and self._is_own(node.inputs[1])

    def _linear(self, node: Node) -> None:
        self._narrow.add(node.inputs[1])
        make = self._fp8_product if self._stored.is_float else self._product_in_blocks
        self._nodes.append(make(node, node.inputs[1], (*node.inputs[2:3], "")[0]))

    def _fp8_product(self, node: Node, weight: str, bias: str) -> Node:
        self._values[weight] = replace(self._values[weight], dtype=DType.FLOAT8)
        inputs = (self._in_fp8(node.inputs[0]), weight, bias, "", self._buffer(f"{weight}.scale", ()))
        attributes = {"transB": int(bool(node.attributes.get("transposed_weight")))}
        return Node(node.name, "GemmFloat8", inputs, node.outputs, _MS, attributes)

    def _product_in_blocks(self, node: Node, weight: str, bias: str) -> Node:
        depth = self._values[node.inputs[0]].shape[-1]
        columns = self._values[node.outputs[0]].shape[-1]
        stored, shape = self._stored, self._stored.packed(depth, columns)
        self._values[weight] = Value(weight, shape, DType.INT8)
        scales = self._buffer(f"{weight}.scales", (shape[0] * shape[1],))
        zero_bytes = stored.zero_bytes(depth, columns)
        zeros = self._buffer(f"{weight}.zeros", (zero_bytes,), DType.INT8) if zero_bytes else ""
        sizes = {"K": depth, "N": columns, "bits": stored.bits, "block_size": stored.block_of(depth)}
        inputs = (node.inputs[0], weight, scales, zeros, "", bias)
        return Node(node.name, "MatMulNBits", inputs, node.outputs, _MS, sizes)

    def _experts(self, node: Node) -> None:
        data, weight, *rest = node.inputs
        self._narrow.add(weight)
        groups, depth, columns = self._values[weight].shape
        self._values[weight] = replace(self._values[weight], dtype=self._stored.dtype)
        data = self._in_fp8(data) if self._stored.is_float else data
        blocks = [
            self._buffer(f"{weight}.{what}", shape, dtype or DType.FLOAT32)
            for what, shape, dtype in self._stored.grouped(groups, depth, columns)
        ]
        # The ends of groups come before the blocks' numbers; a product of buffers has none.
        self._nodes.append(replace(node, inputs=(data, weight, *rest, *blocks)))

    def _in_fp8(self, name: str) -> str:
        """The activations' conversion, once for all products that read them."""
        if name not in self._quantised:
            narrow = self._quantised[name] = f"{name}.fp8"
            self._values[narrow] = replace(self._values[name], name=narrow, dtype=DType.FLOAT8)
            inputs = (name, self._buffer(f"{name}.fp8_scale", ()))
            self._nodes.append(Node(narrow, "QuantizeLinear", inputs, (narrow,)))
        return self._quantised[name]

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: DType = DType.FLOAT32) -> str:
        self._values[name] = Value(name, shape, dtype)
        self._made.add(name)
        return name
