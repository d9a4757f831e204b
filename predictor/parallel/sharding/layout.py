"""How one dimension of a tensor is cut over the ranks of a group, and what a Reshape makes of the cut.

A dimension is seen as `outer` repetitions of segments, and every segment is cut into equal parts, one a rank.
A joint projection of queries, keys and values is three segments; positions of a batch folded into rows are as
many repetitions as there are samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from predictor.features.graph import Shape

# Padding that frameworks accept so that a dimension divides, as a share of it (50,257 words over 8 ranks); 25
# heads over 2 ranks would be 1/25.
_PADDING = 1 / 64
# Leading factors of a dimension that may be kept together on each rank: [3, heads, size] has three.
_FEW = 3


class Split(NamedTuple):
    """Dimension `dim` is `outer` x `sizes` elements long, and each segment is cut.

    A value without a Split is whole on every rank.
    """

    dim: int
    outer: int
    sizes: tuple[int, ...]


class Recut(NamedTuple):
    """What a rule answers to a cut that it could take in another form: cut the same operand like this."""

    split: Split


def cut(dim: int, segments: Iterable[int]) -> Split:
    """A split of segments in order; equal ones are counted."""
    sizes = tuple(segments)
    if len(set(sizes)) == 1:
        return Split(dim, len(sizes), sizes[:1])
    return Split(dim, 1, sizes)


def segments(split: Split) -> tuple[int, ...]:
    """All segments in order."""
    return split.sizes * split.outer


def fits(split: Split, parts: int) -> bool:
    """Whether every segment divides into `parts`, but for negligible padding."""
    return all(
        size >= parts and (size % parts == 0 or (-size % parts) <= _PADDING * size) for size in split.sizes
    )


def is_exact(split: Split, parts: int) -> bool:
    """Whether every segment divides without padding."""
    return all(size % parts == 0 for size in split.sizes)


def local_shape(shape: Shape, split: Split | None, parts: int) -> Shape:
    """Shape on one rank."""
    if split is None:
        return shape
    length = split.outer * sum(-(-size // parts) for size in split.sizes)
    return (*shape[: split.dim], length, *shape[split.dim + 1 :])


def reshaped(split: Split, source: Shape, target: Shape, parts: int) -> Split | Recut | str:
    """The same cut after elements in row-major order were given the shape `target`.

    Recut where only the inner part of a dimension can be cut; a reason where nothing can.
    """
    outer = prod(source[: split.dim]) * split.outer
    inner = prod(source[split.dim + 1 :])
    # The dimension of the target that holds the segments: the one within which `outer` repetitions begin.
    before, dim = 1, 0
    while dim < len(target) and outer >= before * target[dim]:
        before *= target[dim]
        dim += 1
    if dim == len(target):
        return "no dimension holds the cut after a reshape"
    after = prod(target[dim + 1 :])
    repeats, rest = divmod(outer, before)
    if rest or target[dim] % repeats:
        return "a reshape mixes what is cut with what is not"
    if len(split.sizes) > 1:
        sizes = [size * inner for size in split.sizes]
        if any(size % after or size // after % parts for size in sizes):
            return "a reshape mixes segments"
        return Split(dim, repeats, tuple(size // after for size in sizes))
    length = target[dim] // repeats
    found = Split(dim, repeats, (length,))
    if length % parts == 0 or (length == split.sizes[0] and fits(found, parts)):
        return found
    return _inside(split, source, target, dim, parts) or f"{length} do not divide over {parts} ranks"


def _inside(split: Split, source: Shape, target: Shape, dim: int, parts: int) -> Recut | None:
    """The cut of the source's dimension that keeps a few leading factors of it on every rank.

    Joint weights are followed by heads and their size; two heads and their size are no joint weights.
    """
    before = prod(source[: split.dim])
    for inner in range(dim + 1, len(target)):
        leading = prod(target[:inner])
        kept, rest = divmod(leading, before)
        if rest or source[split.dim] % kept or prod(target[dim:inner]) > _FEW:
            return None
        if target[inner] > 1:
            joint = prod(target[inner + 1 :]) > prod(source[split.dim + 1 :])
            fitting = joint and target[inner] % parts == 0 and kept > split.outer
            return Recut(Split(split.dim, kept, (source[split.dim] // kept,))) if fitting else None
    return None
