"""What image classifiers share: convolution with norm, squeeze and excitation, the last linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from predictor.errors import InvalidRequest
from predictor.features.builder import GraphBuilder, Tensor

Activation: TypeAlias = Callable[[Tensor], Tensor]


def conv_norm(
    b: GraphBuilder,
    x: Tensor,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    act: bool = True,
) -> Tensor:
    """Convolution without bias, batch normalisation and (by default) ReLU."""
    y = b.batch_norm(b.conv(x, channels, kernel=kernel, stride=stride, groups=groups))
    return b.relu(y) if act else y


def squeeze_excite(
    b: GraphBuilder, x: Tensor, squeezed: int, act: Activation, gate: str = "Sigmoid"
) -> Tensor:
    """x scaled per channel by a gate that two 1x1 convolutions compute from its means."""
    narrow = act(b.conv(b.global_pool(x), squeezed, kernel=1, bias=True))
    return b.mul(x, b.op(gate, [b.conv(narrow, x.size(1), kernel=1, bias=True)]))


def classifier(b: GraphBuilder, x: Tensor, classes: int) -> Tensor:
    """Mean over positions and one linear layer."""
    if x.size(2) < 1 or x.size(3) < 1:
        raise InvalidRequest(
            "the image is too small: nothing is left to pool; try a larger one", field="image"
        )
    return b.linear(b.flatten(b.global_pool(x)), classes)
