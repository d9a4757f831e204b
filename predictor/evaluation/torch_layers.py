"""Single layers and operators for the comparison of captures with torch's counter. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

functional = nn.functional


@dataclass(frozen=True, slots=True)
class Case:
    """A module and what it is called with; `make` builds both anew, small enough to run on a CPU."""

    name: str
    make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


class Calls(nn.Module):  # type: ignore[misc]
    """A function of the inputs and of parameters of the given shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self._function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The function's result."""
        return self._function(*inputs, *self.weights)


class Recurrent(nn.Module):  # type: ignore[misc]
    """A recurrent layer after an embedding, its sequence output read by a head."""

    def __init__(self, kind: type[nn.Module], layers: int = 1, both_ways: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 24)
        self.layer = kind(24, 32, layers, bidirectional=both_ways)
        self.head = nn.Linear(64 if both_ways else 32, 50)

    def forward(self, tokens: torch.Tensor) -> Any:
        """(length, batch) tokens to scores."""
        return self.head(self.layer(self.table(tokens))[0])


class Heads(nn.Module):  # type: ignore[misc]
    """Attention with projections; fewer heads of keys and values are repeated as models do."""

    def __init__(self, width: int, heads: int, kv_heads: int | None = None, causal: bool = False) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._causal = heads, kv_heads or heads, causal
        narrow = width // heads * self._kv_heads
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, narrow), nn.Linear(width, narrow)

    def forward(self, data: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        """(batch, length, width), attending to `memory` or itself."""
        source = data if memory is None else memory
        query = self._split(self.query(data), self._heads)
        key = self._split(self.key(source), self._kv_heads)
        value = self._split(self.value(source), self._kv_heads)
        if self._kv_heads != self._heads:
            times = self._heads // self._kv_heads
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self._causal)
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def _split(data: torch.Tensor, heads: int) -> torch.Tensor:
        return data.view(data.shape[0], data.shape[1], heads, -1).transpose(1, 2)


class Packed(nn.Module):  # type: ignore[misc]
    """Attention with one projection for queries, keys and values, taken apart by `unbind` or `chunk`."""

    def __init__(self, width: int, heads: int, unbind: bool) -> None:
        super().__init__()
        self._heads, self._unbind = heads, unbind
        self.projection, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, data: torch.Tensor) -> Any:
        """(batch, length, width)."""
        batch, length, width = data.shape
        packed = self.projection(data)
        if self._unbind:
            taken = packed.reshape(batch, length, 3, self._heads, width // self._heads)
            query, key, value = taken.permute(2, 0, 3, 1, 4).unbind(0)
        else:
            shape = (batch, length, self._heads, width // self._heads)
            query, key, value = (part.view(shape).transpose(1, 2) for part in packed.chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class ByHand(Heads):
    """Attention written out with two products and a softmax."""

    def forward(self, data: torch.Tensor, memory: torch.Tensor | None = None) -> Any:
        """(batch, length, width)."""
        query, key, value = (
            self._split(part(data), self._heads) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


def _layer(name: str, module: Callable[[], nn.Module], *shape: int) -> Case:
    return Case(name, lambda: (module(), (torch.zeros(shape),)))


def _call(name: str, function: Callable[..., Any], *shapes: tuple[int, ...], data: tuple[int, ...]) -> Case:
    return Case(name, lambda: (Calls(function, *shapes), (torch.zeros(data),)))


def _tokens(name: str, module: Callable[[], nn.Module], *shape: int) -> Case:
    return Case(name, lambda: (module(), (torch.zeros(shape, dtype=torch.int64),)))


LAYERS = (
    _layer("conv 1-D", lambda: nn.Conv1d(8, 16, 3, padding=1), 2, 8, 64),
    _layer("conv 1-D, strided, dilated", lambda: nn.Conv1d(8, 16, 5, stride=2, dilation=2), 2, 8, 64),
    _layer("conv 2-D", lambda: nn.Conv2d(3, 16, 3, padding=1, bias=False), 2, 3, 24, 24),
    _layer("conv 2-D, bias", lambda: nn.Conv2d(3, 16, 3, padding=1), 2, 3, 24, 24),
    _layer("conv 2-D, strided", lambda: nn.Conv2d(3, 16, 7, stride=2, padding=3), 2, 3, 32, 32),
    _layer("conv 2-D, dilated", lambda: nn.Conv2d(8, 16, 3, dilation=2), 2, 8, 24, 24),
    _layer("conv 2-D, grouped", lambda: nn.Conv2d(16, 32, 3, padding=1, groups=4), 2, 16, 16, 16),
    _layer("conv 2-D, depthwise", lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16), 2, 16, 16, 16),
    _layer("conv 2-D, depthwise x2", lambda: nn.Conv2d(16, 32, 5, padding=2, groups=16), 2, 16, 16, 16),
    _layer("conv 2-D, 1x1", lambda: nn.Conv2d(16, 48, 1), 2, 16, 16, 16),
    _layer("conv 3-D", lambda: nn.Conv3d(2, 4, 3, padding=1), 1, 2, 8, 12, 12),
    _layer("conv 3-D, grouped, dilated", lambda: nn.Conv3d(4, 8, 3, groups=2, dilation=2), 1, 4, 8, 12, 12),
    _layer("transposed conv 1-D", lambda: nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1), 2, 8, 32),
    _layer("transposed conv 2-D", lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), 2, 8, 12, 12),
    _layer(
        "transposed conv 2-D, grouped, dilated",
        lambda: nn.ConvTranspose2d(8, 8, 3, stride=2, groups=2, dilation=2),
        2,
        8,
        12,
        12,
    ),
    _layer("transposed conv 3-D", lambda: nn.ConvTranspose3d(4, 2, 2, stride=2), 1, 4, 6, 6, 6),
    _layer("linear", lambda: nn.Linear(64, 96), 8, 64),
    _layer("linear, 3-D, no bias", lambda: nn.Linear(64, 96, bias=False), 4, 16, 64),
    _layer(
        "two linears", lambda: nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)), 4, 16, 32
    ),
    _call("bmm", torch.bmm, (4, 24, 32), data=(4, 16, 24)),
    _call("matmul 4-D", torch.matmul, (2, 3, 16, 20), data=(2, 3, 12, 16)),
    _call("matmul, broadcast", torch.matmul, (3, 16, 20), data=(2, 3, 12, 16)),
    _call("einsum", lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), (2, 3, 20, 8), data=(2, 3, 12, 8)),
    _call("baddbmm", lambda x, b, c: torch.baddbmm(c, x, b), (4, 64, 32), (4, 16, 32), data=(4, 16, 64)),
    _call("addmm", lambda x, w, b: torch.addmm(b, x, w), (24, 32), (32,), data=(16, 24)),
    _tokens("embedding", lambda: nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)), 4, 16),
    _tokens("LSTM", lambda: Recurrent(nn.LSTM), 128, 3),
    _tokens("LSTM, 2 layers, both ways", lambda: Recurrent(nn.LSTM, 2, True), 128, 3),
    _tokens("GRU, 2 layers", lambda: Recurrent(nn.GRU, 2), 128, 3),
    _tokens("RNN", lambda: Recurrent(nn.RNN), 128, 3),
    _layer("attention", lambda: Heads(48, 4), 2, 32, 48),
    _layer("attention, causal", lambda: Heads(48, 4, causal=True), 2, 32, 48),
    _layer("attention, 2 of 6 heads", lambda: Heads(48, 6, 2), 2, 32, 48),
    _layer("attention, causal, 1 of 4 heads", lambda: Heads(48, 4, 1, True), 2, 32, 48),
    Case("attention to a memory", lambda: (Heads(48, 4), (torch.zeros(2, 8, 48), torch.zeros(2, 40, 48)))),
    _layer("attention, packed, unbind", lambda: Packed(48, 4, True), 2, 32, 48),
    _layer("attention, packed, chunk", lambda: Packed(48, 4, False), 2, 32, 48),
    _layer("attention by hand", lambda: ByHand(48, 4), 2, 32, 48),
)
