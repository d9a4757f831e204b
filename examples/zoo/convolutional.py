"""Convolutional reference models: ResNet-50, MobileNetV2 and a U-Net."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def conv_norm(
    channels_in: int,
    channels_out: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    act: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution without bias, batch normalisation and perhaps an activation; odd kernels keep the size."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
    ]
    return nn.Sequential(*layers, *([act] if act is not None else []))


class Bottleneck(nn.Module):
    """1x1 reduce, 3x3, 1x1 expand by four, with the stride on the 3x3 (the v1.5 variant)."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        channels_out = width * self.expansion
        self.body = nn.Sequential(
            conv_norm(channels_in, width, 1, act=nn.ReLU(inplace=True)),
            conv_norm(width, width, 3, stride, act=nn.ReLU(inplace=True)),
            conv_norm(width, channels_out, 1),
        )
        keeps_shape = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Identity() if keeps_shape else conv_norm(channels_in, channels_out, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50 v1.5 (He et al. 2015): 25,557,032 parameters, 4.09 GMAC at 224 x 224."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 64, 7, 2, act=nn.ReLU(inplace=True)), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = 64
        for stage, depth in enumerate((3, 4, 6, 3)):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(channels, 64 << stage, stride))
                channels = (64 << stage) * Bottleneck.expansion
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        features = self.pool(self.blocks(self.stem(image)))
        return self.classifier(torch.flatten(features, 1))


class InvertedResidual(nn.Module):
    """Expand, depthwise 3x3, project; a shortcut where the shape stays (Sandler et al. 2018)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        expand = [conv_norm(channels_in, hidden, 1, act=nn.ReLU6(inplace=True))] if expansion > 1 else []
        self.body = nn.Sequential(
            *expand,
            conv_norm(hidden, hidden, 3, stride, groups=hidden, act=nn.ReLU6(inplace=True)),
            conv_norm(hidden, channels_out, 1),
        )
        self.keeps_shape = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.keeps_shape else self.body(x)


class MobileNetV2(nn.Module):
    """MobileNetV2 at width 1.0: 3,504,872 parameters, 0.30 GMAC at 224 x 224."""

    # expansion, channels, repeats, first stride
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_norm(3, 32, 3, 2, act=nn.ReLU6(inplace=True))]
        channels = 32
        for expansion, channels_out, repeats, first_stride in self.stages:
            for index in range(repeats):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, channels_out, stride, expansion))
                channels = channels_out
        layers.append(conv_norm(channels, 1280, 1, act=nn.ReLU6(inplace=True)))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(image)), 1))


def double_conv(channels_in: int, channels_out: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch normalisation and ReLU."""
    return nn.Sequential(
        conv_norm(channels_in, channels_out, 3, act=nn.ReLU(inplace=True)),
        conv_norm(channels_out, channels_out, 3, act=nn.ReLU(inplace=True)),
    )


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with 64 to 1024 channels: 31,037,698 parameters."""

    def __init__(self, channels_in: int = 3, classes: int = 2, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.entry = double_conv(channels_in, widths[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), double_conv(small, large)) for small, large in pairwise(widths)
        )
        pairs = list(pairwise(widths[::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(large, small, 2, 2) for large, small in pairs)
        self.merge = nn.ModuleList(double_conv(large, small) for large, small in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.entry(image)
        skipped: list[Tensor] = []
        for down in self.down:
            skipped.append(x)
            x = down(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((skipped.pop(), up(x)), dim=1))
        return self.head(x)
