"""Values of small constant tensors: the arithmetic that exporters do on shapes, redone with numpy.

A rule takes the node's attributes, its input arrays and the opset version, and returns the output arrays.
Only tensors of up to `ELEMENT_LIMIT` elements are computed; larger ones are known by type alone. Rules
follow the ONNX operator specification; where a default changed with the opset, both forms are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from predictor.features.reading.tensor_type import Array, TensorType
from predictor.registry import Registry

Attributes: TypeAlias = Mapping[str, Any]
Arrays: TypeAlias = Sequence[Array]
FoldRule: TypeAlias = Callable[[Attributes, Arrays, int], Sequence[Array]]

FOLD_RULES: Registry[FoldRule] = Registry("fold rule")
ELEMENT_LIMIT = 2048
# What numpy and attributes of another type raise on a node that does not fit; the type rules report those.
_MISFIT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    # More dimensions than numpy knows.
    RuntimeError,
    TypeError,
    ValueError,
)


def fold(
    op_type: str, attributes: Attributes, inputs: Sequence[Array | None], version: int
) -> Sequence[Array] | None:
    """Contents of the node's outputs, or None when they cannot be computed or are too large.

    Callers silence numpy's floating-point warnings (`np.errstate`), once for all nodes.
    """
    rule = FOLD_RULES.get("", op_type, version)
    if rule is None:
        return None
    # Omitted trailing inputs are dropped; an omitted one in the middle stays as an empty marker.
    arrays = [_OMITTED if array is None else array for array in inputs]
    while arrays and arrays[-1] is _OMITTED:
        arrays.pop()
    try:
        outputs = [np.asarray(array) for array in rule(attributes, arrays, version)]
    except _MISFIT:
        return None
    return outputs if all(array.size <= ELEMENT_LIMIT for array in outputs) else None


def fold_shape(op_type: str, attributes: Attributes, given: TensorType | None) -> Sequence[Array] | None:
    """Contents of an output that follows from its input's shape alone (SHAPE_RULES), where that is known."""
    shape = None if given is None else given.shape
    if shape is None:
        return None
    try:
        return [SHAPE_RULES[op_type](attributes, shape)]
    except _MISFIT:
        return None


def _shape_of(attributes: Attributes, shape: tuple[int, ...]) -> Array:
    return np.array(shape[attributes.get("start", 0) : attributes.get("end")], dtype=np.int64)


def _size_of(attributes: Attributes, shape: tuple[int, ...]) -> Array:
    return np.array(prod(shape), dtype=np.int64)


SHAPE_RULES: Mapping[str, Callable[[Attributes, tuple[int, ...]], Array]] = {
    "Shape": _shape_of,
    "Size": _size_of,
}
_OMITTED: Array = np.zeros((0,), dtype=np.int64)


def _axes(attributes: Attributes, inputs: Arrays, position: int = 1) -> tuple[int, ...] | None:
    """Axes from the input (newer opsets) or the attribute (older ones); None when neither is given."""
    if len(inputs) > position and inputs[position] is not _OMITTED:
        return tuple(int(axis) for axis in inputs[position].ravel())
    given = attributes.get("axes")
    return None if given is None else tuple(given)


def _sized(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape, refused when it is too large to compute."""
    if prod(shape) > ELEMENT_LIMIT or min(shape, default=0) < 0:
        raise ValueError("too large")
    return tuple(int(size) for size in shape)


def _binary(operation: Callable[[Array, Array], Array]) -> FoldRule:
    def rule(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
        return [operation(inputs[0], inputs[1])]

    return rule


def _unary(operation: Callable[[Array], Array]) -> FoldRule:
    def rule(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
        return [operation(inputs[0])]

    return rule


def _variadic(operation: Callable[[Array, Array], Array]) -> FoldRule:
    def rule(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
        result = inputs[0]
        for array in inputs[1:]:
            result = operation(result, array)
        return [result]

    return rule


def _reduction(operation: Callable[..., Array]) -> FoldRule:
    def rule(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
        axes = _axes(attributes, inputs)
        if not axes and attributes.get("noop_with_empty_axes"):
            return [inputs[0]]
        reduced = operation(inputs[0], axis=axes or None, keepdims=bool(attributes.get("keepdims", 1)))
        return [np.asarray(reduced, dtype=inputs[0].dtype)]

    return rule


def _divide(a: Array, b: Array) -> Array:
    """ONNX integer division truncates towards zero."""
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    if not np.all(b):
        raise ZeroDivisionError
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(np.where((a < 0) != (b < 0), -quotient, quotient), dtype=a.dtype)


def _power(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a.astype(np.float64), b), dtype=a.dtype)


_BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Pow": _power,
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
_UNARY: Mapping[str, Callable[[Array], Array]] = {
    "Identity": np.asarray,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Exp": np.exp,
    "Log": np.log,
    "Not": np.logical_not,
}
_VARIADIC: Mapping[str, Callable[[Array, Array], Array]] = {
    "Min": np.minimum,
    "Max": np.maximum,
    "Sum": np.add,
}
_REDUCTIONS: Mapping[str, Callable[..., Array]] = {
    "ReduceProd": np.prod,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceMean": np.mean,
}
for _name, _operation in _BINARY.items():
    FOLD_RULES.register("", _name)(_binary(_operation))
for _name, _function in _UNARY.items():
    FOLD_RULES.register("", _name)(_unary(_function))
for _name, _operation in _VARIADIC.items():
    FOLD_RULES.register("", _name)(_variadic(_operation))
for _name, _reducer in _REDUCTIONS.items():
    FOLD_RULES.register("", _name)(_reduction(_reducer))


@FOLD_RULES.register("", "Constant")
def _constant(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    for key, dtype in (
        ("value_int", np.int64),
        ("value_ints", np.int64),
        ("value_float", np.float32),
        ("value_floats", np.float32),
    ):
        if key in attributes:
            return [np.asarray(attributes[key], dtype=dtype)]
    return [attributes["value"]]


@FOLD_RULES.register("", "ConstantOfShape")
def _constant_of_shape(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    value = attributes.get("value")
    fill = np.zeros((1,), dtype=np.float32) if value is None else value
    return [np.full(_sized(inputs[0].tolist()), fill.ravel()[0], dtype=fill.dtype)]


@FOLD_RULES.register("", "Cast")
def _cast(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    from onnx import helper

    return [inputs[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))]


@FOLD_RULES.register("", "CastLike")
def _cast_like(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [inputs[0].astype(inputs[1].dtype)]


@FOLD_RULES.register("", "Mod")
def _mod(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    if inputs[1].dtype.kind in "iu" and not np.all(inputs[1]):
        raise ZeroDivisionError
    return [(np.fmod if attributes.get("fmod") else np.mod)(inputs[0], inputs[1])]


@FOLD_RULES.register("", "Where")
def _where(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.where(inputs[0], inputs[1], inputs[2])]


@FOLD_RULES.register("", "Clip")
def _clip(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    low = inputs[1] if len(inputs) > 1 and inputs[1] is not _OMITTED else attributes.get("min")
    high = inputs[2] if len(inputs) > 2 else attributes.get("max")
    result = inputs[0] if low is None else np.maximum(inputs[0], low)
    return [result if high is None else np.minimum(result, high)]


@FOLD_RULES.register("", "Range")
def _range(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    start, limit, delta = (array.ravel()[0] for array in inputs)
    if delta == 0 or (limit - start) / delta > ELEMENT_LIMIT:
        raise ValueError("too large")
    return [np.arange(start, limit, delta, dtype=inputs[0].dtype)]


@FOLD_RULES.register("", "Expand")
def _expand(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    shape = np.broadcast_shapes(inputs[0].shape, tuple(inputs[1].tolist()))
    return [np.broadcast_to(inputs[0], _sized(shape))]


@FOLD_RULES.register("", "Tile")
def _tile(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    _sized([size * count for size, count in zip(inputs[0].shape, inputs[1].tolist(), strict=True)])
    return [np.tile(inputs[0], inputs[1].tolist())]


@FOLD_RULES.register("", "Pad")
def _pad(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    if attributes.get("mode", "constant") != "constant" or len(inputs) > 3:
        raise ValueError("not computed")
    pads = inputs[1].tolist() if len(inputs) > 1 else list(attributes["pads"])
    rank = inputs[0].ndim
    width = list(zip(pads[:rank], pads[rank:], strict=True))
    _sized([size + before + after for size, (before, after) in zip(inputs[0].shape, width, strict=True)])
    fill = inputs[2].ravel()[0] if len(inputs) > 2 else 0
    return [np.pad(inputs[0], width, constant_values=fill)]


@FOLD_RULES.register("", "Reshape")
def _reshape(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    shape = inputs[1].tolist()
    if not attributes.get("allowzero"):
        shape = [inputs[0].shape[axis] if size == 0 else size for axis, size in enumerate(shape)]
    return [inputs[0].reshape(shape)]


@FOLD_RULES.register("", "Flatten")
def _flatten(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    axis = attributes.get("axis", 1)
    return [inputs[0].reshape(prod(inputs[0].shape[:axis]), -1)]


@FOLD_RULES.register("", "Squeeze")
def _squeeze(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.squeeze(inputs[0], axis=_axes(attributes, inputs))]


@FOLD_RULES.register("", "Unsqueeze")
def _unsqueeze(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.expand_dims(inputs[0], _axes(attributes, inputs) or ())]


@FOLD_RULES.register("", "Transpose")
def _transpose(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.transpose(inputs[0], attributes.get("perm"))]


@FOLD_RULES.register("", "Concat")
def _concat(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.concatenate(list(inputs), axis=attributes.get("axis", 1))]


@FOLD_RULES.register("", "Split")
def _split(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    axis = attributes.get("axis", 0)
    sizes = list(inputs[1].tolist() if len(inputs) > 1 else attributes.get("split", ()))
    if sizes:
        return np.split(inputs[0], np.cumsum(sizes)[:-1], axis=axis)
    return np.split(inputs[0], attributes["num_outputs"], axis=axis)


@FOLD_RULES.register("", "Slice")
def _slice(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    if "starts" in attributes:
        starts, ends = list(attributes["starts"]), list(attributes["ends"])
        axes, steps = list(attributes.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = inputs[1].tolist(), inputs[2].tolist()
        given = len(inputs) > 3 and inputs[3] is not _OMITTED
        axes = inputs[3].tolist() if given else list(range(len(starts)))
        steps = inputs[4].tolist() if len(inputs) > 4 else [1] * len(starts)
    index = [slice(None)] * inputs[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # A backward slice that ends before the first element is spelt INT_MIN in ONNX, None in numpy.
        stop = None if step < 0 and end < -inputs[0].shape[axis] else end
        index[axis] = slice(start, stop, step)
    return [inputs[0][tuple(index)]]


@FOLD_RULES.register("", "Gather")
def _gather(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.take(inputs[0], inputs[1], axis=attributes.get("axis", 0))]


@FOLD_RULES.register("", "GatherElements")
def _gather_elements(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.take_along_axis(inputs[0], inputs[1], axis=attributes.get("axis", 0))]


@FOLD_RULES.register("", "ScatterND")
def _scatter_nd(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    if attributes.get("reduction", "none") != "none":
        raise ValueError("not computed")
    result = inputs[0].copy()
    result[tuple(np.moveaxis(inputs[1], -1, 0))] = inputs[2]
    return [result]


@FOLD_RULES.register("", "CumSum")
def _cumulative_sum(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    if attributes.get("exclusive") or attributes.get("reverse"):
        raise ValueError("not computed")
    return [np.cumsum(inputs[0], axis=int(inputs[1].ravel()[0]), dtype=inputs[0].dtype)]


@FOLD_RULES.register("", "NonZero")
def _non_zero(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    return [np.asarray(np.nonzero(inputs[0]), dtype=np.int64)]


@FOLD_RULES.register("", "Trilu")
def _triangle(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    diagonal = int(inputs[1].ravel()[0]) if len(inputs) > 1 else 0
    return [(np.triu if attributes.get("upper", 1) else np.tril)(inputs[0], diagonal)]


@FOLD_RULES.register("", "OneHot")
def _one_hot(attributes: Attributes, inputs: Arrays, version: int) -> Arrays:
    indices, depth, (off, on) = inputs[0].astype(np.int64), int(inputs[1].ravel()[0]), inputs[2]
    _sized((*indices.shape, depth))
    hot = np.where(np.mod(indices, depth)[..., None] == np.arange(depth), on, off)
    # Indices outside [-depth, depth) are nowhere.
    hot = np.where((np.abs(indices + 0.5) < depth)[..., None], hot, off).astype(inputs[2].dtype)
    return [np.moveaxis(hot, -1, attributes.get("axis", -1))]
