"""The typed ONNX model as our Graph: no protobuf, no arrays beyond small integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto

from predictor.features.attributes import read_attributes
from predictor.features.binding import Binding
from predictor.features.elements import FROM_ONNX
from predictor.features.graph import Attribute, Graph, Node, Value
from predictor.features.node_types import Array, TensorType, read_type
from predictor.features.shapes import TypedModel
from predictor.features.structure import captured_names


def to_graph(model: ModelProto, binding: Binding, typed: TypedModel, opsets: Mapping[str, int]) -> Graph:
    """Everything the file holds, exporter noise included; values whose type is unknown have no entry.

    Nodes with bodies (If, Loop, Scan) get the outer values that the bodies read appended to their inputs;
    the body is an attribute of type Graph whose `batch` is 0. Floating-point initializers of more than one
    element are the first guess at parameters.
    """
    nodes = tuple(
        Node(
            name=item.call.node.name or next((name for name in item.call.outputs if name), ""),
            op_type=item.call.node.op_type,
            inputs=item.call.reads,
            outputs=item.call.outputs,
            domain=normal_domain(item.call.node.domain),
            attributes=_attributes(item.attributes, typed.types, opsets),
        )
        for item in typed.calls
    )
    values = _values(typed.types)
    is_parameter = {
        name: (value := values.get(name)) is not None and value.dtype.is_float and value.elements > 1
        for name in typed.initializers
    }
    return Graph(
        nodes=nodes,
        values=values,
        inputs=tuple(binding.inputs),
        outputs=tuple(info.name for info in model.graph.output),
        parameters=frozenset(name for name, trainable in is_parameter.items() if trainable),
        buffers=frozenset(name for name, trainable in is_parameter.items() if not trainable),
        constants=_integers(typed.contents),
        opsets=dict(opsets),
        batch=binding.batch,
        fingerprint="",
        name=model.graph.name,
    )


def normal_domain(domain: str) -> str:
    """`ai.onnx` and the empty string are one."""
    return "" if domain == "ai.onnx" else domain


def _values(types: Mapping[str, TensorType]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, known in types.items():
        shape, dtype = known.shape, FROM_ONNX.get(known.elem_type)
        if shape is not None and dtype is not None:
            values[name] = Value(name, shape, dtype)
    return values


def _integers(contents: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(
            array.ravel().tolist() if array.dtype.kind != "b" else array.ravel().astype(np.int64).tolist()
        )
        for name, array in contents.items()
        if array.dtype.kind in "iub"
    }


def _attributes(
    given: Mapping[str, Any], types: Mapping[str, TensorType], opsets: Mapping[str, int]
) -> dict[str, Attribute]:
    """Attributes without tensors (a Constant's contents are in Graph.constants), bodies converted."""
    return {
        name: _body(value, types, opsets) if isinstance(value, GraphProto) else value
        for name, value in given.items()
        if not isinstance(value, np.ndarray)
    }


def _body(body: GraphProto, outer: Mapping[str, TensorType], opsets: Mapping[str, int]) -> Graph:
    """A nested graph with the types that are declared or come from outside; nothing is inferred in it."""
    types = dict(outer)
    for info in (*body.input, *body.value_info, *body.output):
        types[info.name] = read_type(info.type)
    for tensor in body.initializer:
        types[tensor.name] = TensorType(tensor.data_type, tuple(tensor.dims))
    nodes = tuple(
        Node(
            name=node.name,
            op_type=node.op_type,
            inputs=(*node.input, *captured_names(node)),
            outputs=tuple(node.output),
            domain=normal_domain(node.domain),
            attributes=_attributes(read_attributes(node), types, opsets),
        )
        for node in body.node
    )
    touched = _touched(nodes, (info.name for info in (*body.input, *body.output)))
    values = _values({name: types[name] for name in touched if name in types})
    weights = frozenset(tensor.name for tensor in body.initializer)
    trainable = frozenset(
        name
        for name in weights
        if name in values and values[name].dtype.is_float and values[name].elements > 1
    )
    return Graph(
        nodes=nodes,
        values=values,
        inputs=tuple(info.name for info in body.input),
        outputs=tuple(info.name for info in body.output),
        parameters=trainable,
        buffers=weights - trainable,
        constants={},
        opsets=dict(opsets),
        batch=0,
        fingerprint="",
        name=body.name,
    )


def _touched(nodes: Iterable[Node], more: Iterable[str]) -> dict[str, None]:
    names = dict.fromkeys(more)
    for node in nodes:
        names.update(dict.fromkeys((*node.inputs, *node.outputs)))
    names.pop("", None)
    return names
