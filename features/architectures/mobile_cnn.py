"""Small image classifiers: MobileNetV2, MNASNet, EfficientNet, ShuffleNetV2.

The first three repeat one block, the inverted residual: widen by a 1x1, filter per channel, narrow by a 1x1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

from predictor.features.architectures.cnn import Activation, classifier, conv_norm, squeeze_excite
from predictor.features.architectures.layers import dropout
from predictor.features.builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class Stage:
    """Inverted residuals of one width; the first strides."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    repeats: int


def inverted_residual(
    b: GraphBuilder,
    x: Tensor,
    channels: int,
    *,
    stride: int,
    expansion: float,
    kernel: int = 3,
    act: Activation,
    squeezed: int = 0,
    gate: str = "Sigmoid",
) -> Tensor:
    """One block, with a shortcut where size and width stay; `squeezed` channels in the gate, 0: none."""
    hidden = round(x.size(1) * expansion)
    y = act(conv_norm(b, x, hidden, 1, act=False)) if expansion != 1 else x
    y = act(conv_norm(b, y, hidden, kernel, stride=stride, groups=hidden, act=False))
    y = squeeze_excite(b, y, squeezed, b.relu if gate != "Sigmoid" else act, gate) if squeezed else y
    y = conv_norm(b, y, channels, 1, act=False)
    return b.add(x, y) if stride == 1 and x.size(1) == channels else y


def mobilenet_v2(
    *, batch: int | str = "batch", image: int = 224, classes: int = 1000, width: float = 1.0
) -> bytes:
    """MobileNetV2 (Sandler et al. 2018): 3,504,872 parameters at width 1.0."""
    b = GraphBuilder("mobilenet_v2")
    stem = multiple_of_8(32 * width)
    x = b.relu6(conv_norm(b, b.input("image", (batch, 3, image, image)), stem, 3, stride=2, act=False))
    for stage in _MOBILENET_V2:
        for index in range(stage.repeats):
            x = inverted_residual(
                b,
                x,
                multiple_of_8(stage.channels * width),
                stride=1 if index else stage.stride,
                expansion=stage.expansion,
                act=b.relu6,
            )
    x = b.relu6(conv_norm(b, x, max(1280, multiple_of_8(1280 * width)), 1, act=False))
    return b.build([classifier(b, x, classes)])


def mnasnet(
    width: float, *, batch: int | str = "batch", image: int = 224, classes: int = 1000, training: bool = False
) -> bytes:
    """MNASNet-B1 (Tan et al. 2018) at a width, stem scaled too."""
    b = GraphBuilder("mnasnet")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), multiple_of_8(32 * width), 3, stride=2)
    x = conv_norm(b, x, x.size(1), 3, groups=x.size(1))
    x = conv_norm(b, x, multiple_of_8(16 * width), 1, act=False)
    for stage in _MNASNET:
        for index in range(stage.repeats):
            x = inverted_residual(
                b,
                x,
                multiple_of_8(stage.channels * width),
                stride=1 if index else stage.stride,
                expansion=stage.expansion,
                kernel=stage.kernel,
                act=b.relu,
            )
    x = b.flatten(b.global_pool(conv_norm(b, x, 1280, 1)))
    return b.build([b.linear(dropout(b, training, x), classes)])


def efficientnet(
    width: float,
    depth: float,
    resolution: int,
    *,
    batch: int | str = "batch",
    image: int | None = None,
    classes: int = 1000,
    training: bool = False,
) -> bytes:
    """EfficientNet (Tan & Le 2019); images default to the resolution of the size."""
    b = GraphBuilder("efficientnet")
    side = image or resolution
    x = b.input("image", (batch, 3, side, side))
    x = b.silu(conv_norm(b, x, multiple_of_8(32 * width), 3, stride=2, act=False))
    for stage in _EFFICIENTNET:
        for index in range(ceil(stage.repeats * depth)):
            x = inverted_residual(
                b,
                x,
                multiple_of_8(stage.channels * width),
                stride=1 if index else stage.stride,
                expansion=stage.expansion,
                kernel=stage.kernel,
                act=b.silu,
                squeezed=max(1, x.size(1) // 4),
            )
    x = b.silu(conv_norm(b, x, 4 * x.size(1), 1, act=False))
    x = dropout(b, training, b.flatten(b.global_pool(x)))
    return b.build([b.linear(x, classes)])


def shufflenet_v2(
    width: str = "x1_0", *, batch: int | str = "batch", image: int = 224, classes: int = 1000
) -> bytes:
    """ShuffleNetV2 (Ma et al. 2018): 2,278,604 parameters at width x1_0.

    Images of up to 64 pixels take the small-image stem: a stride-1 convolution and no pool.
    """
    b = GraphBuilder("shufflenet_v2")
    x = b.input("image", (batch, 3, image, image))
    if image > 64:
        x = b.max_pool(conv_norm(b, x, 24, 3, stride=2), kernel=3, stride=2, padding=1)
    else:
        x = conv_norm(b, x, 24, 3)
    *stages, last = _SHUFFLENET_WIDTHS[width]
    for channels, repeats in zip(stages, (4, 8, 4), strict=True):
        x = _shuffle_down(b, x, channels)
        for _ in range(repeats - 1):
            x = _shuffle_unit(b, x)
    return b.build([classifier(b, conv_norm(b, x, last, 1), classes)])


def multiple_of_8(channels: float) -> int:
    """Rounded to a multiple of 8, never by more than a tenth downwards (as the published code does)."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _shuffle_branch(b: GraphBuilder, x: Tensor, channels: int, stride: int) -> Tensor:
    y = conv_norm(b, x, channels, 1)
    y = conv_norm(b, y, channels, 3, stride=stride, groups=channels, act=False)
    return conv_norm(b, y, channels, 1)


def _shuffled(b: GraphBuilder, parts: tuple[Tensor, Tensor]) -> Tensor:
    """Join two halves and interleave their channels."""
    x = b.concat(parts, axis=1)
    channels, height, width = x.size(1), x.size(2), x.size(3)
    swapped = b.transpose(b.reshape(x, [0, 2, channels // 2, height, width]), [0, 2, 1, 3, 4])
    return b.reshape(swapped, [0, channels, height, width])


def _shuffle_unit(b: GraphBuilder, x: Tensor) -> Tensor:
    kept, changed = b.split(x, 2, axis=1)
    return _shuffled(b, (kept, _shuffle_branch(b, changed, changed.size(1), 1)))


def _shuffle_down(b: GraphBuilder, x: Tensor, channels: int) -> Tensor:
    width = x.size(1)
    shortcut = conv_norm(b, x, width, 3, stride=2, groups=width, act=False)
    shortcut = conv_norm(b, shortcut, channels // 2, 1)
    return _shuffled(b, (shortcut, _shuffle_branch(b, x, channels // 2, 2)))


_MOBILENET_V2 = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 3, 2, 32, 3),
    Stage(6, 3, 2, 64, 4),
    Stage(6, 3, 1, 96, 3),
    Stage(6, 3, 2, 160, 3),
    Stage(6, 3, 1, 320, 1),
)
_MNASNET = (
    Stage(3, 3, 2, 24, 3),
    Stage(3, 5, 2, 40, 3),
    Stage(6, 5, 2, 80, 3),
    Stage(6, 3, 1, 96, 2),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)
_EFFICIENTNET = (
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
)
# Width, depth, resolution of each published size.
_EFFICIENTNET_SIZES = {
    "b0": (1.0, 1.0, 224),
    "b1": (1.0, 1.1, 240),
    "b2": (1.1, 1.2, 260),
    "b3": (1.2, 1.4, 300),
    "b4": (1.4, 1.8, 380),
    "b5": (1.6, 2.2, 456),
    "b6": (1.8, 2.6, 528),
    "b7": (2.0, 3.1, 600),
}
_SHUFFLENET_WIDTHS = {
    "x0_5": (48, 96, 192, 1024),
    "x1_0": (116, 232, 464, 1024),
    "x1_5": (176, 352, 704, 1024),
    "x2_0": (244, 488, 976, 2048),
}

MOBILE_CNNS: dict[str, Callable[..., bytes]] = {
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    **{f"shufflenet_v2_{width}": partial(shufflenet_v2, width) for width in _SHUFFLENET_WIDTHS},
    **{
        f"mnasnet{name}": partial(mnasnet, width)
        for name, width in (("0_5", 0.5), ("0_75", 0.75), ("1_0", 1.0), ("1_3", 1.3))
    },
    **{f"efficientnet_{name}": partial(efficientnet, *sizes) for name, sizes in _EFFICIENTNET_SIZES.items()},
}
