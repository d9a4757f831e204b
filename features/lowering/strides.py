"""Strides of tensors, in elements: which reorderings are free, and which force a copy.

The rules are those of strided array libraries: a reshape is free when every group of merged dimensions is
evenly spaced, a transposition always is. Dimensions of size 1 may have any stride. `None` stands for row-
major order.
"""

from __future__ import annotations

from typing import TypeAlias

from predictor.features.graph import Shape

Strides: TypeAlias = tuple[int, ...]


def row_major(shape: Shape) -> Strides:
    """Strides of a contiguous tensor."""
    return in_order(shape, tuple(range(len(shape))))


def in_order(shape: Shape, order: tuple[int, ...]) -> Strides:
    """Strides of a dense tensor whose axes are nested as in `order`, outermost first."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(1, shape[axis])
    return tuple(strides)


def is_dense_in_order(shape: Shape, strides: Strides, order: tuple[int, ...]) -> bool:
    """True when the tensor fills memory without gaps, axes nested as in `order`."""
    expected = in_order(shape, order)
    return all(n == 1 or have == want for n, have, want in zip(shape, strides, expected, strict=True))


def is_row_major(shape: Shape, strides: Strides) -> bool:
    """True for a contiguous tensor."""
    return is_dense_in_order(shape, strides, tuple(range(len(shape))))


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of axes of NHWC and its relatives."""
    return (0, *range(2, rank), 1)


def axes_by_stride(shape: Shape, strides: Strides) -> tuple[int, ...]:
    """Axes from the outermost to the innermost in memory; equal strides and size-1 axes keep their place."""
    wide = iter(sorted((a for a in range(len(shape)) if shape[a] > 1), key=lambda a: (-strides[a], a)))
    return tuple(axis if shape[axis] == 1 else next(wide) for axis in range(len(shape)))


def reshaped(shape: Shape, strides: Strides, new_shape: Shape) -> Strides | None:
    """Strides of the same memory seen as `new_shape`, or None when only a copy can do it."""
    if 0 in shape:
        return row_major(new_shape)
    found = [0] * len(new_shape)
    axis = len(new_shape) - 1
    span, inner = 1, strides[-1] if strides else 1
    for old in range(len(shape) - 1, -1, -1):
        span *= shape[old]
        ends = old == 0 or (shape[old - 1] != 1 and strides[old - 1] != span * inner)
        if not ends:
            continue
        filled = 1
        while axis >= 0 and (filled < span or new_shape[axis] == 1):
            found[axis] = filled * inner
            filled *= new_shape[axis]
            axis -= 1
        if filled != span:
            return None
        if old:
            span, inner = 1, strides[old - 1]
    return tuple(found) if axis < 0 else None
