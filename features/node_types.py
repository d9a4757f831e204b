"""Types of values, and output types of one node from ONNX's own C++ inference.

Whole-model inference gives up at ConstantOfShape, Range, Expand, Pad and Mod because it does not carry the
constants that our folding knows. Asked node by node, with those constants handed in, the same C++ rules
answer (7 µs a node).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, checker, defs, helper, shape_inference

Dim: TypeAlias = int | str | None
"""A number, a symbol, or unknown."""
Array: TypeAlias = NDArray[Any]


class Container(Enum):
    """What holds tensors: a list of any length, a tensor or nothing, or (keys, values)."""

    SEQUENCE = "sequence"
    OPTIONAL = "optional"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class TensorType:
    """ONNX element type and shape as far as known; `dims` is None when even the rank is unknown.

    A sequence, optional or map has a `container` and the types of its `items` (None: how many is unknown; a
    map's are its keys and its values); its own element type and dims are those of one item where they all
    agree.
    """

    elem_type: int
    dims: tuple[Dim, ...] | None
    container: Container | None = None
    items: tuple[TensorType, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape when every dimension is a number; None for a container."""
        dims = None if self.container else self.dims
        if dims is None:
            return None
        for size in dims:
            if size.__class__ is not int:
                return None
        return dims  # type: ignore[return-value]

    @property
    def is_complete(self) -> bool:
        """True when element type and every dimension are known, of every item in a container."""
        if self.container:
            return self.items is not None and all(item.is_complete for item in self.items)
        return self.elem_type != 0 and self.shape is not None

    def to_proto(self) -> TypeProto:
        """The same as ONNX writes it; a sequence or optional loses how many items it has."""
        inner: TypeProto = helper.make_tensor_type_proto(self.elem_type, self.dims)
        if self.container is Container.SEQUENCE:
            return helper.make_sequence_type_proto(_of_items(self.items, inner))
        if self.container is Container.OPTIONAL:
            return helper.make_optional_type_proto(_of_items(self.items, inner))
        if self.container is Container.MAP and self.items:
            keys, values = self.items
            return helper.make_map_type_proto(keys.elem_type, values.to_proto())
        return inner


def _of_items(items: tuple[TensorType, ...] | None, otherwise: TypeProto) -> TypeProto:
    """Type of one item: nested containers keep theirs, tensors the shape that all agree on."""
    return items[0].to_proto() if items and items[0].container else otherwise


def contained(container: Container, items: Sequence[TensorType], elem_type: int = 0) -> TensorType:
    """A container of known items; `elem_type` is that of an empty one."""
    types, shapes = {item.elem_type for item in items}, {item.dims for item in items}
    return TensorType(
        next(iter(types)) if len(types) == 1 else elem_type,
        next(iter(shapes)) if len(shapes) == 1 else None,
        container,
        tuple(items),
    )


class NodeTypeError(Exception):
    """The node contradicts its inputs; the message is ONNX's reason in one line."""


def infer_outputs(
    node: NodeProto,
    version: int,
    inputs: Mapping[str, TensorType],
    constants: Mapping[str, Array],
    attributes_key: Hashable | None = None,
) -> dict[str, TensorType] | None:
    """Types of the node's outputs by name, or None when ONNX knows no such op or cannot look inside it.

    Args:
        version: opset version of the node's domain.
        inputs: types of (at least) the node's inputs; one that is missing makes the answer None.
        constants: contents of inputs where known.
        attributes_key: the attributes as one hashable value; lets equal nodes share their answer.

    Raises:
        NodeTypeError: the op's own rule rejects these inputs.
    """
    schema = find_schema(node.op_type, version, node.domain)
    if schema is None:
        return None
    known: list[tuple[TensorType, bytes] | None] = []
    for name in node.input:
        if not name:
            known.append(None)
            continue
        kind = inputs.get(name)
        if kind is None:
            return None
        array = constants.get(name)
        known.append((kind, b"" if array is None else array.tobytes()))
    outputs = tuple(node.output)
    if attributes_key is None:
        return dict(zip(outputs, _infer(schema, node, version, constants, known), strict=True))
    present = tuple(map(bool, outputs))
    key = (node.domain, node.op_type, version, attributes_key, tuple(known), present)
    found = _MEMO.get(key)
    if found is None:
        if len(_MEMO) >= _MEMO_LIMIT:
            _MEMO.clear()
        found = _MEMO[key] = _infer(schema, node, version, constants, known)
    return dict(zip(outputs, found, strict=True))


# A transformer of 900 nodes has some forty distinct ones; so do all candidates of a search together.
_MEMO: dict[Hashable, tuple[TensorType, ...]] = {}
_MEMO_LIMIT = 20_000
_NOTHING = TensorType(0, None)


def _infer(
    schema: Any,
    node: NodeProto,
    version: int,
    constants: Mapping[str, Array],
    known: Sequence[tuple[TensorType, bytes] | None],
) -> tuple[TensorType, ...]:
    """The C++ rule's answer for each output, in order."""
    types: dict[str, bytes] = {}
    data: dict[str, bytes] = {}
    for name, operand in zip(node.input, known, strict=True):
        if operand is not None:
            types[name] = _type_bytes(operand[0])
            if name in constants:
                data[name] = tensor_proto(constants[name], operand[0].elem_type).SerializeToString()
    try:
        # The public wrapper serialises every type again on each call; these bytes are cached.
        encoded_node = node.SerializeToString()
        found = schema._infer_node_outputs(encoded_node, types, data, {}, {node.domain: version}, 10)
    except shape_inference.InferenceError as error:
        raise NodeTypeError(_one_line(str(error))) from None
    except (checker.ValidationError, RuntimeError, ValueError, IndexError) as error:
        raise NodeTypeError(_one_line(str(error))) from None
    return tuple(
        read_type(TypeProto.FromString(found[name])) if name in found else _NOTHING for name in node.output
    )


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str) -> Any | None:
    """The op's schema at that opset version, or None."""
    try:
        return defs.get_schema(op_type, max(version, 1), domain)
    except defs.SchemaError:
        return None


def read_type(proto: TypeProto) -> TensorType:
    """A TypeProto as TensorType; how many items a sequence or map has is not declared anywhere."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return _uncounted(Container.SEQUENCE, read_type(proto.sequence_type.elem_type))
    if kind == "optional_type":
        item = read_type(proto.optional_type.elem_type)
        return TensorType(item.elem_type, item.dims, Container.OPTIONAL, (item,))
    if kind == "map_type":
        values = read_type(proto.map_type.value_type)
        keys = TensorType(proto.map_type.key_type, (None,))
        return TensorType(
            values.elem_type, (None,), Container.MAP, (keys, TensorType(values.elem_type, (None,)))
        )
    if kind == "sparse_tensor_type":
        tensor = proto.sparse_tensor_type
    elif kind == "tensor_type":
        tensor = proto.tensor_type
    else:
        return TensorType(0, None)
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    dims: list[Dim] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        dims.append(dim.dim_value if kind == "dim_value" else (dim.dim_param or None) if kind else None)
    return TensorType(tensor.elem_type, tuple(dims))


def _uncounted(container: Container, item: TensorType) -> TensorType:
    """A container of an unknown number of equal items; what one item is stays readable in `elem_type`."""
    if item.container:
        return TensorType(item.elem_type, None, container)
    return TensorType(item.elem_type, item.dims, container)


def tensor_proto(array: Array, elem_type: int) -> TensorProto:
    """A small array as ONNX tensor of the given element type."""
    proto = TensorProto(data_type=elem_type, dims=array.shape)
    storage = helper.tensor_dtype_to_np_dtype(elem_type)
    proto.raw_data = np.ascontiguousarray(array, dtype=storage).tobytes()
    return proto


@lru_cache(maxsize=16384)
def _type_bytes(known: TensorType) -> bytes:
    if known.elem_type == 0 and known.container is None:
        return b""
    return bytes(known.to_proto().SerializeToString())


def _one_line(text: str) -> str:
    """ONNX's reason without its location prefix and type noise."""
    line = " ".join(text.split())
    for noise in ("[ShapeInferenceError] ", "[TypeInferenceError] "):
        line = line.replace(noise, "")
    return line
