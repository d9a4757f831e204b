"""Bodies of If, Loop, Scan and SequenceMap, and ONNX's own functions, as nodes of the graph around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, helper, inliner

from predictor.features.reading.onnx_inference import find_schema
from predictor.features.reading.structure import bodies_of
from predictor.features.reading.tensor_type import TensorType

# Below this opset-import IR version every checker of ONNX reads functions.
_IR_VERSION = 10


@dataclass(frozen=True, slots=True)
class Opened:
    """A body whose inner names were made unique.

    Attributes:
        inputs: names of its formal inputs, or of what stands for them.
        outputs: names of its results.
        declared: types that the file states inside.
        captured: values around each of `nodes` that its own bodies read.
        moved: nodes that were renamed for it, those of bodies in it included.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    declared: Mapping[str, TypeProto] = field(default_factory=dict)
    captured: tuple[tuple[str, ...], ...] | None = None
    moved: int = 0


def open_body(body: GraphProto, prefix: str, given: Mapping[str, str] | None = None) -> Opened:
    """A copy of `body` with every name that it defines prefixed; `given` replaces formal inputs by values."""
    copy = GraphProto()
    copy.CopyFrom(body)
    renaming = _Renaming(prefix)
    _, captured = renaming.graph(copy, given or {})
    return Opened(
        inputs=tuple(info.name for info in copy.input),
        outputs=tuple(info.name for info in copy.output),
        nodes=tuple(copy.node),
        declared={info.name: info.type for info in (*copy.value_info, *copy.output)},
        captured=tuple(captured),
        moved=renaming.moved,
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
    renaming = _Renaming(prefix)
    renaming.names = {name: prefix + name for name in _written(nodes) if name not in outer}
    captured = renaming.nodes(nodes)
    return Opened(
        tuple(given), tuple(node.output), tuple(nodes), captured=tuple(captured), moved=renaming.moved
    )


def _written(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output if name]


class _Renaming:
    """Prefixes every name that a graph defines, in it and in the graphs nested in it, in one walk.

    Bodies in bodies are renamed at every level that opens, and a hostile file has many: what the walk learns
    of them (the values that they capture) is handed out with it.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.names: dict[str, str] = {}
        """What the names in scope are called now."""
        self.moved = 0

    def graph(
        self, graph: GraphProto, given: Mapping[str, str]
    ) -> tuple[dict[str, None], list[tuple[str, ...]]]:
        """Renames one graph; the outer values that it reads, and those that each node's bodies capture."""
        prefix, names = self.prefix, self.names
        defined = [*(value.name for value in graph.input), *_written(graph.node)]
        own = {name: prefix + name for name in defined}
        own.update(given)
        hidden = {name: names[name] for name in own if name in names}
        names.update(own)
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = names.get(value.name, value.name)
        captured = self.nodes(graph.node)
        local = set(own.values()).difference(given.values())
        read: dict[str, None] = {}
        for node, inner in zip(graph.node, captured, strict=True):
            read.update(dict.fromkeys(name for name in (*node.input, *inner) if name and name not in local))
        read.update(dict.fromkeys(value.name for value in graph.output if value.name not in local))
        for name in own:
            del names[name]
        names.update(hidden)
        return read, captured

    def nodes(self, nodes: Sequence[NodeProto]) -> list[tuple[str, ...]]:
        """Renames nodes; the values around each that its bodies read, under their new names."""
        names, prefix = self.names, self.prefix
        captured: list[tuple[str, ...]] = []
        self.moved += len(nodes)
        for node in nodes:
            node.name = prefix + node.name
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
            read: dict[str, None] = {}
            for body in bodies_of(node):
                read.update(self.graph(body, {})[0])
            captured.append(tuple(read))
        return captured
