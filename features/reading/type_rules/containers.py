"""Types of sequences, optionals and maps: lists whose items are known one by one.

ONNX's inference knows what a sequence holds, not how many; here every item has its type, so that bytes, joins
and picks are exact. A position that is not known picks the largest item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

from onnx import TypeProto

from predictor.features.reading.tensor_type import Container, Dim, TensorType, contained, read_type
from predictor.features.reading.type_rules.operands import TYPES_BEFORE_ONNX, Operands

_UNKNOWN = TensorType(0, None)
_INT64, _BOOL = 7, 9
ITEM_LIMIT = 65_536
"""Items that one sequence may have."""
# A chain of insertions keeps every list on the way.
_INSERTED_LIMIT = 1024


def sized(proto: TypeProto, length: int, dims: tuple[Dim, ...] | None = None) -> TensorType:
    """The declared type with `length` items in a sequence or entries in a map, each of shape `dims`."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        item = sized(proto.sequence_type.elem_type, length, dims)
        return contained(Container.SEQUENCE, [item] * length, item.elem_type)
    if kind == "optional_type":
        item = sized(proto.optional_type.elem_type, length, dims)
        return contained(Container.OPTIONAL, [item])
    known = read_type(proto)
    if known.container is Container.MAP and known.items:
        return map_of(known.items[0].elem_type, known.elem_type, length)
    return known if dims is None else replace(known, dims=dims)


def map_of(key_type: int, value_type: int, entries: Dim) -> TensorType:
    """A map with `entries` keys."""
    parts = (TensorType(key_type, (entries,)), TensorType(value_type, (entries,)))
    return TensorType(value_type, (entries,), Container.MAP, parts)


def flat_elements(known: TensorType) -> int | None:
    """Elements of everything inside, None where one is unknown."""
    if known.container is None:
        shape = known.shape
        return None if shape is None else prod(shape)
    if known.items is None:
        return None
    counts = [flat_elements(item) for item in known.items]
    return None if None in counts else sum(count for count in counts if count is not None)


def _sequence(op: Operands, index: int = 0) -> Sequence[TensorType] | None:
    known = op.type(index)
    if known is None or known.container is not Container.SEQUENCE:
        return None
    return known.items


def _largest(items: Sequence[TensorType]) -> TensorType:
    return max(items, key=lambda item: flat_elements(item) or 0, default=_UNKNOWN)


def _at(items: Sequence[TensorType], position: tuple[int, ...] | None) -> TensorType:
    if position and -len(items) <= position[0] < len(items):
        return items[position[0]]
    return _largest(items)


def _has_element(known: TensorType) -> bool:
    return known.container is not Container.OPTIONAL or bool(known.items)


LENGTH_RULES: Mapping[str, Callable[[TensorType], int | bool]] = MappingProxyType(
    {"SequenceLength": lambda known: len(known.items or ()), "OptionalHasElement": _has_element}
)
"""Contents of outputs that follow from how many items a container has."""


@TYPES_BEFORE_ONNX.register("", "SequenceEmpty")
def _empty(op: Operands) -> tuple[TensorType, ...]:
    return (contained(Container.SEQUENCE, (), op.integer("dtype", 1)),)


@TYPES_BEFORE_ONNX.register("", "SequenceConstruct")
def _construct(op: Operands) -> tuple[TensorType, ...]:
    return (contained(Container.SEQUENCE, [item or _UNKNOWN for item in op.types]),)


@TYPES_BEFORE_ONNX.register("", "SequenceInsert")
def _insert(op: Operands) -> tuple[TensorType, ...]:
    items, new = _sequence(op), op.type(1)
    if items is None or new is None or len(items) >= _INSERTED_LIMIT:
        return ()
    position = op.integers(2)
    at = position[0] if position else len(items)
    at = at + len(items) if at < 0 else at
    return (contained(Container.SEQUENCE, [*items[:at], new, *items[at:]]),)


@TYPES_BEFORE_ONNX.register("", "SequenceErase")
def _erase(op: Operands) -> tuple[TensorType, ...]:
    items = _sequence(op)
    if not items:
        return ()
    position = op.integers(1) if len(op.types) > 1 and op.type(1) is not None else (-1,)
    gone = _at(items, position)
    kept = list(items)
    kept.remove(gone)
    return (contained(Container.SEQUENCE, kept, gone.elem_type),)


@TYPES_BEFORE_ONNX.register("", "SequenceAt")
def _pick(op: Operands) -> tuple[TensorType, ...]:
    items = _sequence(op)
    return (_at(items, op.integers(1)),) if items else ()


@TYPES_BEFORE_ONNX.register("", "SequenceLength")
def _count(op: Operands) -> tuple[TensorType, ...]:
    return (TensorType(_INT64, ()),)


@TYPES_BEFORE_ONNX.register("", "OptionalHasElement")
def _has(op: Operands) -> tuple[TensorType, ...]:
    return (TensorType(_BOOL, ()),)


@TYPES_BEFORE_ONNX.register("", "Optional")
def _wrap(op: Operands) -> tuple[TensorType, ...]:
    item = op.type(0)
    if item is None:
        # Nothing inside; what it would be stands in the attribute `type`.
        return (contained(Container.OPTIONAL, (), 1),)
    return (contained(Container.OPTIONAL, (item,)),)


@TYPES_BEFORE_ONNX.register("", "OptionalGetElement")
def _unwrap(op: Operands) -> tuple[TensorType, ...]:
    known = op.type(0)
    if known is None or known.container is not Container.OPTIONAL:
        return () if known is None else (known,)
    return known.items[:1] if known.items else ()


@TYPES_BEFORE_ONNX.register("", "Identity")
def _same(op: Operands) -> tuple[TensorType, ...]:
    known = op.type(0)
    return (known,) if known is not None and known.container else ()


@TYPES_BEFORE_ONNX.register("", "SplitToSequence")
def _split(op: Operands) -> tuple[TensorType, ...]:
    data = op.type(0)
    shape = op.shape(0)
    if data is None or not shape:
        return ()
    axis = op.integer("axis") % len(shape)
    size, sizes = shape[axis], op.integers(1)
    if size > ITEM_LIMIT and not sizes:
        return ()
    keeps = True
    if len(op.types) > 1 and op.type(1) is not None:
        if sizes is None:
            # As many parts as there are sizes; how they differ changes no byte of the whole.
            count = (op.shape(1) or (1,))[0] if op.dims(1) else None
            if not count or count > ITEM_LIMIT:
                return ()
            sizes = tuple(size // count + (index < size % count) for index in range(count))
        elif op.dims(1) == ():
            step = max(1, sizes[0])
            if size // step > ITEM_LIMIT:
                return ()
            sizes = tuple(min(step, size - start) for start in range(0, size, step))
    else:
        keeps = bool(op.integer("keepdims", 1))
        sizes = (1,) * size
    if len(sizes) > ITEM_LIMIT:
        return ()
    before, after = shape[:axis], shape[axis + 1 :]
    parts = [TensorType(data.elem_type, (*before, *((part,) if keeps else ()), *after)) for part in sizes]
    return (contained(Container.SEQUENCE, parts, data.elem_type),)


@TYPES_BEFORE_ONNX.register("", "ConcatFromSequence")
def _join(op: Operands) -> tuple[TensorType, ...]:
    items = _sequence(op)
    if not items:
        return ()
    shapes = [item.shape for item in items]
    first = shapes[0]
    if first is None or any(shape is None or len(shape) != len(first) for shape in shapes):
        return ()
    if op.integer("new_axis"):
        axis = op.integer("axis") % (len(first) + 1)
        return (TensorType(items[0].elem_type, (*first[:axis], len(items), *first[axis:])),)
    if not first:
        return ()
    axis = op.integer("axis") % len(first)
    total = sum(shape[axis] for shape in shapes if shape is not None)
    return (TensorType(items[0].elem_type, (*first[:axis], total, *first[axis + 1 :])),)
