"""Weights of bodies (If, Loop, Scan) become weights of the graph: one each, however often a body runs.

A device holds them from the start, whichever branch an iteration takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from onnx import GraphProto, ModelProto, TensorProto

from predictor.features.reading.elements import FROM_ONNX
from predictor.features.reading.structure import bodies_of

_NONE: Mapping[str, str] = MappingProxyType({})


def with_outer_weights(model: ModelProto) -> ModelProto:
    """`model` with no initializer below its main graph; the same object where there is none."""
    if not any(body.initializer for body in _bodies(model.graph)):
        return model
    found = ModelProto()
    found.CopyFrom(model)
    _Move(found.graph).into(found.graph, _NONE)
    return found


@dataclass(frozen=True, slots=True)
class BodyWeights:
    """What a body keeps on the device while it does not run.

    Attributes:
        constants: tensors that its nodes hold. read: names that it reads, weights around it among them.
    """

    constants: tuple[TensorProto, ...]
    read: frozenset[str]


def weights_of(body: GraphProto) -> BodyWeights:
    """Weights of `body` and of the bodies in it."""
    constants: list[TensorProto] = []
    read: set[str] = set()
    for graph in (body, *_bodies(body)):
        read.update(value.name for value in graph.output)
        for node in graph.node:
            read.update(node.input)
            if node.op_type == "Constant":
                held = (attribute.t for attribute in node.attribute if attribute.HasField("t"))
                constants.extend(tensor for tensor in held if _is_tensor(tensor))
    return BodyWeights(tuple(constants), frozenset(read))


def _is_tensor(tensor: TensorProto) -> bool:
    """More than a number, and numbers."""
    elements = prod(tensor.dims) if all(size > 0 for size in tensor.dims) else 0
    return elements > 1 and tensor.data_type in FROM_ONNX


def _bodies(graph: GraphProto) -> Iterator[GraphProto]:
    """All bodies below `graph`."""
    pending = [body for node in graph.node for body in bodies_of(node)]
    while pending:
        body = pending.pop()
        yield body
        pending.extend(inner for node in body.node for inner in bodies_of(node))


class _Move:
    """Moves initializers to the main graph, under names that say which body they came from."""

    def __init__(self, main: GraphProto) -> None:
        self._main = main
        self._count = 0

    def into(self, graph: GraphProto, names: Mapping[str, str]) -> None:
        """`graph` and what is below it read moved weights under `names`; its bodies' weights are moved."""
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            for body in bodies_of(node):
                self._body(body, names)

    def _body(self, body: GraphProto, names: Mapping[str, str]) -> None:
        defined = {value.name for value in body.input}.union(*(node.output for node in body.node))
        inner = {name: moved for name, moved in names.items() if name not in defined}
        if body.initializer:
            self._count += 1
        for tensor in (tensor for tensor in body.initializer if tensor.name not in defined):
            moved = TensorProto()
            moved.CopyFrom(tensor)
            moved.name = inner[tensor.name] = f"body {self._count}/{tensor.name}"
            self._main.initializer.append(moved)
        del body.initializer[:]
        for value in body.output:
            value.name = inner.get(value.name, value.name)
        self.into(body, inner)
