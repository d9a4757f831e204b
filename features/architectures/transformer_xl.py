"""Transformer-XL as NVIDIA's examples train it on WikiText-103: segments with a memory.

Where the softmax over 267,735 words is `adaptive`, every position scores the 20,000 most frequent ones, and
only those positions score a cluster of rarer words whose word lies in it. Otherwise all score all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from predictor.features.architectures.layers import dropout, embed, token_loss
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType

_VOCABULARY = 267_735
_CUTOFFS = (19_997, 39_997, 199_997)
# Zipf's law on the 103 million words: estimates, no measurement.
_TAIL_SHARES = (0.03, 0.04, 0.0025)


@dataclass(frozen=True, slots=True)
class TransformerXLConfig:
    """Sizes; `segment` is the published target length, as long as the memory."""

    layers: int
    width: int
    heads: int
    hidden: int
    segment: int


def transformer_xl(
    config: TransformerXLConfig,
    *,
    batch: int = 16,
    segment: int | None = None,
    memory: int | None = None,
    adaptive: bool = True,
    training: bool = False,
) -> bytes:
    """ONNX bytes; `memory` defaults to the segment's length. Tensors are (length, batch, width)."""
    length = config.segment if segment is None else segment
    past = length if memory is None else memory
    b = GraphBuilder("transformer_xl")
    ids = b.input("input_ids", (batch, length), DType.INT64)
    table = b.parameter((_VOCABULARY, config.width), "tokens")
    scaled = b.mul(embed(b, b.transpose(ids, [1, 0]), table), b.constant(config.width**0.5))
    x = dropout(b, training, scaled)
    positions = dropout(b, training, b.frozen((length + past, config.width)))
    biases = [
        b.parameter((config.heads, config.width // config.heads), name) for name in ("content", "place")
    ]
    for _ in range(config.layers):
        kept = b.concat([b.frozen((past, batch, config.width)), x], axis=0)
        mixed = _attention(b, config, x, kept, positions, biases, training)
        x = b.layer_norm(b.add(x, dropout(b, training, mixed)))
        inner = dropout(b, training, b.relu(_linear(b, x, config.hidden)))
        x = b.layer_norm(b.add(x, dropout(b, training, _linear(b, inner, config.width))))
    rows = b.reshape(dropout(b, training, x), [batch * length, config.width])
    return b.build(_scored(b, rows, table, training) if adaptive else [_cluster(b, rows, table, training)])


def _linear(b: GraphBuilder, x: Tensor, features: int) -> Tensor:
    rows = b.linear(b.reshape(x, [-1, x.size(-1)]), features)
    return b.reshape(rows, [x.size(0), -1, features])


def _attention(
    b: GraphBuilder,
    config: TransformerXLConfig,
    x: Tensor,
    kept: Tensor,
    positions: Tensor,
    biases: list[Tensor],
    training: bool,
) -> Tensor:
    """Queries of the segment on keys of memory and segment, by content and by relative place."""
    length, seen, batch = x.size(0), kept.size(0), x.size(1)
    heads, width = config.heads, config.width // config.heads
    joined = b.matmul(kept, b.parameter((config.width, 3 * config.width), "qkv"))
    query, key, value = b.split(joined, 3, axis=-1)
    query = b.reshape(b.slice(query, seen - length, seen, axis=0), [length, batch, heads, width])
    place = b.reshape(
        b.matmul(positions, b.parameter((config.width, config.width), "r")), [seen, heads, width]
    )
    split = [0, 0, heads, width]
    by_content, by_place = (b.transpose(b.add(query, bias), [1, 2, 0, 3]) for bias in biases)
    content = b.matmul(by_content, b.transpose(b.reshape(key, split), [1, 2, 3, 0]))
    places = b.matmul(by_place, b.transpose(place, [1, 2, 0]))
    scores = b.mul(b.add(content, _shifted(b, places)), b.constant(width**-0.5))
    mask = b.parameter((1, 1, length, seen), "future", DType.BOOL)
    hidden = b.op("Where", [mask, b.constant(-65504.0), scores])
    mixed = b.matmul(
        dropout(b, training, b.softmax(hidden)), b.transpose(b.reshape(value, split), [1, 2, 0, 3])
    )
    rows = b.reshape(b.transpose(mixed, [2, 0, 1, 3]), [length, batch, config.width])
    return b.matmul(rows, b.parameter((config.width, config.width), "out"))


def _shifted(b: GraphBuilder, x: Tensor) -> Tensor:
    """Row i of (batch, heads, length, seen) moved left by length - i - 1: a padded copy read at an offset."""
    batch, heads, length, seen = (x.size(axis) for axis in range(4))
    zeros = b.frozen((batch, heads, length, 1))
    padded = b.reshape(b.concat([zeros, x], axis=3), [batch, heads, seen + 1, length])
    return b.reshape(b.slice(padded, 1, seen + 1, axis=2), [batch, heads, length, seen])


def _scored(b: GraphBuilder, rows: Tensor, table: Tensor, training: bool) -> list[Tensor]:
    """Loss of the head cluster and of each tail; without `training` the scores."""
    count = rows.size(0)
    words = b.slice(table, 0, _CUTOFFS[0], axis=0)
    head = b.concat([words, b.parameter((len(_CUTOFFS), rows.size(1)), "clusters")], axis=0)
    outputs = [_cluster(b, rows, head, training)]
    for place, share in enumerate(_TAIL_SHARES):
        chosen = b.input(f"positions.{place}", (max(1, round(count * share)),), DType.INT64)
        low = _CUTOFFS[place]
        high = _CUTOFFS[place + 1] if place + 1 < len(_CUTOFFS) else _VOCABULARY
        words = b.slice(table, low, high, axis=0)
        outputs.append(_cluster(b, b.gather(rows, chosen, axis=0), words, training))
    return outputs


def _cluster(b: GraphBuilder, rows: Tensor, words: Tensor, training: bool) -> Tensor:
    bias = b.parameter((words.size(0),), "bias")
    scores: Tensor = b.op("Gemm", [rows, words, bias], transB=1)
    if not training:
        return b.softmax(scores)
    return token_loss(b, scores, b.input(f"labels.{bias.name}", (rows.size(0),), DType.INT64))


TRANSFORMER_XLS: dict[str, Callable[..., bytes]] = {
    "transformer_xl_base": partial(transformer_xl, TransformerXLConfig(16, 512, 8, 2048, 192)),
    "transformer_xl_large": partial(transformer_xl, TransformerXLConfig(18, 1024, 16, 4096, 384)),
}
