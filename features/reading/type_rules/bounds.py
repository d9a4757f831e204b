"""Largest possible types of outputs whose shape depends on the data: NonZero, Unique, NonMaxSuppression ...

Asked last, after ONNX's rules and what the file declares. A rule returns nothing where no bound exists.
"""

from __future__ import annotations

from math import prod

from predictor.features.reading.tensor_type import Container, TensorType, contained
from predictor.features.reading.type_rules.operands import LARGEST_TYPES, Operands

_INT32, _INT64 = 6, 7


@LARGEST_TYPES.register("", "NonZero")
def _non_zero(op: Operands) -> tuple[TensorType, ...]:
    """Every element may differ from zero."""
    shape = op.shape(0)
    return () if shape is None else (TensorType(_INT64, (max(1, len(shape)), prod(shape))),)


@LARGEST_TYPES.register("", "Unique")
def _unique(op: Operands) -> tuple[TensorType, ...]:
    """Every element, or every slice along the axis, may occur once."""
    shape = op.shape(0)
    if shape is None:
        return ()
    axis = op.attributes.get("axis")
    count = prod(shape) if axis is None else shape[axis]
    indices = TensorType(_INT64, (count,))
    return TensorType(op.elem_type(0), (count,) if axis is None else shape), indices, indices, indices


@LARGEST_TYPES.register("com.microsoft", "Unique")
def _unique_values(op: Operands) -> tuple[TensorType, ...]:
    """(values, places, counts) of a vector without repeats."""
    shape = op.shape(0)
    indices = TensorType(_INT64, shape)
    return () if shape is None else (TensorType(op.elem_type(0), shape), indices, indices)


@LARGEST_TYPES.register("com.microsoft", "RemovePadding")
def _tokens(op: Operands) -> tuple[TensorType, ...]:
    """No token is padding: (tokens, their places, running lengths, longest)."""
    shape = op.shape(0)
    if shape is None or len(shape) != 3:
        return ()
    samples, length, width = shape
    places, ends = TensorType(_INT32, (samples, length)), TensorType(_INT32, (samples + 1,))
    return TensorType(op.elem_type(0), (samples * length, width)), places, ends, TensorType(_INT32, ())


@LARGEST_TYPES.register("", "Compress")
def _compress(op: Operands) -> tuple[TensorType, ...]:
    """The condition may hold everywhere; it may be shorter than the axis."""
    shape, condition = op.shape(0), op.shape(1)
    if shape is None:
        return ()
    flags = prod(condition) if condition is not None else prod(shape)
    axis = op.attributes.get("axis")
    if axis is None:
        return (TensorType(op.elem_type(0), (min(prod(shape), flags),)),)
    axis %= len(shape)
    kept = min(shape[axis], flags)
    return (TensorType(op.elem_type(0), (*shape[:axis], kept, *shape[axis + 1 :])),)


@LARGEST_TYPES.register("", "NonMaxSuppression")
def _boxes(op: Operands) -> tuple[TensorType, ...]:
    """Per image and class all boxes survive, up to the limit given; 0 without one."""
    scores = op.shape(1)
    if scores is None or len(scores) != 3:
        return ()
    limit = scores[2]
    if op.type(2) is None:
        limit = 0
    elif (given := op.integers(2)) is not None:
        limit = min(limit, max(0, given[0]))
    return (TensorType(_INT64, (scores[0] * scores[1] * limit, 3)),)


@LARGEST_TYPES.register("", "TopK")
def _top(op: Operands) -> tuple[TensorType, ...]:
    """All elements of the axis."""
    known = op.type(0)
    return () if known is None else (known, TensorType(_INT64, known.dims))


@LARGEST_TYPES.register("", "Slice")
def _slice(op: Operands) -> tuple[TensorType, ...]:
    """The whole input."""
    known = op.type(0)
    return () if known is None else (known,)


@LARGEST_TYPES.register("", "Squeeze")
def _squeeze(op: Operands) -> tuple[TensorType, ...]:
    """Exact in size: as many axes of length 1 go as are named."""
    known, axes = op.type(0), op.shape(1)
    if known is None or known.dims is None or axes is None:
        return ()
    dims = list(known.dims)
    for _ in range(prod(axes)):
        if 1 not in dims:
            return ()
        dims.remove(1)
    return (TensorType(known.elem_type, tuple(dims)),)


@LARGEST_TYPES.register("", "Split")
def _split(op: Operands) -> tuple[TensorType, ...]:
    """Exact in sum: equal parts."""
    shape = op.shape(0)
    if not shape:
        return ()
    axis = op.integer("axis") % len(shape)
    count = op.output_count
    parts = [shape[axis] // count + (index < shape[axis] % count) for index in range(count)]
    return tuple(TensorType(op.elem_type(0), (*shape[:axis], part, *shape[axis + 1 :])) for part in parts)


_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
)


@LARGEST_TYPES.register("", *_REDUCTIONS)
def _reduce(op: Operands) -> tuple[TensorType, ...]:
    """As many axes go as are named: the shortest ones."""
    shape, axes = op.shape(0), op.shape(1)
    if shape is None or axes is None or prod(axes) > len(shape):
        return ()
    count = prod(axes)
    if count == 0:
        count = 0 if op.integer("noop_with_empty_axes") else len(shape)
    gone = sorted(range(len(shape)), key=lambda axis: shape[axis])[:count]
    if op.integer("keepdims", 1):
        dims = tuple(1 if axis in gone else size for axis, size in enumerate(shape))
    else:
        dims = tuple(size for axis, size in enumerate(shape) if axis not in gone)
    return (TensorType(op.elem_type(0), dims),)


@LARGEST_TYPES.register("", "StringNormalizer")
def _words(op: Operands) -> tuple[TensorType, ...]:
    """No word is a stop word."""
    known = op.type(0)
    return () if known is None else (known,)


@LARGEST_TYPES.register("", "StringSplit")
def _pieces(op: Operands) -> tuple[TensorType, ...]:
    """One piece more than the splits that are allowed, where they are limited."""
    known = op.type(0)
    if known is None or known.dims is None:
        return ()
    limit = op.attributes.get("maxsplit")
    pieces = None if limit is None else limit + 1
    if 0 in known.dims:
        pieces = 0
    return TensorType(known.elem_type, (*known.dims, pieces)), TensorType(_INT64, known.dims)


@LARGEST_TYPES.register("", "SplitToSequence")
def _parts(op: Operands) -> tuple[TensorType, ...]:
    """Exact in sum: one part."""
    known = op.type(0)
    return () if known is None else (contained(Container.SEQUENCE, (known,), known.elem_type),)
