"""Cuts of dimensions: what reshapes make of them, element by element."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.parallel.sharding.layout import Recut, Split, cut, fits, is_exact, local_shape, reshaped
from tests.unit.parallel.sharding.spmd import owners


def test_equal_segments_are_counted() -> None:
    assert cut(1, (8, 8, 8)) == Split(1, 3, (8,))
    assert cut(1, (8, 4, 4)) == Split(1, 1, (8, 4, 4))


@pytest.mark.parametrize(
    ("size", "parts", "fitting", "exact"),
    [(12, 4, True, True), (25, 2, False, False), (50257, 8, True, False), (3, 4, False, False)],
)
def test_words_may_be_padded_heads_may_not(size: int, parts: int, fitting: bool, exact: bool) -> None:
    split = cut(0, (size,))
    assert fits(split, parts) is fitting
    assert is_exact(split, parts) is exact


def test_local_shapes() -> None:
    assert local_shape((2, 24, 5), cut(1, (8, 8, 8)), 4) == (2, 6, 5)
    assert local_shape((50257, 8), cut(0, (50257,)), 8) == (6283, 8)
    assert local_shape((2, 3), None, 4) == (2, 3)


@pytest.mark.parametrize(
    ("split", "source", "target", "expected"),
    [
        # positions of a batch folded into rows, and back
        (Split(1, 1, (8,)), (2, 8, 5), (16, 5), Split(0, 2, (8,))),
        (Split(0, 2, (8,)), (16, 5), (2, 8, 5), Split(1, 1, (8,))),
        # heads
        (Split(2, 1, (12,)), (2, 8, 12), (2, 8, 4, 3), Split(2, 1, (4,))),
        (Split(2, 1, (4,)), (2, 8, 4, 3), (2, 8, 12), Split(2, 1, (12,))),
        # queries, keys and values side by side: only the heads within each can be cut
        (Split(2, 1, (24,)), (2, 8, 24), (2, 8, 3, 4, 2), Recut(Split(2, 3, (8,)))),
        (Split(2, 3, (8,)), (2, 8, 24), (2, 8, 3, 4, 2), Split(3, 1, (4,))),
        # unequal segments stay in one dimension
        (Split(1, 1, (8, 4, 4)), (2, 16), (2, 1, 16), Split(2, 1, (8, 4, 4))),
    ],
)
def test_reshapes(
    split: Split, source: tuple[int, ...], target: tuple[int, ...], expected: Split | Recut
) -> None:
    assert reshaped(split, source, target, 2) == expected


@pytest.mark.parametrize(
    ("split", "source", "target", "said"),
    [
        (Split(1, 1, (5,)), (2, 5), (10,), "5 do not divide"),
        (Split(1, 1, (6,)), (4, 6), (3, 8), "mixes"),
        (Split(1, 1, (8, 4)), (2, 12), (2, 4, 3), "segments"),
    ],
)
def test_what_a_reshape_cannot_keep(
    split: Split, source: tuple[int, ...], target: tuple[int, ...], said: str
) -> None:
    found = reshaped(split, source, target, 2)
    assert isinstance(found, str)
    assert said in found


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Split, tuple[int, ...], tuple[int, ...], int]:
    """A split of a random shape, and another shape of as many elements."""
    parts = draw(st.sampled_from([2, 3, 4]))
    factors = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=5))
    bounds = draw(st.lists(st.booleans(), min_size=len(factors) - 1, max_size=len(factors) - 1))
    shapes = []
    for joined in (bounds, draw(st.permutations(bounds))):
        shape = [factors[0]]
        for factor, apart in zip(factors[1:], joined, strict=True):
            if apart:
                shape.append(factor)
            else:
                shape[-1] *= factor
        shapes.append(tuple(shape))
    dim = draw(st.integers(0, len(shapes[0]) - 1))
    outer = draw(st.sampled_from([n for n in range(1, shapes[0][dim] + 1) if shapes[0][dim] % n == 0]))
    return Split(dim, outer, (shapes[0][dim] // outer,)), shapes[0], shapes[1], parts


@given(reshapes())
def test_every_element_stays_with_its_rank(
    case: tuple[Split, tuple[int, ...], tuple[int, ...], int],
) -> None:
    split, source, target, parts = case
    found = reshaped(split, source, target, parts) if is_exact(split, parts) else ""
    if not isinstance(found, Split):
        return

    def owner(shape: tuple[int, ...], of: Split) -> np.ndarray:
        view = [1] * len(shape)
        view[of.dim] = shape[of.dim]
        return np.broadcast_to(owners(of, parts).reshape(view), shape)

    np.testing.assert_array_equal(owner(source, split).reshape(target), owner(target, found))
    assert prod(local_shape(source, split, parts)) == prod(local_shape(target, found, parts))
