"""Bodies of If, Loop, Scan and SequenceMap, and ONNX's own functions, as nodes of the graph around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, inliner

from predictor.features.onnx_inference import find_schema
from predictor.features.tensor_type import TensorType

# Below this opset-import IR version every checker of ONNX reads functions.
_IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Opened:
    """A body whose inner names were made unique.

    Attributes:
        inputs: names of its formal inputs, or of what stands for them.
        outputs: names of its results.
        declared: types that the file states inside.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    initializers: tuple[TensorProto, ...] = ()
    declared: Mapping[str, TypeProto] = field(default_factory=dict)


def open_body(body: GraphProto, prefix: str, given: Mapping[str, str] | None = None) -> Opened:
    """A copy of `body` with every name that it defines prefixed; `given` replaces formal inputs by values."""
    copy = GraphProto()
    copy.CopyFrom(body)
    _rename(copy, prefix, {}, given or {})
    return Opened(
        inputs=tuple(info.name for info in copy.input),
        outputs=tuple(info.name for info in copy.output),
        nodes=tuple(copy.node),
        initializers=tuple(copy.initializer),
        declared={info.name: info.type for info in (*copy.value_info, *copy.output)},
    )


def aliases(results: Sequence[str], outputs: Sequence[str], prefix: str) -> list[NodeProto]:
    """Identity nodes that hand `results` out under the names of `outputs`."""
    return [
        helper.make_node("Identity", [inner], [outer], name=prefix + outer)
        for inner, outer in zip(results, outputs, strict=False)
        if outer
    ]


def open_function(
    node: NodeProto, version: int, types: Mapping[str, TensorType], opsets: Mapping[str, int], prefix: str
) -> Opened | None:
    """The body that ONNX defines for the node's op, for these operands; None where it defines none."""
    schema = find_schema(node.op_type, version, node.domain)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    given = list(dict.fromkeys(name for name in node.input if name))
    graph = helper.make_graph(
        [node],
        "call",
        [helper.make_value_info(name, types[name].to_proto()) for name in given if name in types],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    model: ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    try:
        opened = inliner.inline_selected_functions(
            model, [(node.domain, node.op_type)], exclude=False, inline_schema_functions=True
        )
    except (RuntimeError, ValueError):
        return None
    nodes = opened.graph.node
    if len(nodes) == 1 and nodes[0].op_type == node.op_type:
        return None
    outer = {*given, *node.output}
    _rename_nodes(nodes, prefix, {name: prefix + name for name in _written(nodes) if name not in outer})
    return Opened(tuple(given), tuple(node.output), tuple(nodes))


def _written(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


def _rename(graph: GraphProto, prefix: str, outer: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Prefixes every name that the graph defines, in it and in the graphs nested in it."""
    defined = [value.name for value in graph.input] + [tensor.name for tensor in graph.initializer]
    defined.extend(_written(graph.node))
    names = {**outer, **{name: prefix + name for name in defined}, **given}
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    _rename_nodes(graph.node, prefix, names)


def _rename_nodes(nodes: Iterable[NodeProto], prefix: str, names: Mapping[str, str]) -> None:
    for node in nodes:
        node.name = prefix + node.name
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for body in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                _rename(body, prefix, names, {})
