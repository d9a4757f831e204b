"""Image classifiers that join branches by concatenation: DenseNet, GoogLeNet, Inception v3.

As torchvision builds them; `training` adds auxiliary classifiers and dropouts where the models have them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from predictor.features.architectures.cnn import classifier, conv_norm
from predictor.features.architectures.layers import dropout
from predictor.features.architectures.plain_cnn import ceil_pool
from predictor.features.builder import GraphBuilder, Pair, Tensor

# Growth, channels of the stem, layers per block.
_DENSENETS = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}


def densenet(depth: int, *, batch: int | str = "batch", image: int = 224, classes: int = 1000) -> bytes:
    """DenseNet-BC (Huang et al. 2017); every layer joins all maps before it anew, as the framework does."""
    growth, channels, blocks = _DENSENETS[depth]
    b = GraphBuilder(f"densenet{depth}")
    x = b.max_pool(
        conv_norm(b, b.input("image", (batch, 3, image, image)), channels, 7, stride=2),
        kernel=3,
        stride=2,
        padding=1,
    )
    for place, layers in enumerate(blocks):
        if place:
            x = b.conv(b.relu(b.batch_norm(x)), x.size(1) // 2, kernel=1)
            x = b.avg_pool(x, kernel=2)
        maps = [x]
        for _ in range(layers):
            joined = b.concat(maps, axis=1) if len(maps) > 1 else x
            narrow = b.conv(b.relu(b.batch_norm(joined)), 4 * growth, kernel=1)
            maps.append(b.conv(b.relu(b.batch_norm(narrow)), growth, kernel=3))
        x = b.concat(maps, axis=1)
    return b.build([classifier(b, b.relu(b.batch_norm(x)), classes)])


# Widths of an Inception block: 1x1; reduce, 3x3; reduce, second 3x3 (the published 5x5); after the pool.
_GOOGLENET = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(
    *, batch: int | str = "batch", image: int = 224, classes: int = 1000, training: bool = False
) -> bytes:
    """GoogLeNet with norms and 3x3 for 5x5, as torchvision: 6,624,904 parameters in inference."""
    b = GraphBuilder("googlenet")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 64, 7, stride=2)
    x = conv_norm(b, conv_norm(b, ceil_pool(b, x), 64, 1), 192, 3)
    auxiliary = []
    for level, blocks in enumerate(_GOOGLENET):
        x = ceil_pool(b, x, kernel=2 if level == 2 else 3)
        for place, widths in enumerate(blocks):
            if training and level == 1 and place in (1, 4):
                auxiliary.append(_googlenet_auxiliary(b, x, classes))
            x = _googlenet_block(b, x, widths)
    x = dropout(b, training, b.flatten(b.global_pool(x)))
    return b.build([b.linear(x, classes), *auxiliary])


def _googlenet_block(b: GraphBuilder, x: Tensor, widths: tuple[int, ...]) -> Tensor:
    one, reduce3, three, reduce5, five, pooled = widths
    return b.concat(
        [
            conv_norm(b, x, one, 1),
            conv_norm(b, conv_norm(b, x, reduce3, 1), three, 3),
            conv_norm(b, conv_norm(b, x, reduce5, 1), five, 3),
            conv_norm(b, ceil_pool(b, x, stride=1, padding=1), pooled, 1),
        ],
        axis=1,
    )


def _googlenet_auxiliary(b: GraphBuilder, x: Tensor, classes: int) -> Tensor:
    pooled = conv_norm(b, b.avg_pool(x, kernel=x.size(2) // 4), 128, 1)
    hidden = b.relu(b.linear(b.flatten(pooled), 1024))
    return b.linear(dropout(b, True, hidden), classes)


def inception_v3(
    *, batch: int | str = "batch", image: int = 299, classes: int = 1000, training: bool = False
) -> bytes:
    """Inception v3 (Szegedy et al. 2015): 23,834,568 parameters, 27,161,264 in training."""
    b = GraphBuilder("inception_v3")
    x = _valid(b, b.input("image", (batch, 3, image, image)), 32, 3, stride=2)
    x = conv_norm(b, _valid(b, x, 32, 3), 64, 3)
    x = _valid(b, b.max_pool(x, kernel=3, stride=2), 80, 1)
    x = b.max_pool(_valid(b, x, 192, 3), kernel=3, stride=2)
    for pooled in (32, 64, 64):
        x = _inception_a(b, x, pooled)
    x = _inception_b(b, x)
    for width in (128, 160, 160, 192):
        x = _inception_c(b, x, width)
    auxiliary = [_inception_auxiliary(b, x, classes)] if training else []
    x = _inception_d(b, x)
    for _ in range(2):
        x = _inception_e(b, x)
    x = dropout(b, training, b.flatten(b.global_pool(x)))
    return b.build([b.linear(x, classes), *auxiliary])


def _valid(b: GraphBuilder, x: Tensor, channels: int, kernel: Pair, *, stride: int = 1) -> Tensor:
    return b.relu(b.batch_norm(b.conv(x, channels, kernel=kernel, stride=stride, padding=0)))


def _chain(b: GraphBuilder, x: Tensor, *convolutions: tuple[int, Pair]) -> Tensor:
    for channels, kernel in convolutions:
        x = b.relu(b.batch_norm(b.conv(x, channels, kernel=kernel)))
    return x


def _mean_then(b: GraphBuilder, x: Tensor, channels: int) -> Tensor:
    return conv_norm(b, b.avg_pool(x, kernel=3, stride=1, padding=1), channels, 1)


def _inception_a(b: GraphBuilder, x: Tensor, pooled: int) -> Tensor:
    branches = [
        conv_norm(b, x, 64, 1),
        _chain(b, x, (48, 1), (64, 5)),
        _chain(b, x, (64, 1), (96, 3), (96, 3)),
        _mean_then(b, x, pooled),
    ]
    return b.concat(branches, axis=1)


def _inception_b(b: GraphBuilder, x: Tensor) -> Tensor:
    deep = _valid(b, _chain(b, x, (64, 1), (96, 3)), 96, 3, stride=2)
    return b.concat([_valid(b, x, 384, 3, stride=2), deep, b.max_pool(x, kernel=3, stride=2)], axis=1)


def _inception_c(b: GraphBuilder, x: Tensor, width: int) -> Tensor:
    wide, tall = (1, 7), (7, 1)
    branches = [
        conv_norm(b, x, 192, 1),
        _chain(b, x, (width, 1), (width, wide), (192, tall)),
        _chain(b, x, (width, 1), (width, tall), (width, wide), (width, tall), (192, wide)),
        _mean_then(b, x, 192),
    ]
    return b.concat(branches, axis=1)


def _inception_d(b: GraphBuilder, x: Tensor) -> Tensor:
    short = _valid(b, conv_norm(b, x, 192, 1), 320, 3, stride=2)
    deep = _valid(b, _chain(b, x, (192, 1), (192, (1, 7)), (192, (7, 1))), 192, 3, stride=2)
    return b.concat([short, deep, b.max_pool(x, kernel=3, stride=2)], axis=1)


def _inception_e(b: GraphBuilder, x: Tensor) -> Tensor:
    def forked(y: Tensor) -> Tensor:
        return b.concat([_chain(b, y, (384, (1, 3))), _chain(b, y, (384, (3, 1)))], axis=1)

    branches = [
        conv_norm(b, x, 320, 1),
        forked(conv_norm(b, x, 384, 1)),
        forked(_chain(b, x, (448, 1), (384, 3))),
        _mean_then(b, x, 192),
    ]
    return b.concat(branches, axis=1)


def _inception_auxiliary(b: GraphBuilder, x: Tensor, classes: int) -> Tensor:
    pooled = b.avg_pool(x, kernel=5, stride=3)
    hidden = _valid(b, conv_norm(b, pooled, 128, 1), 768, 5)
    return classifier(b, hidden, classes)


CONCATENATED_CNNS: dict[str, Callable[..., bytes]] = {
    **{f"densenet{depth}": partial(densenet, depth) for depth in _DENSENETS},
    "googlenet": googlenet,
    "inception_v3": inception_v3,
}
