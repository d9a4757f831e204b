"""What the rules of control flow share: their registry, their view of the walk, nodes with a typed body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from onnx import GraphProto, NodeProto, TensorProto

from predictor.features.reading.body_weights import BodyWeights
from predictor.features.reading.branches import Opened
from predictor.features.reading.hints import Hints
from predictor.features.reading.structure import Call
from predictor.features.reading.tensor_type import Array, Dim, TensorType
from predictor.features.reading.typed_model import TypedBody, TypedCall
from predictor.registry import Registry

UNROLL_NODES = 1024
"""Nodes that unrolling one loop may add."""
TRIP_COUNT = "perfcast_trip_count"
"""Attribute of a Loop or Scan: how often its body runs."""
UNKNOWN = TensorType(0, None)


OPENING_LIMIT = "opening"
"""Metadata `limit` of an InvalidGraph: bodies open to more than is read. No fault of one branch, so that the
other is not taken instead."""


class Walker(Protocol):
    """What the rules use of the pass over the nodes."""

    types: dict[str, TensorType]
    contents: dict[str, Array]
    hints: Hints
    trials: int

    @property
    def declared(self) -> Mapping[str, TensorType]:
        """What the file says of values."""

    def walk(self, nodes: Sequence[NodeProto]) -> list[TypedCall]:
        """Types nodes and returns them, opened where they were."""

    def enter(self, opened: Opened) -> list[TypedCall]:
        """Types an opened body."""

    def prefix(self, call: Call) -> str:
        """A prefix that no other name has."""

    def note(self, code: str, message: str) -> None:
        """Adds a notice to the graph."""

    def cost(self, calls: Sequence[TypedCall]) -> float | None:
        """A number that grows with what the nodes cost; None where a type is unknown."""

    def add_initializer(self, tensor: TensorProto) -> None:
        """Adds a leaf."""

    def keep(self, weights: BodyWeights, prefix: str) -> None:
        """Leaves that stay whoever reads them, under names that begin with `prefix`."""


ControlRule: TypeAlias = Callable[[Walker, Call, Mapping[str, Any]], "list[TypedCall] | None"]
CONTROL_RULES: Registry[ControlRule] = Registry("control rule")
"""Nodes that stand for the call, typed; None leaves it as it is."""


def label_of(call: Call) -> str:
    """The name under which the caller can give hints about the node."""
    return call.node.name or next((name for name in call.outputs if name), call.node.op_type)


def scalar(walk: Walker, name: str) -> int | None:
    """The single number that a value holds; None where it depends on data."""
    array = walk.contents.get(name) if name else None
    return None if array is None or array.size != 1 else int(array.ravel()[0])


def whole_numbers(attributes: Mapping[str, Any], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """A list of integers among the attributes; the default where it is absent or something else."""
    found = attributes.get(name)
    if not isinstance(found, tuple) or not all(isinstance(item, int) for item in found):
        return default
    return found


def stacked(step: TensorType, count: int, axis: int) -> TensorType:
    """The results of all steps along a new axis."""
    if step.dims is None or step.container:
        return UNKNOWN
    place = axis % (len(step.dims) + 1)
    dims: tuple[Dim, ...] = (*step.dims[:place], count, *step.dims[place:])
    return TensorType(step.elem_type, dims)


def kept(
    walk: Walker,
    call: Call,
    attributes: Mapping[str, Any],
    opened: Opened,
    calls: Sequence[TypedCall],
    trips: int,
    types: Sequence[TensorType],
) -> TypedCall:
    """The call with its typed body; its outputs get their types."""
    written = {name for item in calls for name in item.call.outputs}.union(opened.inputs)
    read = [name for item in calls for name in item.call.reads]
    captured = tuple(dict.fromkeys(name for name in (*read, *opened.outputs) if name and name not in written))
    for name, known in zip(call.outputs, types, strict=False):
        if name:
            walk.types[name] = known
    kept = {key: value for key, value in attributes.items() if not isinstance(value, GraphProto)}
    return TypedCall(
        replace(call, captured=captured),
        {**kept, TRIP_COUNT: trips},
        TypedBody(tuple(calls), opened.inputs, opened.outputs, captured),
    )
