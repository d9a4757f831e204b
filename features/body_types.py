"""Output types of nodes with bodies, where ONNX's inference stays silent.

ONNX forgets the shape of a loop's state, since a body may grow it. Models do not: state keeps the type it
starts with, and each step's result is what the body declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from onnx import GraphProto

from predictor.features.node_types import Array, Dim, TensorType, read_type
from predictor.registry import Registry

BodyRule: TypeAlias = Callable[
    [Mapping[str, Any], Sequence[str], Mapping[str, TensorType], Mapping[str, Array]], Sequence[TensorType]
]
BODY_TYPES: Registry[BodyRule] = Registry("body type rule")
_UNKNOWN = TensorType(0, None)


def body_types(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[str],
    types: Mapping[str, TensorType],
    contents: Mapping[str, Array],
) -> Sequence[TensorType]:
    """Types of the node's outputs in order, as far as they follow; empty for ops without a body rule."""
    rule = BODY_TYPES.get("", op_type, 1)
    return () if rule is None else rule(attributes, inputs, types, contents)


@BODY_TYPES.register("", "Loop")
def _loop(
    attributes: Mapping[str, Any],
    inputs: Sequence[str],
    types: Mapping[str, TensorType],
    contents: Mapping[str, Array],
) -> Sequence[TensorType]:
    body = attributes.get("body")
    if not isinstance(body, GraphProto):
        return ()
    state_count = len(body.input) - 2
    state = [types.get(name, _UNKNOWN) for name in inputs[2 : 2 + state_count]]
    trips = contents.get(inputs[0]) if inputs and inputs[0] else None
    count = None if trips is None else int(trips.ravel()[0])
    return [*state, *(_stacked(info.type, count) for info in body.output[1 + state_count :])]


@BODY_TYPES.register("", "Scan")
def _scan(
    attributes: Mapping[str, Any],
    inputs: Sequence[str],
    types: Mapping[str, TensorType],
    contents: Mapping[str, Array],
) -> Sequence[TensorType]:
    body, scanned = attributes.get("body"), attributes.get("num_scan_inputs", 0)
    if not isinstance(body, GraphProto) or scanned < 1:
        return ()
    state_count = len(body.input) - scanned
    state = [types.get(name, _UNKNOWN) for name in inputs[:state_count]]
    first = types.get(inputs[state_count], _UNKNOWN) if len(inputs) > state_count else _UNKNOWN
    axis = attributes.get("scan_input_axes", (0,))[0]
    length = first.dims[axis] if first.dims and -len(first.dims) <= axis < len(first.dims) else None
    return [*state, *(_stacked(info.type, length) for info in body.output[state_count:])]


def _stacked(step: Any, count: Dim) -> TensorType:
    """The results of all steps along a new leading axis."""
    known = read_type(step)
    return known if known.dims is None else TensorType(known.elem_type, (count, *known.dims))
