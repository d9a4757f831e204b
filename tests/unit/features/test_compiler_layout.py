"""Which compiled convolutions run channels-last: inductor's rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from predictor.features.builder import Tensor
from predictor.features.lowering.compiler_layout import lays_images_last
from predictor.features.lowering.lower import lower
from predictor.types import Runtime
from tests.unit.features.spelling import Spelling, only, spelled

SHAPE = (2, 128, 8, 8)


def dense(s: Spelling, x: Tensor) -> Tensor:
    return s.conv(x, 128, kernel=3)


def depthwise(s: Spelling, x: Tensor) -> Tensor:
    return s.conv(s.conv(x, 128, kernel=3, groups=128), 128, kernel=1)


def grouped(s: Spelling, x: Tensor) -> Tensor:
    return s.conv(s.conv(x, 128, kernel=3, groups=2), 128, kernel=1)


def narrowing(s: Spelling, x: Tensor) -> Tensor:
    return s.conv(x, 32, kernel=3)


def few(s: Spelling, x: Tensor) -> Tensor:
    found = dense(s, x)
    for _ in range(300):
        found = s("Relu", found)
    return found


@pytest.mark.parametrize(
    ("build", "infers", "trains"),
    [
        (dense, True, True),
        (depthwise, True, True),
        (grouped, False, False),
        (narrowing, True, False),
        (few, False, False),
        (lambda s, x: s("Relu", x), False, False),
    ],
)
def test_the_rule(build: Callable[[Spelling, Tensor], Tensor], infers: bool, trains: bool) -> None:
    graph = spelled(build, SHAPE)
    assert lays_images_last(graph, training=False) == infers
    assert lays_images_last(graph, training=True) == trains


def test_compiled_convolutions_are_marked_and_eager_ones_are_not() -> None:
    graph = spelled(dense, SHAPE)
    assert only(lower(graph, runtime=Runtime.COMPILED), "Conv").attributes["perfcast_channels_last"] == 1
    assert "perfcast_channels_last" not in only(lower(graph), "Conv").attributes
