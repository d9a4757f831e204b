"""Switch Transformer (Fedus et al. 2021): T5 encoder and decoder whose every second feed-forward has experts.

Follows the eager HuggingFace implementation, with every expert run one after the other on a buffer of
`capacity` tokens per sample, as NeuSight traced it. Two things are simpler: an expert's tokens are picked by
TopK over its mask (a boolean index has a shape that depends on data), and the table of relative positions is
stored instead of recomputed (some fifteen kernels on (length, length) integers, twice per pass).
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.features.architectures.layers import (
    dropout,
    embed,
    indices,
    merge_heads,
    padding_scores,
    split_heads,
    token_loss,
)
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """Sizes of a Switch Transformer; `layers` counts encoder and decoder blocks each."""

    layers: int
    width: int
    heads: int
    head_width: int
    hidden: int
    experts: int = 4
    capacity: int = 64
    sparse_step: int = 2
    vocabulary: int = 32128
    buckets: int = 32


@dataclass(frozen=True, slots=True)
class _Builder:
    """A graph under construction with the sizes that all layers share."""

    b: GraphBuilder
    c: SwitchConfig
    batch: int
    length: int
    training: bool
    router_logits: list[Tensor]

    def drop(self, x: Tensor) -> Tensor:
        """Dropout where training."""
        return dropout(self.b, self.training, x)


def switch_transformer(
    config: SwitchConfig, *, batch: int = 1, sequence: int = 512, training: bool = False
) -> bytes:
    """ONNX bytes on (batch, sequence) ids for both sides; the experts' buffers need the batch as a number."""
    b = GraphBuilder(f"switch_{config.layers}x{config.width}")
    ids = b.input("input_ids", (batch, sequence), DType.INT64)
    decoder_ids = b.input("decoder_input_ids", (batch, sequence), DType.INT64)
    padding = padding_scores(b, b.input("attention_mask", (batch, sequence), DType.INT64))
    decoder_mask = b.input("decoder_attention_mask", (batch, sequence), DType.INT64)
    tokens = b.parameter((config.vocabulary, config.width), "tokens")
    encoder = _Builder(b, config, batch, sequence, training, [])
    encoded = _stack(encoder, encoder.drop(embed(b, ids, tokens)), padding, None)
    decoder = _Builder(b, config, batch, sequence, training, [])
    causal = _causal_scores(b, decoder_mask, sequence)
    decoded = _stack(decoder, decoder.drop(embed(b, decoder_ids, tokens)), causal, (encoded, padding))
    scaled = b.mul(decoded, b.constant(config.width**-0.5))
    rows: Tensor = b.op("Gemm", [b.reshape(scaled, [-1, config.width]), tokens], transB=1)
    logits = b.reshape(rows, [batch, sequence, config.vocabulary])
    losses = [term for side in (encoder, decoder) for term in _router_losses(b, side)]
    if training:
        total = token_loss(b, logits, b.input("labels", (batch, sequence), DType.INT64))
        for term in losses:
            total = b.add(total, b.mul(term, b.constant(0.001)))
        return b.build([total])
    return b.build([logits, *losses])


def _stack(s: _Builder, x: Tensor, scores_mask: Tensor, memory: tuple[Tensor, Tensor] | None) -> Tensor:
    """All blocks of one side; `memory` (encoded tokens, their padding scores) makes it a decoder."""
    b = s.b
    own = b.add(_relative_positions(s), scores_mask)
    crossed = _no_positions(s, memory[1]) if memory else None
    for index in range(s.c.layers):
        normed = _rms_norm(b, x)
        x = b.add(x, s.drop(_attention(s, normed, normed, own)))
        if memory and crossed:
            x = b.add(x, s.drop(_attention(s, _rms_norm(b, x), memory[0], crossed)))
        normed = _rms_norm(b, x)
        sparse = index % s.c.sparse_step == s.c.sparse_step - 1
        hidden = _experts(s, normed) if sparse else _feed_forward(s, normed)
        x = b.add(x, s.drop(hidden))
    return s.drop(_rms_norm(b, x))


def _rms_norm(b: GraphBuilder, x: Tensor) -> Tensor:
    """T5's norm: square, mean, plus epsilon, one over root, two products."""
    return b.rms_norm(x)


def _attention(s: _Builder, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
    b, c = s.b, s.c
    inner = c.heads * c.head_width
    query, key, value = (_matrix(b, t, inner) for t in (x, source, source))
    scores = b.matmul(split_heads(b, query, c.heads), split_heads(b, key, c.heads, keys=True))
    mixed = b.matmul(s.drop(b.softmax(b.add(scores, bias))), split_heads(b, value, c.heads))
    return _matrix(b, merge_heads(b, mixed), c.width)


def _matrix(b: GraphBuilder, x: Tensor, features: int) -> Tensor:
    return b.linear(x, features, bias=False)


def _feed_forward(s: _Builder, x: Tensor) -> Tensor:
    b = s.b
    return _matrix(b, s.drop(b.relu(_matrix(b, x, s.c.hidden))), s.c.width)


def _experts(s: _Builder, x: Tensor) -> Tensor:
    """Route every token to one expert; tokens above an expert's capacity pass unchanged."""
    b, c = s.b, s.c
    logits = _matrix(b, x, c.experts)
    s.router_logits.append(logits)
    chances = b.softmax(logits)
    choice = b.op("ArgMax", [chances], axis=-1, keepdims=0)
    chosen = b.op("OneHot", [choice, b.constant(c.experts), b.constant([0, 1])], axis=-1)
    places = b.op("CumSum", [chosen, b.constant(1)])
    fits = b.op("Cast", [b.op("LessOrEqual", [places, b.constant(c.capacity)])], to=7)
    routed = b.mul(chosen, fits)
    best = b.op("ReduceMax", [chances, b.constant([-1])], keepdims=1)
    rows = b.reshape(x, [-1, c.width])
    result = rows
    for expert in range(c.experts):
        mask = b.reshape(b.slice(routed, expert, expert + 1, axis=2), [-1])
        slots = b.constant([s.batch * min(c.capacity, s.length)])
        _, where = b.op("TopK", [mask, slots], 2, axis=0)
        picked = _feed_forward(s, b.gather(rows, where, axis=0))
        result = b.op("ScatterND", [result, b.reshape(where, [-1, 1]), picked])
    return b.mul(best, b.reshape(result, [s.batch, s.length, c.width]))


def _relative_positions(s: _Builder) -> Tensor:
    """Learned bias per head and relative distance: (1, heads, length, length)."""
    b, c = s.b, s.c
    table = b.parameter((c.buckets, c.heads), "relative_bias")
    rows = embed(b, indices(b, (s.length, s.length), "relative_bucket"), table)
    return b.reshape(b.transpose(rows, [2, 0, 1]), [1, c.heads, s.length, s.length])


def _no_positions(s: _Builder, padding: Tensor) -> Tensor:
    """Cross-attention has no positions: zeros, allocated and added to the padding scores all the same."""
    zeros = s.b.op("Expand", [s.b.constant(0.0), s.b.constant([1, s.c.heads, s.length, s.length])])
    return s.b.add(zeros, padding)


def _causal_scores(b: GraphBuilder, mask: Tensor, length: int) -> Tensor:
    """Additive scores (batch, 1, length, length) from a triangle and a padding mask."""
    triangle = b.op("Cast", [b.parameter((1, 1, length, length), "triangle", DType.BOOL)], to=1)
    allowed = b.mul(triangle, b.reshape(b.op("Cast", [mask], to=1), [0, 1, 1, -1]))
    return b.mul(b.sub(b.constant(1.0), allowed), b.constant(-3.4e38))


def _router_losses(b: GraphBuilder, s: _Builder) -> list[Tensor]:
    """The z-loss and the load-balancing loss over all routers of one side."""
    if not s.router_logits:
        return []
    logits = b.concat(s.router_logits, axis=1)
    size = b.op("ReduceLogSumExp", [logits, b.constant([-1])], keepdims=0)
    z_loss = b.reduce_mean(b.op("Pow", [size, b.constant(2.0)]), [0, 1])
    chances = b.softmax(logits)
    choice = b.op("ArgMax", [chances], axis=-1, keepdims=0)
    chosen = b.op("OneHot", [choice, b.constant(s.c.experts), b.constant([0.0, 1.0])], axis=-1)
    balance = b.mul(b.reduce_mean(chosen, [1]), b.reduce_mean(chances, [1]))
    return [z_loss, b.reduce_mean(balance, [0, 1])]
