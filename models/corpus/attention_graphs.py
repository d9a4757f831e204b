"""Attention without a fused kernel, as models ran it before torch 2.0: product, softmax in FP32, product.

A pass over lowered graphs. Exports of today call one kernel that keeps no scores; the jobs of 2021 and 2022
kept them twice, in FP32 for the softmax's gradient and in 16 bits for the product's (autocast's op lists).
torch.matmul copies operands whose heads do not follow one another, and the products keep the copies.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Value


def written_out(graph: Graph) -> Graph:
    """`graph` whose `Attention` nodes over [batch, heads, positions, width] are single operators."""
    values, nodes = dict(graph.values), list[Node]()
    for node in graph.nodes:
        if node.op_type == "Attention" and _is_plain(graph, node):
            nodes += _parts(values, node)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), values=values)


_RANK = 4


def _is_plain(graph: Graph, node: Node) -> bool:
    """Operands have four dimensions, and as many heads for keys as for queries."""
    shapes = [graph.values[name].shape for name in node.inputs[:3]]
    return all(len(shape) == _RANK for shape in shapes) and shapes[0][1] == shapes[1][1] == shapes[2][1]


def _parts(values: dict[str, Value], node: Node) -> list[Node]:
    query, key, value = node.inputs[:3]
    found: list[Node] = []

    def run(
        kind: str,
        inputs: tuple[str, ...],
        part: str,
        shape: tuple[int, ...],
        dtype: DType,
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        name = f"{node.name}.{part}"
        values[name] = Value(name, shape, dtype)
        found.append(Node(name, kind, inputs, (name,), domain, attributes))
        return name

    narrow = values[query].dtype
    batch, heads, rows, width = values[query].shape
    columns = values[key].shape[2]
    turned = run(
        "Transpose",
        (key,),
        "turned",
        (batch, heads, width, columns),
        narrow,
        perm=(0, 1, 3, 2),
        perfcast_view=1,
    )
    copies = [
        run("Contiguous", (name,), part, values[name].shape, narrow, "perfcast")
        for name, part in ((query, "query"), (turned, "key"), (value, "value"))
    ]
    shape = (batch, heads, rows, columns)
    scores = run("MatMul", (copies[0], copies[1]), "scores", shape, narrow)
    if len(node.inputs) > _RANK - 1 and node.inputs[3]:
        scores = run("Add", (scores, node.inputs[3]), "masked", shape, narrow)
    wide = DType.FLOAT32
    if narrow.bits < wide.bits:
        scores = run("Cast", (scores,), "wide", shape, wide, to=1)
    weights = run("Softmax", (scores,), "weights", shape, values[scores].dtype, axis=-1)
    if narrow.bits < wide.bits:
        weights = run("Cast", (weights,), "narrow", shape, narrow, to=10)
    found.append(Node(node.name, "MatMul", (weights, copies[2]), node.outputs[:1]))
    return found
