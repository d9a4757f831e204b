"""Self- and cross-attention with grouped heads, rotary positions, windows and position biases.

The implementations call the framework's fused kernel where a family supports it: that is ONNX's `Attention`
(opset 23) here. A purely causal layer carries the flag and no mask, so only the lower triangle is counted.
A window shorter than the sequence is perfcast::Attention with the band of that triangle, as kernels that know
windows compute it (flash attention, serving engines): a window never costs more than none. With a position
bias the kernel computes all scores, and heads that share keys are copied for every query first. Families
without the fused kernel are written out, their windows as masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from predictor.errors import InvalidRequest
from predictor.features.architectures.huggingface.cache import extended, next_layer
from predictor.features.architectures.huggingface.job import Job
from predictor.features.architectures.huggingface.parts import Norm, scaled
from predictor.features.architectures.layers import indices, merge_heads, split_heads
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

# The fused kernel shares keys among queries itself up to this head size.
_WIDEST_SHARED_HEAD = 256
_LOWEST = -3.4e38


class Pairing(StrEnum):
    """Which elements of a head are rotated together."""

    HALVES = "halves"
    NEIGHBOURS = "neighbours"


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions over the first `dims` elements of a head; `table` tells equal sizes apart."""

    dims: int
    pairing: Pairing = Pairing.HALVES
    table: str = "rotary"

    def __call__(self, job: Job, x: Tensor) -> Tensor:
        """Rotated (batch, heads, length, head size)."""
        b, size = job.b, x.size(-1)
        if self.dims % 2 or not 2 <= self.dims <= size:
            raise InvalidRequest(
                f"{self.dims} elements of a head are to be rotated; expected an even number from 2 to {size}",
                field="rotary",
            )
        if self.dims == size:
            return self._rotated(job, x)
        first, rest = b.split(x, (self.dims, size - self.dims), axis=-1)
        return b.concat([self._rotated(job, first), rest], axis=-1)

    def _rotated(self, job: Job, x: Tensor) -> Tensor:
        b = job.b
        cosine, sine = job.once((self.table, self.dims, x.size(2)), lambda: self._tables(b, x.size(2)))
        return b.add(b.mul(x, cosine), b.mul(self._turned(b, x), sine))

    def _turned(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """Every pair (p, q) as (-q, p)."""
        half = self.dims // 2
        if self.pairing is Pairing.HALVES:
            first, second = b.split(x, 2, axis=-1)
            return b.concat([b.op("Neg", [second]), first], axis=-1)
        pairs = b.reshape(x, [0, 0, 0, half, 2])
        first, second = b.split(pairs, 2, axis=-1)
        return b.reshape(b.concat([b.op("Neg", [second]), first], axis=-1), [0, 0, 0, self.dims])

    def _tables(self, b: GraphBuilder, length: int) -> tuple[Tensor, Tensor]:
        places = b.op("Cast", [indices(b, (length, 1), f"{self.table}.positions")], to=1)
        angles = b.mul(places, b.parameter((self.dims // 2,), f"{self.table}.frequencies"))
        both = b.concat([angles, angles], axis=-1)
        return b.op("Cos", [both]), b.op("Sin", [both])


class QueryKeyNorm(StrEnum):
    """Whether queries and keys are normalised, and over what."""

    NONE = "none"
    HEAD = "head"
    ALL_HEADS = "all_heads"


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections, attention and the output projection.

    Attributes:
        heads, kv_heads, head_dim: of queries; of keys and values; elements of a head.
        bias, out_bias: of the projections of query, key and value; of the output's.
        key_bias: of the key's projection where it differs from `bias`.
        joint: query, key and value are one matrix.
        causal: a token sees itself and what is before it.
        window: how many tokens back it sees; None for all.
        keeps_window: a cache holds no more than the window.
        scale: factor on the scores; None is one over the root of the head size.
        written_out: the implementation has no fused kernel.
        softcap: scores are squeezed by tanh to this size.
        sinks: each head's results are weighted by what its sink leaves of the softmax, in a pass of its own.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    out_bias: bool = False
    key_bias: bool | None = None
    joint: bool = False
    causal: bool = True
    window: int | None = None
    keeps_window: bool = True
    rotary: Rotary | None = None
    normalised: QueryKeyNorm = QueryKeyNorm.NONE
    norm: Norm | None = None
    scale: float | None = None
    written_out: bool = False
    softcap: float | None = None
    sinks: bool = False

    def __call__(self, job: Job, x: Tensor, *, position_bias: Tensor | None = None) -> Tensor:
        """(batch, length, width) to the same."""
        b = job.b
        query, key, value = self._projected(b, x, x)
        if self.normalised is QueryKeyNorm.ALL_HEADS and self.norm:
            query, key = self.norm(b, query), self.norm(b, key)
        query = split_heads(b, query, self.heads)
        key, value = split_heads(b, key, self.kv_heads), split_heads(b, value, self.kv_heads)
        if self.normalised is QueryKeyNorm.HEAD and self.norm:
            query, key = self.norm(b, query), self.norm(b, key)
        if self.rotary:
            query, key = self.rotary(job, query), self.rotary(job, key)
        if self.causal:
            layer, bound = next_layer(job), self.window if self.keeps_window else None
            key = extended(job, f"{layer}.key", key, bound)
            value = extended(job, f"{layer}.value", value, bound)
        mixed = self.attend(job, query, key, value, position_bias=position_bias)
        if self.sinks:
            mixed = b.mul(mixed, b.parameter((self.heads, 1, 1), "sinks"))
        return b.linear(merge_heads(b, mixed), x.size(-1), bias=self.out_bias)

    def cross(
        self, job: Job, x: Tensor, source: Tensor | None, *, position_bias: Tensor | None = None
    ) -> Tensor:
        """As a call, with keys and values of `source`; of the cache where that is None."""
        b = job.b
        if source is None:
            query = b.linear(x, self.heads * self.head_dim, bias=self.bias)
            shape = (job.batch, self.kv_heads, job.source, self.head_dim)
            stem = f"past_key_values.{next_layer(job) - 1}.encoder"
            key, value = b.input(f"{stem}.key", shape), b.input(f"{stem}.value", shape)
        else:
            query, key, value = self._projected(b, x, source)
            key, value = split_heads(b, key, self.kv_heads), split_heads(b, value, self.kv_heads)
            if job.past is not None:
                job.caches.extend((key, value))
        query = split_heads(b, query, self.heads)
        mixed = self.attend(job, query, key, value, position_bias=position_bias)
        return b.linear(merge_heads(b, mixed), x.size(-1), bias=self.out_bias)

    def attend(
        self, job: Job, query: Tensor, key: Tensor, value: Tensor, *, position_bias: Tensor | None = None
    ) -> Tensor:
        """Softmax of the scores times values: (batch, heads, length, head size) each.

        Keys and values may be longer than queries, which are the last tokens then.
        """
        b, length, keys = job.b, query.size(2), key.size(2)
        masked = self.written_out or position_bias is not None
        groups = self.heads // self.kv_heads
        wide = key.size(-1) != value.size(-1) or key.size(-1) > _WIDEST_SHARED_HEAD
        if groups > 1 and (wide or masked):
            key, value = repeat_heads(b, key, groups), repeat_heads(b, value, groups)
        mask = causal_mask(job, length, keys, self.window) if self.causal and masked else None
        if self.written_out:
            return self._written_out(b, query, key, value, mask, position_bias)
        mixed: Tensor
        if position_bias is not None:
            mask = (
                position_bias if mask is None else b.op("Where", [mask, position_bias, b.constant(_LOWEST)])
            )
            mixed = b.op("Attention", [query, key, value, mask], scale=self.scale)
        elif self.window is not None and self.window < keys:
            mixed = b.op(
                "Attention",
                [query, key, value],
                domain="perfcast",
                causal=int(self.causal),
                window=self.window,
                heads=self.heads,
                kv_heads=key.size(1),
            )
        else:
            # A single token after cached ones sees them all.
            causal = 1 if self.causal and (length > 1 or job.past is None) else None
            mixed = b.op("Attention", [query, key, value], is_causal=causal, scale=self.scale)
        return mixed

    def _projected(self, b: GraphBuilder, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.joint:
            joined = b.linear(x, wide + 2 * narrow, bias=self.bias)
            query, key, value = b.split(joined, (wide, narrow, narrow), axis=-1)
            return query, key, value
        key_bias = self.bias if self.key_bias is None else self.key_bias
        return (
            b.linear(x, wide, bias=self.bias),
            b.linear(source, narrow, bias=key_bias),
            b.linear(source, narrow, bias=self.bias),
        )

    def _written_out(
        self,
        b: GraphBuilder,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
    ) -> Tensor:
        scores = b.matmul(query, b.transpose(key, [0, 1, 3, 2]))
        scores = scaled(b, scores, self.head_dim**-0.5 if self.scale is None else self.scale)
        if self.softcap is not None:
            cap = b.constant(float(self.softcap))
            scores = b.mul(b.tanh(b.div(scores, cap)), cap)
        if position_bias is not None:
            scores = b.add(scores, position_bias)
        if mask is not None:
            scores = b.op("Where", [mask, scores, b.constant(_LOWEST)])
        return b.matmul(b.softmax(scores), value)


def causal_mask(job: Job, length: int, keys: int, window: int | None = None) -> Tensor:
    """(1, 1, length, keys), true where a token may look; one per graph and window."""
    reach = window if window is not None and window < keys else None
    mask: Tensor = job.once(
        ("mask", length, keys, reach),
        lambda: job.b.parameter((1, 1, length, keys), "mask", DType.BOOL),
    )
    return mask


def repeat_heads(b: GraphBuilder, x: Tensor, times: int) -> Tensor:
    """Every head copied `times` times: (batch, heads * times, length, head size)."""
    wide = b.op("Expand", [b.op("Unsqueeze", [x, b.constant([2])]), b.constant([1, 1, times, 1, 1])])
    return b.reshape(wide, [0, x.size(1) * times, x.size(2), x.size(3)])


def linear_biases(job: Job, heads: int, length: int) -> Tensor:
    """ALiBi: a slope per head times the distance, (1, heads, 1, length); slopes are not trained."""

    def make() -> Tensor:
        b = job.b
        slopes = b.parameter((heads, 1), "slopes", DType.INT64)
        product = b.mul(slopes, indices(b, (1, length), "distances"))
        return b.reshape(b.op("Cast", [product], to=1), [1, heads, 1, length])

    biases: Tensor = job.once(("alibi", heads, length), make)
    return biases
