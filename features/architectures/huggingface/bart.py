"""BART, mBART, Pegasus, Marian and Whisper: encoder and decoder with learned or stored positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

from predictor.features.architectures.huggingface.attention import Attention
from predictor.features.architectures.huggingface.cache import Caches, LayerCache
from predictor.features.architectures.huggingface.fields import LAYERS, Fields
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.parts import FeedForward, Norm, NormKind, buffer, scaled
from predictor.features.architectures.huggingface.stack import (
    Arrangement,
    Branch,
    block,
    last_token,
    word_scores,
)
from predictor.features.architectures.layers import embed, indices
from predictor.features.builder import Tensor

_NORM = Norm(NormKind.LAYER)


@dataclass(frozen=True, slots=True)
class Variant:
    """What one relative does.

    Attributes:
        arrangement: before or after each branch; before asks for a norm at the end of each side.
        embedding_norm: a norm follows the sum of words and positions.
        reserved: rows of the position table that hold no position.
        word_bias: a bias that is no parameter is added to the scores of words.
    """

    arrangement: Arrangement
    embedding_norm: bool
    reserved: int = 0
    word_bias: bool = True


VARIANTS: Mapping[str, Variant] = {
    "bart": Variant(Arrangement.AFTER, embedding_norm=True, reserved=2),
    "mbart": Variant(Arrangement.BEFORE, embedding_norm=True, reserved=2),
    "pegasus": Variant(Arrangement.BEFORE, embedding_norm=False),
    "marian": Variant(Arrangement.AFTER, embedding_norm=False),
}
_WHISPER = Variant(Arrangement.BEFORE, embedding_norm=False, word_bias=False)


@dataclass(frozen=True, slots=True)
class _Side:
    """Encoder or decoder: sizes that carry its name in the configuration."""

    layers: int
    attention: Attention
    feed_forward: FeedForward


def _side(f: Fields, side: str, *, key_bias: bool = True) -> _Side:
    width, heads = f.integer("d_model"), f.integer(f"{side}_attention_heads")
    head_dim = f.divided(width, heads, f"{side}_attention_heads")
    return _Side(
        f.layers(f"{side}_layers", *LAYERS),
        Attention(heads, heads, head_dim, bias=True, out_bias=True, key_bias=key_bias, causal=False),
        FeedForward(f.integer(f"{side}_ffn_dim"), f.text("activation_function", default="gelu"), bias=True),
    )


def _finish(job: Job, variant: Variant, x: Tensor) -> Tensor:
    return _NORM(job.b, x) if variant.arrangement is Arrangement.BEFORE else x


def _encode(job: Job, variant: Variant, x: Tensor, side: _Side) -> Tensor:
    branches: tuple[Branch, Branch] = (partial(side.attention, job), partial(side.feed_forward, job.b))
    for _ in range(side.layers):
        x = block(job.b, x, branches, _NORM, variant.arrangement)
    return _finish(job, variant, x)


def _decode(job: Job, variant: Variant, x: Tensor, encoded: Tensor | None, side: _Side) -> Tensor:
    a = side.attention
    own = Attention(a.heads, a.heads, a.head_dim, bias=True, out_bias=True, key_bias=a.key_bias)
    for _ in range(side.layers):
        branches: tuple[Branch, ...] = (
            partial(own, job),
            partial(a.cross, job, source=encoded),
            partial(side.feed_forward, job.b),
        )
        x = block(job.b, x, branches, _NORM, variant.arrangement)
    return _finish(job, variant, x)


def _words(job: Job, variant: Variant, name: str, tokens: Tensor, rows: int, length: int) -> Tensor:
    """Word and position vectors of `length` tokens of one side."""
    b, f = job.b, job.fields
    factor = sqrt(tokens.size(-1)) if f.flag("scale_embedding", default=False) else None
    x = scaled(b, embed(b, job.ids(name, length), tokens), factor)
    table = b.parameter((rows + variant.reserved, tokens.size(-1)), f"{name}.positions")
    x = b.add(x, embed(b, indices(b, (1, length), f"{name}.position_ids"), table))
    return _NORM(b, x) if variant.embedding_norm else x


def _scores(
    job: Job, variant: Variant, y: Tensor, tokens: Tensor, encoded: Tensor | None
) -> Sequence[Tensor]:
    if job.task is Task.BASE:
        return [y] if encoded is None else [y, encoded]
    scores = word_scores(job.b, last_token(job, y), tokens, tokens.size(0))
    return [job.b.add(scores, buffer(job.b, tokens.size(0))) if variant.word_bias else scores]


def bart(job: Job, variant: Variant) -> Sequence[Tensor]:
    """Ids of both sides to scores of words, or to hidden states of decoder and encoder."""
    job.among(Task.LANGUAGE, Task.BASE)
    f = job.fields
    rows = f.integer("max_position_embeddings")
    tokens = job.b.parameter((f.integer("vocab_size"), f.integer("d_model")), "tokens")
    job.check_positions(rows)
    encoded = None
    if not job.past:
        x = _words(job, variant, "input_ids", tokens, rows, job.source)
        encoded = _encode(job, variant, x, _side(f, "encoder"))
    y = _words(job, variant, "decoder_input_ids", tokens, rows, job.sequence)
    return _scores(job, variant, _decode(job, variant, y, encoded, _side(f, "decoder")), tokens, encoded)


def whisper(job: Job) -> Sequence[Tensor]:
    """A spectrogram of fixed length and `sequence` token ids to scores of words."""
    job.among(Task.LANGUAGE, Task.BASE)
    b, f = job.b, job.fields
    width, frames = f.integer("d_model"), f.integer("max_source_positions")
    job = replace(job, source=frames)
    encoded = None
    if not job.past:
        # Two convolutions, the second of stride 2.
        features = b.input("input_features", (job.batch, f.integer("num_mel_bins"), 2 * frames))
        x = b.gelu(b.conv(features, width, kernel=3, bias=True))
        x = b.transpose(b.gelu(b.conv(x, width, kernel=3, stride=2, bias=True)), [0, 2, 1])
        x = b.add(x, b.parameter((frames, width), "encoder.positions"))
        encoded = _encode(job, _WHISPER, x, _side(f, "encoder", key_bias=False))
    tokens, rows = b.parameter((f.integer("vocab_size"), width), "tokens"), f.integer("max_target_positions")
    job.check_positions(rows)
    y = _words(job, _WHISPER, "decoder_input_ids", tokens, rows, job.sequence)
    y = _decode(job, _WHISPER, y, encoded, _side(f, "decoder", key_bias=False))
    return _scores(job, _WHISPER, y, tokens, encoded)


def _caches(f: Fields) -> tuple[LayerCache, ...]:
    side = _side(f, "decoder")
    a = side.attention
    return (LayerCache(a.kv_heads, a.head_dim, a.head_dim),) * side.layers


FAMILIES: Mapping[str, Family] = {
    **{name: partial(bart, variant=variant) for name, variant in VARIANTS.items()},
    "whisper": whisper,
}
CACHES: Mapping[str, Caches] = dict.fromkeys(FAMILIES, _caches)
