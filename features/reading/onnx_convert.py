"""The typed ONNX model as our Graph: no protobuf, no arrays beyond small integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from onnx import GraphProto, ModelProto

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Value
from predictor.features.reading.binding import Binding
from predictor.features.reading.elements import FROM_ONNX
from predictor.features.reading.structure import normal_domain
from predictor.features.reading.tensor_type import Array, Container, TensorType
from predictor.features.reading.type_rules.containers import flat_elements
from predictor.features.reading.typed_model import TypedBody, TypedCall, TypedModel


def to_graph(model: ModelProto, binding: Binding, typed: TypedModel, opsets: Mapping[str, int]) -> Graph:
    """Everything the file holds, exporter noise included; values whose type is unknown have no entry.

    Nodes with a body (Loop, Scan) get the outer values that the body reads appended to their inputs, weights
    last; the body is the attribute `body` of type Graph, whose `batch` is 0 and whose inputs are the formal
    ones and then those outer values that are no weights: the node's first inputs, one by one. Floating-point
    initializers of more than one element are the first guess at parameters.
    """
    values = _values(typed.types)
    leaves = _Leaves.of(typed.initializers, values)
    constants = _integers(typed.contents)
    return Graph(
        nodes=tuple(_node(item, values, constants, leaves, opsets) for item in typed.calls),
        values=values,
        inputs=tuple(binding.inputs),
        outputs=tuple(info.name for info in model.graph.output),
        parameters=leaves.parameters,
        buffers=leaves.buffers,
        constants=constants,
        opsets=dict(opsets),
        batch=binding.batch,
        fingerprint="",
        name=model.graph.name,
        notes=typed.notes,
        resident=typed.resident,
    )


def part_of(
    calls: Sequence[TypedCall],
    types: Mapping[str, TensorType],
    contents: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> Graph:
    """Some nodes as a graph of their own, without leaves."""
    touched = {name for item in calls for name in (*item.call.reads, *item.call.outputs)}
    for item in calls:
        if item.body is not None:
            touched.update(_names_in(item.body))
    values = _values({name: types[name] for name in touched if name in types})
    constants = _integers({name: contents[name] for name in touched if name in contents})
    nothing = _Leaves(frozenset(), frozenset())
    nodes = tuple(_node(item, values, constants, nothing, opsets) for item in calls)
    return Graph(nodes, values, (), (), frozenset(), frozenset(), constants, dict(opsets), 0, "")


@dataclass(frozen=True, slots=True)
class _Leaves:
    parameters: frozenset[str]
    buffers: frozenset[str]

    @classmethod
    def of(cls, initializers: Iterable[str], values: Mapping[str, Value]) -> _Leaves:
        names = frozenset(initializers)
        trained = frozenset(
            name
            for name in names
            if (value := values.get(name)) is not None and value.dtype.is_float and value.elements > 1
        )
        return cls(trained, names - trained)


def _node(
    item: TypedCall,
    values: Mapping[str, Value],
    constants: Mapping[str, tuple[int, ...]],
    leaves: _Leaves,
    opsets: Mapping[str, int],
) -> Node:
    call = item.call
    attributes: dict[str, Attribute] = {
        # A body that nothing here opens still tells two models apart.
        name: _digest(value) if isinstance(value, GraphProto) else value
        for name, value in item.attributes.items()
        if not isinstance(value, np.ndarray)
    }
    inputs = call.reads
    if item.body is not None:
        body = attributes["body"] = _body(item.body, call.node.name, values, constants, leaves, opsets)
        weights = (name for name in body.values if name in body.parameters or name in body.buffers)
        formal = len(item.body.inputs)
        omitted = ("",) * (formal - len(call.inputs))
        inputs = (*call.inputs, *omitted, *body.inputs[formal:], *weights)
    return Node(
        name=call.node.name or next((name for name in call.outputs if name), ""),
        op_type=call.node.op_type,
        inputs=inputs,
        outputs=call.outputs,
        domain=normal_domain(call.node.domain),
        attributes=attributes,
    )


def _digest(body: GraphProto) -> str:
    return sha256(body.SerializeToString(deterministic=True)).hexdigest()


def _names_in(body: TypedBody) -> set[str]:
    names = {*body.inputs, *body.outputs, *body.captured}
    for item in body.calls:
        names.update(item.call.reads, item.call.outputs)
        if item.body is not None:
            names |= _names_in(item.body)
    return names


def _body(
    body: TypedBody,
    name: str,
    values: Mapping[str, Value],
    constants: Mapping[str, tuple[int, ...]],
    leaves: _Leaves,
    opsets: Mapping[str, int],
) -> Graph:
    parameters = leaves.parameters.intersection(body.captured)
    buffers = leaves.buffers.intersection(body.captured)
    fed = (name for name in body.captured if name not in parameters and name not in buffers)
    touched = dict.fromkeys((*body.captured, *_names_in(body)))
    return Graph(
        nodes=tuple(_node(item, values, constants, leaves, opsets) for item in body.calls),
        values={name: values[name] for name in touched if name in values},
        inputs=(*body.inputs, *fed),
        outputs=body.outputs,
        parameters=parameters,
        buffers=buffers,
        constants={name: constants[name] for name in touched if name in constants},
        opsets=dict(opsets),
        batch=0,
        fingerprint="",
        name=name,
    )


def _values(types: Mapping[str, TensorType]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, known in types.items():
        value = _contained(name, known) if known.container else _tensor(name, known)
        if value is not None:
            values[name] = value
    return values


def _tensor(name: str, known: TensorType) -> Value | None:
    shape, dtype = known.shape, FROM_ONNX.get(known.elem_type)
    return None if shape is None or dtype is None else Value(name, shape, dtype)


def _contained(name: str, known: TensorType) -> Value | None:
    """Everything in a container as one tensor: equal items stacked, others as one vector."""
    elements = flat_elements(known)
    elem_type = known.elem_type or next((item.elem_type for item in known.items or ()), 0)
    dtype = FROM_ONNX.get(elem_type, DType.FLOAT32)
    if elements is None or known.items is None:
        return None
    if known.container is not Container.MAP and len(set(known.items)) == 1:
        inner = (
            _contained(name, known.items[0]) if known.items[0].container else _tensor(name, known.items[0])
        )
        if inner is not None:
            return Value(name, (len(known.items), *inner.shape), inner.dtype)
    return Value(name, (elements,), dtype)


def _integers(contents: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(
            array.ravel().tolist() if array.dtype.kind != "b" else array.ravel().astype(np.int64).tolist()
        )
        for name, array in contents.items()
        if array.dtype.kind in "iub"
    }
