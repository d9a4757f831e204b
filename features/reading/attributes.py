"""Node attributes as Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from predictor.features.reading.folding import ELEMENT_LIMIT
from predictor.features.reading.tensor_type import Array


def read_attributes(node: NodeProto) -> dict[str, Any]:
    """Attributes by name: numbers, text, tuples of them, small tensors as arrays, graphs as GraphProto.

    Tensors without payload are left out.
    """
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        reader = _READERS.get(attribute.type)
        value = None if reader is None else reader(attribute)
        if value is not None:
            found[attribute.name] = value
    return found


def tensor_contents(tensor: TensorProto) -> Array | None:
    """The tensor's array, or None when its payload is absent, large, damaged or no number."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type in (TensorProto.STRING, 0):
        return None
    try:
        if tensor.data_type == TensorProto.INT64 and tensor.raw_data:
            return np.frombuffer(tensor.raw_data, dtype="<i8").reshape(tuple(tensor.dims))
        array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return None
    return array if array.size <= ELEMENT_LIMIT else None


def array_of(numbers: Sequence[int], elem_type: int) -> Array | None:
    """A vector of that ONNX element type, None where numpy has no such type."""
    try:
        return np.array(numbers).astype(helper.tensor_dtype_to_np_dtype(elem_type))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def elem_type_of(array: Array) -> int:
    """The ONNX element type of an array. Raises ValueError for a type that ONNX lacks."""
    return _ELEM_TYPES.get(array.dtype) or int(helper.np_dtype_to_tensor_dtype(array.dtype))


_ELEM_TYPES: Mapping[Any, int] = MappingProxyType(
    {
        np.dtype(np.int64): int(TensorProto.INT64),
        np.dtype(np.float32): int(TensorProto.FLOAT),
        np.dtype(np.bool_): int(TensorProto.BOOL),
        np.dtype(np.int32): int(TensorProto.INT32),
    }
)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


_READERS: Mapping[int, Callable[[Any], Any]] = MappingProxyType(
    {
        AttributeProto.INT: lambda a: a.i,
        AttributeProto.INTS: lambda a: tuple(a.ints),
        AttributeProto.FLOAT: lambda a: a.f,
        AttributeProto.FLOATS: lambda a: tuple(a.floats),
        AttributeProto.STRING: lambda a: _text(a.s),
        AttributeProto.STRINGS: lambda a: tuple(map(_text, a.strings)),
        AttributeProto.TENSOR: lambda a: tensor_contents(a.t),
        AttributeProto.GRAPH: lambda a: a.g,
    }
)
