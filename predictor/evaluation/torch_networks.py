"""Small networks for the comparison of captures with torch's counter. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from predictor.evaluation.torch_layers import Case, Heads

functional = nn.functional


class Residual(nn.Module):  # type: ignore[misc]
    """x + f(x), or shortcut(x) + f(x)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, data: torch.Tensor) -> Any:
        """The sum."""
        return self.shortcut(data) + self.branch(data)


def _conv(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(after)
    )


def _bottleneck(before: int, width: int, after: int, stride: int, groups: int) -> nn.Module:
    branch = nn.Sequential(
        *_conv(before, width, 1),
        nn.ReLU(inplace=True),
        *_conv(width, width, 3, stride, groups),
        nn.ReLU(inplace=True),
        *_conv(width, after, 1),
    )
    same = before == after and stride == 1
    return nn.Sequential(Residual(branch, None if same else _conv(before, after, 1, stride)), nn.ReLU())


def resnet(depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, groups: int = 1) -> nn.Module:
    """A residual network of bottlenecks; the default is ResNet-50."""
    layers: list[nn.Module] = [*_conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, depth in enumerate(depths):
        after = 4 * width << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage else 1
            layers.append(_bottleneck(before, width << stage, after, stride, groups))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


class Gate(nn.Module):  # type: ignore[misc]
    """Squeeze and excite."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, data: torch.Tensor) -> Any:
        """The input, channel by channel scaled."""
        pooled = data.mean((2, 3), keepdim=True)
        return data * self.excite(self.squeeze(pooled).relu()).sigmoid()


def mobile() -> nn.Module:
    """Inverted residuals with depthwise convolutions and gates."""

    def block(width: int) -> nn.Module:
        wide = 4 * width
        return Residual(
            nn.Sequential(
                *_conv(width, wide, 1),
                nn.SiLU(),
                *_conv(wide, wide, 3, 1, wide),
                nn.SiLU(),
                Gate(wide),
                *_conv(wide, width, 1),
            )
        )

    stem = (*_conv(3, 16, 3, 2), nn.Hardswish())
    return nn.Sequential(
        *stem, block(16), block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


class Dense(nn.Module):  # type: ignore[misc]
    """Every layer reads all results before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + 8 * i), nn.ReLU(), nn.Conv2d(8 + 8 * i, 8, 3, padding=1))
            for i in range(4)
        )

    def forward(self, data: torch.Tensor) -> Any:
        """Concatenated features."""
        for layer in self.layers:
            data = torch.cat([data, layer(data)], 1)
        return data


class UNet(nn.Module):  # type: ignore[misc]
    """Down, up, and links across; transposed convolutions or resampling on the way up."""

    def __init__(self, resample: bool) -> None:
        super().__init__()
        self.first, self.second = _conv(3, 8, 3), _conv(8, 16, 3)
        self.up = (
            nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 8, 1))
            if resample
            else nn.ConvTranspose2d(16, 8, 2, 2)
        )
        self.last = nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, image: torch.Tensor) -> Any:
        """An image of four channels."""
        fine = self.first(image).relu()
        coarse = self.second(functional.max_pool2d(fine, 2)).relu()
        return self.last(torch.cat([fine, self.up(coarse)], 1))


class Gated(nn.Module):  # type: ignore[misc]
    """A gated feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, data: torch.Tensor) -> Any:
        """(..., width)."""
        return self.down(functional.silu(self.gate(data)) * self.up(data))


def _block(width: int, heads: Heads, norm: Callable[[int], nn.Module], feed: nn.Module) -> nn.Module:
    return nn.Sequential(
        Residual(nn.Sequential(norm(width), heads)), Residual(nn.Sequential(norm(width), feed))
    )


def _feed(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Language(nn.Module):  # type: ignore[misc]
    """A decoder over tokens; the head may share the embedding's weight."""

    def __init__(self, blocks: nn.Module, width: int, tied: bool, positions: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(200, width)
        self.positions = nn.Parameter(torch.zeros(64, width)) if positions else None
        self.blocks, self.norm = blocks, nn.LayerNorm(width)
        self.head = nn.Linear(width, 200, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        """(batch, length) tokens to scores."""
        data = self.table(tokens)
        if self.positions is not None:
            data = data + self.positions[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(data)))


def gpt(tied: bool) -> nn.Module:
    """Causal attention, GELU."""
    blocks = [_block(48, Heads(48, 4, causal=True), nn.LayerNorm, _feed(48)) for _ in range(2)]
    return Language(nn.Sequential(*blocks), 48, tied)


def llama() -> nn.Module:
    """Causal attention with fewer heads of keys and values, a gated feed-forward layer."""
    blocks = [_block(48, Heads(48, 6, 2, True), nn.LayerNorm, Gated(48)) for _ in range(2)]
    return Language(nn.Sequential(*blocks), 48, False, positions=False)


class Vision(nn.Module):  # type: ignore[misc]
    """A vision transformer with a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 48, 8, 8)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 48)), nn.Parameter(torch.zeros(1, 17, 48))
        self.blocks = nn.Sequential(*(_block(48, Heads(48, 4), nn.LayerNorm, _feed(48)) for _ in range(2)))
        self.head = nn.Linear(48, 10)

    def forward(self, image: torch.Tensor) -> Any:
        """Class scores."""
        data = self.patches(image).flatten(2).transpose(1, 2)
        data = torch.cat([self.token.expand(data.shape[0], -1, -1), data], 1) + self.positions
        return self.head(self.blocks(data)[:, 0])


class Mixer(nn.Module):  # type: ignore[misc]
    """Mixes tokens, then channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm, self.tokens, self.channels = nn.LayerNorm(width), _feed(tokens), _feed(width)

    def forward(self, data: torch.Tensor) -> Any:
        """(batch, tokens, width)."""
        data = data + self.tokens(self.norm(data).transpose(1, 2)).transpose(1, 2)
        return data + self.channels(data)


class Twins(nn.Module):  # type: ignore[misc]
    """One encoder applied to both halves of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, pair: torch.Tensor) -> Any:
        """The product of both codes."""
        return self.encoder(pair[:, 0]) * self.encoder(pair[:, 1])


class Encoder(nn.Module):  # type: ignore[misc]
    """Post-norm blocks over tokens, and a pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 48)
        self.heads, self.feed = Heads(48, 4), _feed(48)
        self.norms = nn.ModuleList([nn.LayerNorm(48), nn.LayerNorm(48)])
        self.pool, self.head = nn.Linear(48, 48), nn.Linear(48, 2)

    def forward(self, tokens: torch.Tensor) -> Any:
        """(batch, length) tokens to two scores."""
        data = self.table(tokens)
        data = self.norms[0](data + self.heads(data))
        data = self.norms[1](data + self.feed(data))
        return self.head(self.pool(data[:, 0]).tanh())


class Wave(nn.Module):  # type: ignore[misc]
    """Gated dilated convolutions with links to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2**i, padding=2**i) for i in range(4))
        self.head = nn.Conv1d(16, 16, 1)

    def forward(self, wave: torch.Tensor) -> Any:
        """(batch, channels, samples)."""
        total = torch.zeros_like(wave)
        for layer in self.layers:
            left, right = layer(wave)[..., : wave.shape[-1]].chunk(2, 1)
            wave = wave + left.tanh() * right.sigmoid()
            total = total + wave
        return self.head(total)


def generator() -> nn.Module:
    """Noise to an image by transposed convolutions."""
    return nn.Sequential(
        nn.ConvTranspose2d(32, 32, 4),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1),
        nn.InstanceNorm2d(16, affine=True),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(16, 3, 4, 2, 1),
        nn.Tanh(),
    )


def plain_cnn() -> nn.Module:
    """Convolutions with biases, pooling, dropout, three linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(32 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def separable() -> nn.Module:
    """A block of large depthwise kernels and layer norm over channels."""
    return Residual(
        nn.Sequential(
            nn.Conv2d(16, 16, 7, padding=3, groups=16),
            nn.GroupNorm(1, 16),
            nn.Conv2d(16, 64, 1),
            nn.GELU(),
            nn.Conv2d(64, 16, 1),
        )
    )


def _image(name: str, make: Callable[[], nn.Module], *shape: int) -> Case:
    return Case(name, lambda: (make(), (torch.zeros(shape),)))


def _tokens(name: str, make: Callable[[], nn.Module]) -> Case:
    return Case(name, lambda: (make(), (torch.zeros((2, 32), dtype=torch.int64),)))


NETWORKS = (
    _image("plain CNN", plain_cnn, 2, 3, 32, 32),
    _image("ResNet-50", resnet, 1, 3, 64, 64),
    _image("ResNeXt", lambda: resnet((1, 1, 1), 16, 4), 2, 3, 64, 64),
    _image("MobileNet", mobile, 2, 3, 64, 64),
    _image("DenseNet", Dense, 2, 8, 24, 24),
    _image("ConvNeXt", separable, 2, 16, 24, 24),
    _image("U-Net", lambda: UNet(False), 1, 3, 48, 48),
    _image("U-Net, resampled", lambda: UNet(True), 1, 3, 48, 48),
    _image("generator", generator, 2, 32, 1, 1),
    _image("ViT", Vision, 2, 3, 32, 32),
    _tokens("GPT", lambda: gpt(False)),
    _tokens("GPT, tied head", lambda: gpt(True)),
    _tokens("Llama", llama),
    _tokens("BERT", Encoder),
    _image("Mixer", lambda: Mixer(16, 32), 2, 16, 32),
    _image("twins", Twins, 4, 2, 32),
    _image("WaveNet", Wave, 2, 16, 128),
)
