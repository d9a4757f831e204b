"""Stacks of plain convolutions as torchvision builds them: AlexNet, VGG with and without norms, SqueezeNet.

`training` adds the dropouts that stand before the dense layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from predictor.features.architectures.layers import dropout
from predictor.features.builder import GraphBuilder, Tensor

# Convolutions per resolution; their width doubles from 64 to 512.
_VGG_DEPTHS = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
# Squeezed widths of the eight fire modules; each widens to eight times as many channels.
_FIRE = (16, 16, 32, 32, 48, 48, 64, 64)


def alexnet(
    *, batch: int | str = "batch", image: int = 224, classes: int = 1000, training: bool = False
) -> bytes:
    """AlexNet in its one-tower form (Krizhevsky 2014): 61,100,840 parameters."""
    b = GraphBuilder("alexnet")
    x = b.input("image", (batch, 3, image, image))
    x = b.max_pool(b.relu(b.conv(x, 64, kernel=11, stride=4, padding=2, bias=True)), kernel=3, stride=2)
    x = b.max_pool(b.relu(b.conv(x, 192, kernel=5, bias=True)), kernel=3, stride=2)
    for channels in (384, 256, 256):
        x = b.relu(b.conv(x, channels, kernel=3, bias=True))
    x = b.flatten(b.max_pool(x, kernel=3, stride=2))
    for _ in range(2):
        x = b.relu(b.linear(dropout(b, training, x), 4096))
    return b.build([b.linear(x, classes)])


def vgg(
    depth: int,
    normed: bool = False,
    *,
    batch: int | str = "batch",
    image: int = 224,
    classes: int = 1000,
    training: bool = False,
) -> bytes:
    """VGG of 11, 13, 16 or 19 layers (Simonyan & Zisserman 2014), dense layers included."""
    b = GraphBuilder(f"vgg{depth}{'_bn' if normed else ''}")
    x = b.input("image", (batch, 3, image, image))
    for channels, repeats in zip((64, 128, 256, 512, 512), _VGG_DEPTHS[depth], strict=True):
        for _ in range(repeats):
            x = b.conv(x, channels, kernel=3, bias=True)
            x = b.relu(b.batch_norm(x) if normed else x)
        x = b.max_pool(x, kernel=2)
    x = b.flatten(x)
    for _ in range(2):
        x = dropout(b, training, b.relu(b.linear(x, 4096)))
    return b.build([b.linear(x, classes)])


def squeezenet(
    version: str,
    *,
    batch: int | str = "batch",
    image: int = 224,
    classes: int = 1000,
    training: bool = False,
) -> bytes:
    """SqueezeNet 1.0 or 1.1 (Iandola et al. 2016)."""
    b = GraphBuilder(f"squeezenet{version}")
    x = b.input("image", (batch, 3, image, image))
    first, kernel, pools = (96, 7, (0, 3, 7)) if version == "1_0" else (64, 3, (0, 2, 4))
    x = b.relu(b.conv(x, first, kernel=kernel, stride=2, padding=0, bias=True))
    for place, squeezed in enumerate(_FIRE):
        if place in pools:
            x = ceil_pool(b, x)
        x = b.relu(b.conv(x, squeezed, kernel=1, bias=True))
        x = b.concat([b.relu(b.conv(x, 4 * squeezed, kernel=k, bias=True)) for k in (1, 3)], axis=1)
    x = b.relu(b.conv(dropout(b, training, x), classes, kernel=1, bias=True))
    return b.build([b.flatten(b.global_pool(x))])


def ceil_pool(b: GraphBuilder, x: Tensor, *, kernel: int = 3, stride: int = 2, padding: int = 0) -> Tensor:
    """Maximum over windows, the last of which may hang over the edge."""
    pooled: Tensor = b.op(
        "MaxPool",
        [x],
        kernel_shape=[kernel] * 2,
        strides=[stride] * 2,
        pads=[padding] * 4,
        ceil_mode=1,
    )
    return pooled


PLAIN_CNNS: dict[str, Callable[..., bytes]] = {
    "alexnet": alexnet,
    **{f"vgg{depth}": partial(vgg, depth) for depth in _VGG_DEPTHS},
    **{f"vgg{depth}_bn": partial(vgg, depth, True) for depth in _VGG_DEPTHS},
    **{f"squeezenet{version}": partial(squeezenet, version) for version in ("1_0", "1_1")},
}
