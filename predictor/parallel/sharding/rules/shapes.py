"""Shard rules of ops that move or rename elements: reshapes, transpositions, joins and cuts."""

from __future__ import annotations

from itertools import accumulate

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Recut, Split, cut, fits, reshaped, segments
from predictor.parallel.sharding.registry import LINEAR, SHARD_RULES, Axis, Linear, along
from predictor.parallel.sharding.rules.parts import same_dimensions

_RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
# Beyond these a cut is no list of joined weights any more.
_MOST_SEGMENTS = 64

LINEAR.register("", *_RESHAPES, "Transpose")(Linear.FIRST)
LINEAR.register("perfcast", "Contiguous")(Linear.FIRST)


@SHARD_RULES.register("", *_RESHAPES)
def reshape(op: OpView, operand: int, split: Split, parts: int) -> Axis | Recut | str:
    """The dimension that holds the cut before and after."""
    if operand not in (0, -1):
        return f"{op.op_type} cannot be split along its sizes"
    source, target = op.input(0).shape, op.output().shape
    if operand < 0:
        source, target = target, source
    found = reshaped(split, source, target, parts)
    if not isinstance(found, Split):
        return found
    return along(op, {operand: split, -1 - operand: found})


@SHARD_RULES.register("", "Transpose")
def transpose(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """The dimension moves."""
    order = op.integers("perm", tuple(range(len(op.input(0).shape)))[::-1])
    dim = order.index(split.dim) if operand == 0 else order[split.dim]
    return along(op, {operand: split, -1 - operand: Split(dim, split.outer, split.sizes)})


@SHARD_RULES.register("", "Split")
def split_parts(op: OpView, operand: int, split: Split, parts: int) -> Axis | Recut | str:
    """Along another dimension as is; along its own each rank holds a share of every part."""
    data, outputs = op.input(0), op.outputs
    axis = op.integer("axis") % len(data.shape)
    if split.dim != axis:
        return along(op, {0: split, **{~index: split for index in range(len(outputs))}})
    sizes = [value.shape[axis] if value else 0 for value in outputs]
    if 0 in sizes:
        return "Split drops a part"
    return _joined(op, operand, split, 0, [~index for index in range(len(outputs))], sizes, parts)


@SHARD_RULES.register("", "Concat")
def concat(op: OpView, operand: int, split: Split, parts: int) -> Axis | Recut | str:
    """Along another dimension as is; along its own each rank joins its shares."""
    axis = op.integer("axis") % len(op.output().shape)
    if split.dim != axis:
        return along(op, {-1: split, **dict.fromkeys(range(len(op.inputs)), split)})
    sizes = [value.shape[axis] if value else 0 for value in op.inputs]
    return _joined(op, operand, split, -1, list(range(len(op.inputs))), sizes, parts)


def _joined(
    op: OpView, operand: int, split: Split, whole: int, pieces: list[int], sizes: list[int], parts: int
) -> Axis | Recut | str:
    """Operand `whole` is the operands `pieces` of these `sizes`, joined along the dimension that is cut."""
    if len(split.sizes) * split.outer > _MOST_SEGMENTS:
        return f"{op.op_type} joins dimensions that are folded into one another"
    if operand != whole:
        own = segments(split)
        same = sizes[pieces.index(operand)]
        every = [own if size == same else (size,) for size in sizes]
        places: dict[int, Split | None] = {
            piece: cut(split.dim, found) for piece, found in zip(pieces, every, strict=True)
        }
        places[whole] = cut(split.dim, [size for found in every for size in found])
        fitting = all(fits(place, parts) for place in places.values() if place)
        return along(op, places) if fitting else f"{op.op_type}: parts of {sizes} over {parts} ranks"
    ends = {0, *accumulate(segments(split))}
    if not ends.issuperset(accumulate(sizes)):
        wanted = cut(split.dim, sizes)
        return Recut(wanted) if fits(wanted, parts) else f"{op.op_type}: parts of {sizes} over {parts} ranks"
    remaining = list(segments(split))
    places = {whole: split}
    for piece, size in zip(pieces, sizes, strict=True):
        taken: list[int] = []
        while sum(taken) < size:
            taken.append(remaining.pop(0))
        places[piece] = cut(split.dim, taken)
    return along(op, places)


@SHARD_RULES.register("", "Slice", "Pad", "Tile")
def resized(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along dimensions that keep their length."""
    data, out = op.input(0).shape, op.output().shape
    changed = {dim for dim, (before, after) in enumerate(zip(data, out, strict=False)) if before != after}
    return same_dimensions(op, operand, split, changed)


@SHARD_RULES.register("", "Trilu")
def triangle(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along the batch of matrices."""
    rank = len(op.input(0).shape)
    return same_dimensions(op, operand, split, {rank - 1, rank - 2})
