"""Types of values while a file is read: element type and shape as far as known, containers included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto, helper

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


def merged(known: TensorType, other: TensorType) -> TensorType:
    """`known` with its open parts filled from `other`."""
    elem_type = known.elem_type or other.elem_type
    if known.container or other.container:
        return other if not known.is_complete and (other.container or not known.container) else known
    if known.dims is None or other.dims is None or len(known.dims) != len(other.dims):
        return TensorType(elem_type, other.dims if known.dims is None else known.dims)
    pairs = zip(known.dims, other.dims, strict=True)
    return TensorType(elem_type, tuple(b if a.__class__ is not int else a for a, b in pairs))


def described(known: TensorType | None) -> str:
    """The shape, or what container it is, for a message."""
    if known is not None and known.container:
        return f"{known.container.value} of {'?' if known.items is None else len(known.items)}"
    if known is None or known.dims is None:
        return "(unknown)"
    return f"({', '.join('?' if size is None else str(size) for size in known.dims)})"
