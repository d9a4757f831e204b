"""Image classifiers as graphs: ResNet-50, VGG-16, MobileNetV2, ShuffleNetV2.

Sizes are those of the papers and of the common implementations; parameter counts are asserted in the tests.
Every builder takes `batch` (a number or a symbol), `image` (side of the square RGB input) and `classes`.
"""

from __future__ import annotations

from predictor.errors import InvalidRequest
from predictor.features.architectures.layers import dropout
from predictor.features.builder import GraphBuilder, Tensor


def resnet50(*, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """ResNet-50 v1.5 (He et al. 2015, stride on the 3x3): 25,557,032 parameters."""
    b = GraphBuilder("resnet50")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 64, 7, stride=2)
    x = b.max_pool(x, kernel=3, stride=2, padding=1)
    for stage, depth in enumerate((3, 4, 6, 3)):
        for index in range(depth):
            x = _bottleneck(b, x, 64 << stage, 2 if stage and not index else 1)
    return b.build([classifier(b, x, classes)])


def vgg16(
    *, batch: int | str = "batch", image: int = 224, classes: int = 1000, training: bool = False
) -> bytes:
    """VGG-16 (Simonyan & Zisserman 2014) with its three dense layers: 138,357,544 parameters at 224.

    `training` adds the two dropouts.
    """
    b = GraphBuilder("vgg16")
    x = b.input("image", (batch, 3, image, image))
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = b.relu(b.conv(x, channels, kernel=3, bias=True))
        x = b.max_pool(x, kernel=2)
    x = b.flatten(x)
    for _ in range(2):
        x = dropout(b, training, b.relu(b.linear(x, 4096)))
    return b.build([b.linear(x, classes)])


def mobilenet_v2(
    *, batch: int | str = "batch", image: int = 224, classes: int = 1000, width: float = 1.0
) -> bytes:
    """MobileNetV2 (Sandler et al. 2018): 3,504,872 parameters at width 1.0."""
    b = GraphBuilder("mobilenet_v2")
    stem = _multiple_of_8(32 * width)
    x = b.relu6(conv_norm(b, b.input("image", (batch, 3, image, image)), stem, 3, stride=2, act=False))
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, base, repeats, first_stride in stages:
        channels = _multiple_of_8(base * width)
        for index in range(repeats):
            x = _inverted_residual(b, x, channels, first_stride if not index else 1, expansion)
    x = b.relu6(conv_norm(b, x, max(1280, _multiple_of_8(1280 * width)), 1, act=False))
    return b.build([classifier(b, x, classes)])


def shufflenet_v2(*, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """ShuffleNetV2 at width 1.0 (Ma et al. 2018): 2,278,604 parameters.

    Images of up to 64 pixels take the small-image stem: a stride-1 convolution and no pool.
    """
    b = GraphBuilder("shufflenet_v2")
    x = b.input("image", (batch, 3, image, image))
    if image > 64:
        x = b.max_pool(conv_norm(b, x, 24, 3, stride=2), kernel=3, stride=2, padding=1)
    else:
        x = conv_norm(b, x, 24, 3)
    for channels, repeats in ((116, 4), (232, 8), (464, 4)):
        x = _shuffle_down(b, x, channels)
        for _ in range(repeats - 1):
            x = _shuffle_unit(b, x)
    return b.build([classifier(b, conv_norm(b, x, 1024, 1), classes)])


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


def classifier(b: GraphBuilder, x: Tensor, classes: int) -> Tensor:
    """Mean over positions and one linear layer."""
    if x.size(2) < 1 or x.size(3) < 1:
        raise InvalidRequest(
            "the image is too small: nothing is left to pool; try a larger one", field="image"
        )
    return b.linear(b.flatten(b.global_pool(x)), classes)


def _multiple_of_8(channels: float) -> int:
    """Rounded to a multiple of 8, never by more than a tenth downwards (as the published code does)."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _bottleneck(b: GraphBuilder, x: Tensor, width: int, stride: int) -> Tensor:
    channels = 4 * width
    y = conv_norm(b, conv_norm(b, x, width, 1), width, 3, stride=stride)
    y = conv_norm(b, y, channels, 1, act=False)
    same = stride == 1 and x.size(1) == channels
    return b.relu(b.add(y, x if same else conv_norm(b, x, channels, 1, stride=stride, act=False)))


def _inverted_residual(b: GraphBuilder, x: Tensor, channels: int, stride: int, expansion: int) -> Tensor:
    hidden = x.size(1) * expansion
    y = b.relu6(conv_norm(b, x, hidden, 1, act=False)) if expansion > 1 else x
    y = b.relu6(conv_norm(b, y, hidden, 3, stride=stride, groups=hidden, act=False))
    y = conv_norm(b, y, channels, 1, act=False)
    return b.add(x, y) if stride == 1 and x.size(1) == channels else y


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
