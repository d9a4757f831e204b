"""An If whose condition is a known constant is its branch: exporters leave such nodes around squeezes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import GraphProto, NodeProto, TensorProto, helper

from predictor.features.node_types import Array


def taken_branch(
    node: NodeProto, attributes: Mapping[str, Any], contents: Mapping[str, Array]
) -> tuple[list[TensorProto], list[NodeProto]] | None:
    """Initializers and nodes that stand for the If, inner names made unique; None when it is not decided."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx") or not node.input:
        return None
    condition = contents.get(node.input[0])
    if condition is None or condition.size != 1:
        return None
    branch = attributes.get("then_branch" if bool(condition.ravel()[0]) else "else_branch")
    if not isinstance(branch, GraphProto) or len(branch.output) < len(node.output):
        return None
    body = GraphProto()
    body.CopyFrom(branch)
    prefix = f"{node.name or node.output[0]}/"
    _rename(body, prefix, {})
    nodes = list(body.node)
    for inner, outer in zip(body.output, node.output, strict=False):
        if outer:
            nodes.append(helper.make_node("Identity", [inner.name], [outer], name=prefix + outer))
    return list(body.initializer), nodes


def _rename(graph: GraphProto, prefix: str, outer: Mapping[str, str]) -> None:
    """Prefixes every name that the graph defines, in it and in the graphs nested in it."""
    defined = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    defined.extend(name for node in graph.node for name in node.output if name)
    names = {**outer, **{name: prefix + name for name in defined}}
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for node in graph.node:
        node.name = prefix + node.name
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for body in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _rename(body, prefix, names)
