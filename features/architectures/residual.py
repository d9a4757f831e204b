"""Residual image classifiers by their sizes: ResNet, ResNeXt, Wide ResNet, RegNet X and Y, ResNet for CIFAR.

One stem, four stages of blocks with a shortcut, one linear layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import log

from predictor.features.architectures.cnn import classifier, conv_norm, squeeze_excite
from predictor.features.builder import GraphBuilder, Tensor


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Blocks per stage; bottlenecks of `group_width` channels in each of `groups` at the first stage."""

    depths: tuple[int, int, int, int]
    bottleneck: bool = True
    groups: int = 1
    group_width: int = 64


def resnet_family(
    config: ResNetConfig,
    name: str = "resnet",
    *,
    batch: int | str = "batch",
    image: int = 224,
    classes: int = 1000,
) -> bytes:
    """ResNet v1.5 (stride on the 3x3) and its relatives."""
    b = GraphBuilder(name)
    x = residual_features(b, config, b.input("image", (batch, 3, image, image)))[-1]
    return b.build([classifier(b, x, classes)])


def residual_features(b: GraphBuilder, config: ResNetConfig, image: Tensor) -> list[Tensor]:
    """Outputs of the four stages, at strides 4, 8, 16 and 32."""
    x = b.max_pool(conv_norm(b, image, 64, 7, stride=2), kernel=3, stride=2, padding=1)
    stages = []
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            x = residual_block(b, x, config, stage, 2 if stage and not index else 1)
        stages.append(x)
    return stages


def residual_block(
    b: GraphBuilder, x: Tensor, config: ResNetConfig, stage: int, stride: int, *, stride_first: bool = False
) -> Tensor:
    """One block of a stage; `stride_first` strides in the 1x1 convolution, as Caffe's weights do."""
    planes = 64 << stage
    if config.bottleneck:
        width = planes * config.group_width // 64 * config.groups
        outer, inner = (stride, 1) if stride_first else (1, stride)
        y = conv_norm(b, x, width, 1, stride=outer)
        y = conv_norm(b, y, width, 3, stride=inner, groups=config.groups)
        y = conv_norm(b, y, 4 * planes, 1, act=False)
    else:
        y = conv_norm(b, conv_norm(b, x, planes, 3, stride=stride), planes, 3, act=False)
    same = stride == 1 and x.size(1) == y.size(1)
    return b.relu(b.add(y, x if same else conv_norm(b, x, y.size(1), 1, stride=stride, act=False)))


def resnet18_cifar(*, batch: int | str = "batch", image: int = 32, classes: int = 10) -> bytes:
    """ResNet-18 for small images: a 3x3 stem without stride or pool; 11,173,962 parameters."""
    b = GraphBuilder("resnet18_cifar")
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 64, 3)
    config = RESNETS["resnet18"]
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            x = residual_block(b, x, config, stage, 2 if stage and not index else 1)
    return b.build([classifier(b, x, classes)])


@dataclass(frozen=True, slots=True)
class RegNetConfig:
    """Radosavovic et al. 2020: widths grow by `slope` a block, in steps of powers of `factor`."""

    depth: int
    initial: int
    slope: float
    factor: float
    group_width: int
    squeezed: bool = False

    def stages(self) -> list[tuple[int, int]]:
        """(width, blocks) of each stage; widths are multiples of the group width, where they exceed it."""
        linear = [self.initial + self.slope * index for index in range(self.depth)]
        powers = [round(log(width / self.initial) / log(self.factor)) for width in linear]
        rounded = [round(self.initial * self.factor**power / 8) * 8 for power in powers]
        found = []
        for width, blocks in groupby(rounded):
            group = min(width, self.group_width)
            found.append((round(width / group) * group, len(list(blocks))))
        return found


def regnet(
    config: RegNetConfig,
    name: str = "regnet",
    *,
    batch: int | str = "batch",
    image: int = 224,
    classes: int = 1000,
) -> bytes:
    """RegNetX, or RegNetY where `squeezed` (squeeze and excitation at a quarter of the block's input)."""
    b = GraphBuilder(name)
    x = conv_norm(b, b.input("image", (batch, 3, image, image)), 32, 3, stride=2)
    for width, blocks in config.stages():
        for index in range(blocks):
            x = _regnet_block(b, x, config, width, 1 if index else 2)
    return b.build([classifier(b, x, classes)])


def _regnet_block(b: GraphBuilder, x: Tensor, config: RegNetConfig, width: int, stride: int) -> Tensor:
    groups = width // min(width, config.group_width)
    y = conv_norm(b, conv_norm(b, x, width, 1), width, 3, stride=stride, groups=groups)
    if config.squeezed:
        y = squeeze_excite(b, y, round(x.size(1) / 4), b.relu)
    y = conv_norm(b, y, width, 1, act=False)
    same = stride == 1 and x.size(1) == width
    return b.relu(b.add(x if same else conv_norm(b, x, width, 1, stride=stride, act=False), y))


RESNETS: dict[str, ResNetConfig] = {
    "resnet18": ResNetConfig((2, 2, 2, 2), bottleneck=False),
    "resnet34": ResNetConfig((3, 4, 6, 3), bottleneck=False),
    "resnet50": ResNetConfig((3, 4, 6, 3)),
    "resnet101": ResNetConfig((3, 4, 23, 3)),
    "resnet152": ResNetConfig((3, 8, 36, 3)),
    "resnext50_32x4d": ResNetConfig((3, 4, 6, 3), groups=32, group_width=4),
    "resnext101_32x4d": ResNetConfig((3, 4, 23, 3), groups=32, group_width=4),
    "resnext101_32x8d": ResNetConfig((3, 4, 23, 3), groups=32, group_width=8),
    "resnext152_32x4d": ResNetConfig((3, 8, 36, 3), groups=32, group_width=4),
    "wide_resnet50_2": ResNetConfig((3, 4, 6, 3), group_width=128),
    "wide_resnet101_2": ResNetConfig((3, 4, 23, 3), group_width=128),
}
# depth, initial width, slope, factor, group width of the published models, by GFLOP in their names.
_REGNETS = {
    "x_200mf": (13, 24, 36.44, 2.49, 8),
    "x_400mf": (22, 24, 24.48, 2.54, 16),
    "x_600mf": (16, 48, 36.97, 2.24, 24),
    "x_800mf": (16, 56, 35.73, 2.28, 16),
    "x_1_6gf": (18, 80, 34.01, 2.25, 24),
    "x_3_2gf": (25, 88, 26.31, 2.25, 48),
    "x_4_0gf": (23, 96, 38.65, 2.43, 40),
    "x_6_4gf": (17, 184, 60.83, 2.07, 56),
    "x_8_0gf": (23, 80, 49.56, 2.88, 120),
    "x_12gf": (19, 168, 73.36, 2.37, 112),
    "x_16gf": (22, 216, 55.59, 2.1, 128),
    "x_32gf": (23, 320, 69.86, 2.0, 168),
    "y_200mf": (13, 24, 36.44, 2.49, 8),
    "y_400mf": (16, 48, 27.89, 2.09, 8),
    "y_600mf": (15, 48, 32.54, 2.32, 16),
    "y_800mf": (14, 56, 38.84, 2.4, 16),
    "y_1_6gf": (27, 48, 20.71, 2.65, 24),
    "y_3_2gf": (21, 80, 42.63, 2.66, 24),
    "y_4_0gf": (22, 96, 31.41, 2.24, 64),
    "y_6_4gf": (25, 112, 33.22, 2.27, 72),
    "y_8_0gf": (17, 192, 76.82, 2.19, 56),
    "y_12gf": (19, 168, 73.36, 2.37, 112),
    "y_16gf": (18, 200, 106.23, 2.48, 112),
    "y_32gf": (20, 232, 115.89, 2.53, 232),
}

RESIDUAL_CNNS: dict[str, Callable[..., bytes]] = {
    **{name: partial(resnet_family, config, name) for name, config in RESNETS.items()},
    "resnet18_cifar": resnet18_cifar,
    **{
        f"regnet_{name}": partial(
            regnet, RegNetConfig(*sizes, squeezed=name.startswith("y")), f"regnet_{name}"
        )
        for name, sizes in _REGNETS.items()
    },
}
