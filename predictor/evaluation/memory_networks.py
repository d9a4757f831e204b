"""Training jobs of usual sizes, each with its loss, for the comparison of timelines with torch's tracker.

Nothing of these sizes is ever allocated: both sides run on fake tensors. Imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from predictor.evaluation import torch_networks as small
from predictor.evaluation.torch_layers import Heads
from predictor.types import Optimizer, Precision

functional = nn.functional


Job: TypeAlias = tuple[nn.Module, tuple[torch.Tensor, ...]]


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """One training job.

    Attributes:
        make: builds the module, which returns its loss, and what it is called with.
        plain: the same without checkpoints, for exports, which know none; our graphs are told to recompute.
    """

    name: str
    make: Callable[[], Job]
    optimizer: Optimizer
    precision: Precision = Precision.FP32
    plain: Callable[[], Job] | None = None


class Trained(nn.Module):  # type: ignore[misc]
    """A network and its loss: cross entropy over the last dimension (or of channels), or squared error."""

    def __init__(self, network: nn.Module, loss: str) -> None:
        super().__init__()
        self.network, self._loss = network, loss

    def forward(self, data: torch.Tensor, target: torch.Tensor) -> Any:
        """A scalar."""
        out = self.network(data)
        if self._loss == "squares":
            return functional.mse_loss(out, target)
        if self._loss == "tokens":
            out, target = out.flatten(0, 1), target.flatten()
        return functional.cross_entropy(out, target)


class Recomputed(nn.Module):  # type: ignore[misc]
    """Layers one after the other, each run again in the backward pass."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, data: torch.Tensor) -> Any:
        """The last layer's result."""
        for layer in self.layers:
            data = checkpoint(layer, data, use_reentrant=False)
        return data


class Written(nn.Module):  # type: ignore[misc]
    """Causal attention kernel by kernel: product, scale, mask, softmax, dropout, product."""

    def __init__(self, width: int, heads: int, drop: float = 0.1) -> None:
        super().__init__()
        self._heads, self._drop = heads, drop
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> Any:
        """(batch, length, width) to the same."""
        batch, length, width = data.shape
        split = self.joint(data).view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split[0], split[1], split[2]
        scores = query @ key.transpose(-1, -2) * (width // self._heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=data.device).tril()
        chances = functional.softmax(scores.masked_fill(~mask, float("-inf")), -1)
        mixed = functional.dropout(chances, self._drop, self.training) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _feed(width: int, drop: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(drop)
    )


def _layer(width: int, heads: nn.Module, feed: nn.Module, norm: Callable[[int], nn.Module]) -> nn.Module:
    return nn.Sequential(
        small.Residual(nn.Sequential(norm(width), heads)), small.Residual(nn.Sequential(norm(width), feed))
    )


class Decoder(nn.Module):  # type: ignore[misc]
    """Token ids to scores over a vocabulary."""

    def __init__(self, layers: nn.Module, width: int, vocabulary: int, positions: int, tied: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.layers, self.norm = layers, nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        """(batch, length) to (batch, length, vocabulary)."""
        data = self.table(tokens)
        if self.positions is not None:
            data = data + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.layers(data)))


def gpt(
    width: int = 768,
    depth: int = 6,
    *,
    vocabulary: int = 50257,
    positions: int = 1024,
    tied: bool = True,
    written: bool = False,
    drop: float = 0.0,
    recompute: bool = False,
) -> nn.Module:
    """GPT-2 with `depth` layers."""
    heads = width // 64

    def attention() -> nn.Module:
        return Written(width, heads, drop) if written else Heads(width, heads, causal=True)

    layers = [_layer(width, attention(), _feed(width, drop), nn.LayerNorm) for _ in range(depth)]
    stack = Recomputed(*layers) if recompute else nn.Sequential(*layers)
    return Decoder(stack, width, vocabulary, positions, tied)


def llama(width: int = 1024, depth: int = 4, kv_heads: int = 4, recompute: bool = False) -> nn.Module:
    """Grouped heads, RMS norms, gated feed-forward."""
    layers = [
        _layer(width, Heads(width, width // 64, kv_heads, True), small.Gated(width), nn.RMSNorm)
        for _ in range(depth)
    ]
    return Decoder(Recomputed(*layers) if recompute else nn.Sequential(*layers), width, 32000, 0, False)


class VisionTransformer(nn.Module):  # type: ignore[misc]
    """Patches, a class token, `depth` layers."""

    def __init__(self, width: int = 384, depth: int = 6, patch: int = 16, recompute: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (224 // patch) ** 2, width))
        layers = [_layer(width, Heads(width, width // 64), _feed(width), nn.LayerNorm) for _ in range(depth)]
        self.layers = Recomputed(*layers) if recompute else nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> Any:
        """Class scores."""
        data = self.patches(image).flatten(2).transpose(1, 2)
        data = torch.cat([self.token.expand(data.shape[0], -1, -1), data], 1) + self.positions
        return self.head(self.norm(self.layers(data))[:, 0])


def vgg(depths: tuple[int, ...], norm: bool) -> nn.Module:
    """3 x 3 convolutions with ReLU in place, pooling, three linear layers with dropout."""
    layers: list[nn.Module] = []
    before = 3
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            after = min(512, 64 << stage)
            layers.append(nn.Conv2d(before, after, 3, padding=1))
            layers += [nn.BatchNorm2d(after)] if norm else []
            layers.append(nn.ReLU(inplace=True))
            before = after
        layers.append(nn.MaxPool2d(2))
    head = (nn.Linear(before * 49, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))
    return nn.Sequential(*layers, nn.Flatten(), *head)


def basic_resnet(depths: tuple[int, ...], width: int = 64) -> nn.Module:
    """Residual blocks of two 3 x 3 convolutions (ResNet-18 and 34)."""
    layers: list[nn.Module] = [*small._conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, depth in enumerate(depths):
        after = width << stage
        for block in range(depth):
            stride = 2 if block == 0 and stage else 1
            branch = nn.Sequential(
                *small._conv(before, after, 3, stride),
                nn.ReLU(inplace=True),
                *small._conv(after, after, 3),
            )
            same = before == after and stride == 1
            shortcut = None if same else small._conv(before, after, 1, stride)
            layers.append(nn.Sequential(small.Residual(branch, shortcut), nn.ReLU(inplace=True)))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def inverted(widths: tuple[int, ...], gate: bool, act: Callable[[], nn.Module]) -> nn.Module:
    """Inverted residuals with depthwise convolutions (MobileNet, EfficientNet)."""
    layers: list[nn.Module] = [*small._conv(3, 32, 3, 2), act()]
    before = 32
    for stage, after in enumerate(widths):
        for block in range(2):
            stride = 2 if block == 0 and stage else 1
            wide = 4 * before
            parts = [*small._conv(before, wide, 1), act(), *small._conv(wide, wide, 3, stride, wide), act()]
            parts += [small.Gate(wide)] if gate else []
            branch = nn.Sequential(*parts, *small._conv(wide, after, 1))
            layers.append(small.Residual(branch) if before == after and stride == 1 else branch)
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def convnext(width: int = 96, depth: int = 3) -> nn.Module:
    """Large depthwise kernels, one norm, GELU."""

    def block(size: int) -> nn.Module:
        return small.Residual(
            nn.Sequential(
                nn.Conv2d(size, size, 7, padding=3, groups=size),
                nn.GroupNorm(1, size),
                nn.Conv2d(size, 4 * size, 1),
                nn.GELU(),
                nn.Conv2d(4 * size, size, 1),
            )
        )

    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), nn.GroupNorm(1, width)]
    layers += [block(width) for _ in range(depth)]
    layers += [nn.Conv2d(width, 2 * width, 2, 2), *(block(2 * width) for _ in range(depth))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 1000))


class DenseBlocks(nn.Module):  # type: ignore[misc]
    """Every layer reads all results before it."""

    def __init__(self, depth: int = 8, growth: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, 2, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(64 + growth * i),
                nn.ReLU(inplace=True),
                nn.Conv2d(64 + growth * i, growth, 3, padding=1, bias=False),
            )
            for i in range(depth)
        )
        self.head = nn.Linear(64 + growth * depth, 1000)

    def forward(self, image: torch.Tensor) -> Any:
        """Class scores."""
        data = functional.max_pool2d(self.stem(image), 3, 2, 1)
        for layer in self.layers:
            data = torch.cat([data, layer(data)], 1)
        return self.head(data.mean((2, 3)))


class Repeated(nn.Module):  # type: ignore[misc]
    """One layer applied again and again."""

    def __init__(self, layer: nn.Module, times: int) -> None:
        super().__init__()
        self.layer, self._times = layer, times

    def forward(self, data: torch.Tensor) -> Any:
        """The last result."""
        for _ in range(self._times):
            data = self.layer(data)
        return data


def _images(batch: int, size: int = 224) -> tuple[torch.Tensor, ...]:
    return torch.empty((batch, 3, size, size), device="meta"), _labels(batch)


def _labels(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _case(
    name: str,
    make: Callable[..., nn.Module],
    loss: str,
    inputs: Callable[[], tuple[torch.Tensor, ...]],
    optimizer: Optimizer,
    precision: Precision,
    recompute: bool,
) -> MemoryCase:
    def job(**options: Any) -> Job:
        return Trained(make(**options), loss), inputs()

    if not recompute:
        return MemoryCase(name, job, optimizer, precision)
    return MemoryCase(name, lambda: job(recompute=True), optimizer, precision, plain=job)


def _classifier(
    name: str,
    make: Callable[..., nn.Module],
    batch: int,
    optimizer: Optimizer,
    *,
    precision: Precision = Precision.FP32,
    recompute: bool = False,
) -> MemoryCase:
    return _case(name, make, "classes", lambda: _images(batch), optimizer, precision, recompute)


def _language(
    name: str,
    make: Callable[..., nn.Module],
    shape: tuple[int, int],
    optimizer: Optimizer,
    *,
    precision: Precision = Precision.FP32,
    recompute: bool = False,
) -> MemoryCase:
    def inputs() -> tuple[torch.Tensor, ...]:
        return _labels(*shape), _labels(*shape)

    return _case(name, make, "tokens", inputs, optimizer, precision, recompute)


def _fitted(
    name: str,
    make: Callable[..., nn.Module],
    data: tuple[int, ...],
    target: tuple[int, ...],
    optimizer: Optimizer,
) -> MemoryCase:
    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.empty(data, device="meta"), torch.empty(target, device="meta")

    return _case(name, make, "squares", inputs, optimizer, Precision.FP32, False)


_SGD, _MOMENTUM, _ADAM, _ADAMW = Optimizer.SGD, Optimizer.MOMENTUM, Optimizer.ADAM, Optimizer.ADAMW
_AMP, _BF16, _FP16 = Precision.AMP, Precision.BF16, Precision.FP16

CASES: tuple[MemoryCase, ...] = (
    _classifier("VGG-11", lambda: vgg((1, 1, 2, 2, 2), False), 16, _SGD),
    _classifier("VGG-16 with norms", lambda: vgg((2, 2, 3, 3, 3), True), 8, _MOMENTUM),
    _classifier("ResNet-18", lambda: basic_resnet((2, 2, 2, 2)), 32, _SGD),
    _classifier("ResNet-18, small batch", lambda: basic_resnet((2, 2, 2, 2)), 2, _ADAM),
    _classifier("ResNet-34", lambda: basic_resnet((3, 4, 6, 3)), 16, _ADAM),
    _classifier("ResNet-50", small.resnet, 16, _MOMENTUM),
    _classifier("ResNet-50, autocast", small.resnet, 16, _SGD, precision=_AMP),
    _classifier("ResNet-101", lambda: small.resnet((3, 4, 23, 3)), 8, _ADAMW),
    _classifier("ResNeXt", lambda: small.resnet((2, 2, 2, 2), 64, 32), 16, _SGD),
    _classifier("MobileNet", lambda: inverted((24, 40, 80), False, nn.ReLU6), 16, _SGD),
    _classifier("MobileNet v3", lambda: inverted((24, 40, 80), True, nn.Hardswish), 16, _MOMENTUM),
    _classifier("EfficientNet", lambda: inverted((24, 48, 96), True, nn.SiLU), 16, _ADAM),
    _classifier("EfficientNet, autocast", lambda: inverted((24, 48), True, nn.SiLU), 8, _SGD, precision=_AMP),
    _classifier("ConvNeXt", convnext, 8, _ADAMW),
    _classifier("ConvNeXt, wide", lambda: convnext(192, 1), 8, _SGD),
    _classifier("DenseNet", DenseBlocks, 8, _SGD),
    _classifier("DenseNet, deep", lambda: DenseBlocks(16, 24), 4, _ADAM),
    _classifier("ViT-S/16", VisionTransformer, 16, _ADAMW),
    _classifier("ViT-S/32, small batch", lambda: VisionTransformer(patch=32), 2, _SGD),
    _classifier("ViT-S/16, recomputed", VisionTransformer, 16, _ADAMW, recompute=True),
    _classifier("ViT-B/16, bf16", lambda: VisionTransformer(768, 4), 16, _SGD, precision=_BF16),
    _classifier("ViT-S/16, autocast", VisionTransformer, 16, _ADAM, precision=_AMP),
    _language("GPT-2", gpt, (4, 512), _SGD),
    _language("GPT-2, short", gpt, (1, 64), _ADAM),
    _language("GPT-2, untied", lambda: gpt(tied=False), (2, 512), _ADAMW),
    _language("GPT-2, recomputed", gpt, (8, 1024), _ADAMW, recompute=True),
    _language("GPT-2, recomputed, SGD", partial(gpt, 768, 12), (4, 1024), _SGD, recompute=True),
    _language("GPT-2, attention written out", lambda: gpt(written=True, drop=0.1), (2, 512), _ADAM),
    _language(
        "GPT-2, written out, recomputed",
        partial(gpt, written=True, drop=0.1),
        (2, 1024),
        _ADAM,
        recompute=True,
    ),
    _language("GPT-2, small vocabulary", lambda: gpt(1024, 8, vocabulary=512), (4, 1024), _SGD),
    _language("GPT-2, autocast", gpt, (4, 512), _ADAMW, precision=_AMP),
    _language("GPT-2, bf16", gpt, (4, 512), _ADAM, precision=_BF16),
    _language("GPT-2, written out, fp16", lambda: gpt(written=True), (2, 512), _SGD, precision=_FP16),
    _language("Llama", llama, (2, 1024), _ADAMW),
    _language("Llama, bf16", lambda: llama(kv_heads=8), (2, 1024), _ADAM, precision=_BF16),
    _language("Llama, autocast", llama, (1, 512), _SGD, precision=_AMP),
    _language("Llama, recomputed", llama, (4, 1024), _ADAMW, recompute=True),
    _fitted("U-Net", lambda: small.UNet(False), (4, 3, 256, 256), (4, 4, 256, 256), _ADAM),
    _fitted("U-Net, resampled", lambda: small.UNet(True), (4, 3, 256, 256), (4, 4, 256, 256), _SGD),
    _fitted("generator", small.generator, (64, 32, 8, 8), (64, 3, 44, 44), _ADAM),
    _fitted("WaveNet", small.Wave, (8, 16, 4096), (8, 16, 4096), _ADAM),
    _fitted("Mixer", lambda: small.Mixer(196, 512), (32, 196, 512), (32, 196, 512), _ADAM),
    _fitted("twins", small.Twins, (512, 2, 32), (512, 16), _SGD),
    _fitted("MLP", lambda: small._feed(1024), (4096, 1024), (4096, 1024), _ADAM),
    _fitted(
        "one layer, ten times", lambda: Repeated(nn.Linear(1024, 1024), 10), (2048, 1024), (2048, 1024), _SGD
    ),
    _fitted(
        "one encoder, four times",
        lambda: Repeated(_layer(256, Heads(256, 4), _feed(256), nn.LayerNorm), 4),
        (8, 256, 256),
        (8, 256, 256),
        _ADAMW,
    ),
)
"""At least forty jobs: convolutional, vision and language networks, four optimizers, four precisions."""
