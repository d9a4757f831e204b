"""GPT-2, OPT and BERT from their published configurations, as the eager HuggingFace implementations run them.

Attention is written out (product, scale, mask, softmax, product). With `training`, dropout stands where the
implementations drop and the cross entropy over `labels` ends the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from predictor.errors import InvalidRequest
from predictor.features.architectures.layers import (
    dropout,
    embed,
    indices,
    merge_heads,
    padding_scores,
    projection,
    split_heads,
    tanh_gelu,
    token_loss,
)
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

_Body: TypeAlias = "Callable[[GraphBuilder, TransformerConfig, Tensor, int | str, bool], tuple[Tensor, ...]]"


class Style(StrEnum):
    """Which published block is repeated."""

    GPT2 = "gpt2"
    OPT = "opt"
    BERT = "bert"


class Head(StrEnum):
    """What follows the last block."""

    LANGUAGE = "language"
    CLASSIFIER = "classifier"
    SPANS = "spans"
    PRETRAINING = "pretraining"
    POOLER = "pooler"


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Sizes of a transformer; `hidden` is the feed-forward width, `positions` that of the position table."""

    style: Style
    layers: int
    width: int
    heads: int
    hidden: int
    vocabulary: int
    positions: int
    head: Head = Head.LANGUAGE

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InvalidRequest(f"width {self.width} is not a multiple of {self.heads} heads", field="heads")


def transformer(
    config: TransformerConfig,
    *,
    batch: int | str = "batch",
    sequence: int | None = None,
    training: bool = False,
) -> bytes:
    """ONNX bytes of the model on (batch, sequence) token ids; `sequence` defaults to the position table.

    Raises InvalidRequest when the sequence is longer than the position table.
    """
    length = config.positions if sequence is None else sequence
    if not 0 < length <= config.positions:
        raise InvalidRequest(
            f"sequence is {length}; expected 1 to {config.positions} tokens", field="sequence"
        )
    b = GraphBuilder(f"{config.style}_{config.layers}x{config.width}")
    ids = b.input("input_ids", (batch, length), DType.INT64)
    outputs = _MODELS[config.style](b, config, ids, batch, training)
    if training:
        outputs = (_loss(b, config.head, outputs, (batch, length)),)
    return b.build(outputs)


def _loss(b: GraphBuilder, head: Head, outputs: tuple[Tensor, ...], shape: tuple[int | str, int]) -> Tensor:
    """Cross entropy per head; labels enter as inputs `labels` and, for a second term, `second_labels`."""
    batch, length = shape
    logits = outputs[0]
    if head is Head.LANGUAGE:
        # Position t is scored against token t + 1; the shifted logits are a copy.
        labels = b.slice(b.input("labels", shape, DType.INT64), 1, length, axis=1)
        return token_loss(b, b.slice(logits, 0, length - 1, axis=1), labels)
    if head is Head.SPANS:
        start, end = b.split(b.transpose(logits, [0, 2, 1]), 2, axis=1)
        first = token_loss(b, start, b.input("labels", (batch,), DType.INT64))
        return b.add(first, token_loss(b, end, b.input("second_labels", (batch,), DType.INT64)))
    if head is Head.CLASSIFIER:
        return token_loss(b, logits, b.input("labels", (batch,), DType.INT64))
    if head is Head.PRETRAINING:
        words = token_loss(b, logits, b.input("labels", shape, DType.INT64))
        return b.add(words, token_loss(b, outputs[1], b.input("second_labels", (batch,), DType.INT64)))
    raise InvalidRequest(f"a model with head {head} has no loss; choose a head with logits", field="training")


def _gpt2(
    b: GraphBuilder, c: TransformerConfig, ids: Tensor, batch: int | str, training: bool
) -> tuple[Tensor, ...]:
    drop = partial(dropout, b, training)
    length = ids.size(1)
    tokens = b.parameter((c.vocabulary, c.width), "tokens")
    positions = b.parameter((c.positions, c.width), "positions")
    triangle = b.parameter((1, 1, c.positions, c.positions), "triangle", DType.BOOL)
    if length < c.positions:
        triangle = b.slice(b.slice(triangle, 0, length, axis=2), 0, length, axis=3)
    x = b.add(embed(b, ids, tokens), embed(b, indices(b, (1, length), "position_ids"), positions))
    x = drop(x)
    for _ in range(c.layers):
        query, key, value = b.split(projection(b, b.layer_norm(x), 3 * c.width), 3, axis=-1)
        scores = b.matmul(split_heads(b, query, c.heads), split_heads(b, key, c.heads, keys=True))
        scores = b.div(scores, b.constant((c.width / c.heads) ** 0.5))
        scores = b.op("Where", [triangle, scores, b.constant(-3.4e38)])
        mixed = b.matmul(drop(b.softmax(scores)), split_heads(b, value, c.heads))
        x = b.add(drop(projection(b, merge_heads(b, mixed), c.width)), x)
        hidden = tanh_gelu(b, projection(b, b.layer_norm(x), c.hidden))
        x = b.add(x, drop(projection(b, hidden, c.width)))
    return (projection(b, b.layer_norm(x), c.vocabulary, weight=tokens, bias=False),)


def _opt(
    b: GraphBuilder, c: TransformerConfig, ids: Tensor, batch: int | str, training: bool
) -> tuple[Tensor, ...]:
    drop = partial(dropout, b, training)
    length = ids.size(1)
    tokens = b.parameter((c.vocabulary, c.width), "tokens")
    # The first two rows are reserved by the implementation.
    positions = b.parameter((c.positions + 2, c.width), "positions")
    mask = b.input("attention_mask", (batch, length), DType.INT64)
    counted = b.sub(b.mul(b.op("CumSum", [mask, b.constant(1)]), mask), b.constant(1))
    places = b.add(counted, b.constant(2))
    x = b.add(embed(b, ids, tokens), embed(b, places, positions))
    scores_mask = _opt_mask(b, mask, length)
    for _ in range(c.layers):
        normed = b.layer_norm(x)
        query = b.mul(projection(b, normed, c.width), b.constant((c.width / c.heads) ** -0.5))
        key, value = projection(b, normed, c.width), projection(b, normed, c.width)
        scores = b.matmul(split_heads(b, query, c.heads), split_heads(b, key, c.heads, keys=True))
        scores = b.op("Max", [b.add(scores, scores_mask), b.constant(-3.4e38)])
        mixed = b.matmul(drop(b.softmax(scores)), split_heads(b, value, c.heads))
        x = b.add(x, drop(projection(b, merge_heads(b, mixed), c.width)))
        hidden = b.relu(projection(b, b.layer_norm(x), c.hidden))
        x = b.add(x, drop(projection(b, hidden, c.width)))
    return (projection(b, b.layer_norm(x), c.vocabulary, weight=tokens, bias=False),)


def _opt_mask(b: GraphBuilder, mask: Tensor, length: int) -> Tensor:
    """Causal and padding scores, (batch, 1, length, length), made once per forward pass."""
    causal = b.parameter((1, 1, length, length), "causal", DType.BOOL)
    lowest = b.constant(-3.4e38)
    spread = b.reshape(b.op("Cast", [mask], to=1), [0, 1, 1, -1])
    grown = b.op("Expand", [spread, b.constant([1, 1, length, 1])])
    inverted = b.sub(b.constant(1.0), grown)
    padded = b.op("Where", [b.op("Cast", [inverted], to=9), lowest, inverted])
    combined: Tensor = b.op("Where", [causal, padded, lowest])
    return combined


def _bert(
    b: GraphBuilder, c: TransformerConfig, ids: Tensor, batch: int | str, training: bool
) -> tuple[Tensor, ...]:
    drop = partial(dropout, b, training)
    length = ids.size(1)
    tokens = b.parameter((c.vocabulary, c.width), "tokens")
    segments = b.input("token_type_ids", (batch, length), DType.INT64)
    scores_mask = padding_scores(b, b.input("attention_mask", (batch, length), DType.INT64))
    x = b.add(embed(b, ids, tokens), embed(b, segments, b.parameter((2, c.width), "segments")))
    positions = b.parameter((c.positions, c.width), "positions")
    x = b.add(x, embed(b, indices(b, (1, length), "position_ids"), positions))
    x = drop(b.layer_norm(x, epsilon=1e-12))
    for _ in range(c.layers):
        query, key, value = (projection(b, x, c.width) for _ in range(3))
        scores = b.matmul(split_heads(b, query, c.heads), split_heads(b, key, c.heads, keys=True))
        scores = b.add(b.div(scores, b.constant((c.width / c.heads) ** 0.5)), scores_mask)
        mixed = b.matmul(drop(b.softmax(scores)), split_heads(b, value, c.heads))
        joined = drop(projection(b, merge_heads(b, mixed), c.width))
        x = b.layer_norm(b.add(joined, x), epsilon=1e-12)
        hidden = b.gelu(projection(b, x, c.hidden))
        x = b.layer_norm(b.add(drop(projection(b, hidden, c.width)), x), epsilon=1e-12)
    return _bert_head(b, c, x, tokens, training)


def _bert_head(
    b: GraphBuilder, c: TransformerConfig, x: Tensor, tokens: Tensor, training: bool
) -> tuple[Tensor, ...]:
    if c.head is Head.SPANS:
        return (projection(b, x, 2),)
    first = b.reshape(b.slice(x, 0, 1, axis=1), [-1, c.width])
    pooled = b.tanh(projection(b, first, c.width))
    if c.head is Head.POOLER:
        return x, pooled
    if c.head is Head.CLASSIFIER:
        return (projection(b, dropout(b, training, pooled), 2),)
    transformed = b.layer_norm(b.gelu(projection(b, x, c.width)), epsilon=1e-12)
    words = projection(b, transformed, c.vocabulary, weight=tokens)
    return (words, projection(b, pooled, 2)) if c.head is Head.PRETRAINING else (words,)


_MODELS: dict[Style, _Body] = {
    Style.GPT2: _gpt2,
    Style.OPT: _opt,
    Style.BERT: _bert,
}


def gpt2_like(layers: int, width: int, heads: int, *, positions: int = 1024) -> TransformerConfig:
    """A GPT-2 shape: feed-forward four times the width, GPT-2's vocabulary."""
    return TransformerConfig(Style.GPT2, layers, width, heads, 4 * width, 50257, positions)


def opt_like(layers: int, width: int, heads: int) -> TransformerConfig:
    """An OPT shape: feed-forward four times the width, OPT's vocabulary, 2048 positions."""
    return TransformerConfig(Style.OPT, layers, width, heads, 4 * width, 50272, 2048)


def bert_like(layers: int, width: int, heads: int, head: Head = Head.CLASSIFIER) -> TransformerConfig:
    """A BERT shape: feed-forward four times the width, BERT's vocabulary, 512 positions."""
    return TransformerConfig(Style.BERT, layers, width, heads, 4 * width, 30522, 512, head)
