"""T5 and mT5: RMS norms, position biases that all layers of a side share, scores without a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from predictor.features.architectures.huggingface.attention import Attention
from predictor.features.architectures.huggingface.cache import Caches, LayerCache
from predictor.features.architectures.huggingface.fields import HEADS, Fields
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.parts import FeedForward, Norm, NormKind, buffer
from predictor.features.architectures.huggingface.stack import (
    Arrangement,
    Branch,
    block,
    last_token,
    word_scores,
)
from predictor.features.architectures.layers import embed, indices
from predictor.features.builder import Tensor


@dataclass(frozen=True, slots=True)
class _Sizes:
    width: int
    heads: int
    head_dim: int
    feed_forward: FeedForward
    norm: Norm
    buckets: int

    def attention(self, *, causal: bool = False) -> Attention:
        """Scores are not scaled; the initialisation does it."""
        return Attention(self.heads, self.heads, self.head_dim, causal=causal, scale=1.0)


def _sizes(f: Fields, act_default: str) -> _Sizes:
    # "gated-gelu" is the one name whose activation is another than it says.
    *gate, act = f.text("feed_forward_proj", default=act_default).split("-")
    act = "gelu_new" if gate and act == "gelu" else act
    return _Sizes(
        f.integer("d_model"),
        f.integer(*HEADS),
        f.integer("d_kv"),
        FeedForward(f.integer("d_ff"), act, gated=bool(gate)),
        Norm(NormKind.RMS, f.number("layer_norm_epsilon", default=1e-6)),
        f.integer("relative_attention_num_buckets", default=32),
    )


def t5(job: Job, act: str = "relu", scaled_words: bool = True) -> Sequence[Tensor]:
    """Ids of both sides to scores of words, or to hidden states of decoder and encoder."""
    task = job.among(Task.LANGUAGE, Task.BASE)
    b, f = job.b, job.fields
    s = _sizes(f, act)
    tokens = b.parameter((f.integer("vocab_size"), s.width), "tokens")
    layers = f.layers("num_layers", "num_hidden_layers")
    # After cached tokens the encoder has run, and its keys and values are cached as well.
    encoded = None if job.past else _encoded(job, s, tokens, layers)
    y = embed(b, job.ids("decoder_input_ids"), tokens)
    bias = _relative_positions(job, s, job.sequence, job.length)
    # Cross-attention has no positions; zeros are made and added all the same.
    nothing = buffer(b, 1, s.heads, job.sequence, job.source)
    for _ in range(f.layers("num_decoder_layers", default=layers)):
        crossed: Branch = partial(s.attention().cross, job, source=encoded, position_bias=nothing)
        own: Branch = partial(s.attention(causal=True), job, position_bias=bias)
        y = block(b, y, (own, crossed, partial(s.feed_forward, b)), s.norm, Arrangement.BEFORE)
    y = s.norm(b, y)
    if task is Task.BASE:
        return [y] if encoded is None else [y, encoded]
    # The head is the word table even where a configuration denies it; then only the scale is left out.
    y = last_token(job, y)
    if f.flag("tie_word_embeddings", default=scaled_words):
        y = b.mul(y, b.constant(s.width**-0.5))
    return [word_scores(b, y, tokens, tokens.size(0))]


def _encoded(job: Job, s: _Sizes, tokens: Tensor, layers: int) -> Tensor:
    b = job.b
    x = embed(b, job.ids(length=job.source), tokens)
    bias = _relative_positions(job, s, job.source, job.source)
    for _ in range(layers):
        branches = (partial(s.attention(), job, position_bias=bias), partial(s.feed_forward, b))
        x = block(b, x, branches, s.norm, Arrangement.BEFORE)
    return s.norm(b, x)


def _relative_positions(job: Job, s: _Sizes, length: int, keys: int) -> Tensor:
    """(1, heads, length, keys) from a table by distance; the buckets are stored, not recomputed."""
    b = job.b
    table = b.parameter((s.buckets, s.heads), "relative_bias")
    rows = embed(b, indices(b, (length, keys), "relative_bucket"), table)
    return b.reshape(b.transpose(rows, [2, 0, 1]), [1, s.heads, length, keys])


def _caches(f: Fields) -> tuple[LayerCache, ...]:
    layers = f.layers("num_decoder_layers", default=f.layers("num_layers", "num_hidden_layers"))
    return (LayerCache(f.integer(*HEADS), f.integer("d_kv"), f.integer("d_kv")),) * layers


FAMILIES: Mapping[str, Family] = {"t5": t5, "mt5": partial(t5, act="gated-gelu", scaled_words=False)}
CACHES: Mapping[str, Caches] = dict.fromkeys(FAMILIES, _caches)
