"""DeBERTa-v2 and -v3: attention written out, with products of contents and relative positions both ways.

Queries and keys of the positions come from the same matrices as those of the words where the configuration
shares them (`share_att_key`): one set of weights, applied twice per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from predictor.errors import InvalidRequest
from predictor.features.architectures.huggingface.fields import ACTIVATION, HEADS, HIDDEN, LAYERS, WIDTH
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.parts import (
    FeedForward,
    Norm,
    NormKind,
    activation,
    pooled,
)
from predictor.features.architectures.huggingface.stack import Arrangement, block, word_scores
from predictor.features.architectures.layers import embed, indices, merge_heads, split_heads
from predictor.features.builder import Tensor


@dataclass(frozen=True, slots=True)
class _Relative:
    """The table of relative positions, (2 * span, width), and how it enters the scores."""

    table: Tensor
    kinds: tuple[str, ...]
    shared: bool


def deberta(job: Job) -> Sequence[Tensor]:
    """Token ids to hidden states, scores of words, classes or spans."""
    task = job.among(Task.BASE, Task.LANGUAGE, Task.CLASSIFIER, Task.TOKENS, Task.SPANS)
    b, f = job.b, job.fields
    if f.integer("conv_kernel_size", default=0, least=0):
        raise InvalidRequest(
            "field 'conv_kernel_size' is set; perfcast builds this family without its convolution only",
            field="conv_kernel_size",
        )
    width, norm = f.integer(*WIDTH), Norm(NormKind.LAYER, f.number("layer_norm_eps", default=1e-7))
    narrow = f.integer("embedding_size", default=width)
    tokens = b.parameter((f.integer("vocab_size"), narrow), "tokens")
    x = _embedded(job, tokens, norm)
    relative = _relative(job, norm)
    feed_forward = FeedForward(f.integer(*HIDDEN), f.text(*ACTIVATION, default="gelu"), bias=True)
    for _ in range(f.layers(*LAYERS)):
        branches = (partial(_attention, job, relative), partial(feed_forward, b))
        x = block(b, x, branches, norm, Arrangement.AFTER)
    act = activation(f.text(*ACTIVATION, default="gelu"))
    if task is Task.LANGUAGE:
        inner = norm(b, act(b, b.linear(x, narrow)))
        return [word_scores(b, inner, tokens, tokens.size(0), bias=True)]
    if task is Task.CLASSIFIER:
        between = activation(f.text("pooler_hidden_act", default="gelu"))
        return [b.linear(pooled(b, x, between), f.labels)]
    heads = {Task.TOKENS: f.labels, Task.SPANS: 2}
    return [b.linear(x, heads[task]) if task in heads else x]


def _embedded(job: Job, tokens: Tensor, norm: Norm) -> Tensor:
    b, f = job.b, job.fields
    width, narrow, kinds = (
        f.integer(*WIDTH),
        tokens.size(-1),
        f.integer("type_vocab_size", default=0, least=0),
    )
    x = embed(b, job.ids(), tokens)
    if f.flag("position_biased_input", default=True):
        rows = f.integer("max_position_embeddings")
        job.check_positions(rows)
        table = b.parameter((rows, narrow), "positions")
        x = b.add(x, embed(b, indices(b, (1, job.sequence), "position_ids"), table))
    if kinds:
        x = b.add(x, embed(b, job.ids("token_type_ids"), b.parameter((kinds, narrow), "segments")))
    if narrow != width:
        x = b.linear(x, width, bias=False)
    return norm(b, x)


def _relative(job: Job, norm: Norm) -> _Relative | None:
    f = job.fields
    if not f.flag("relative_attention", default=False):
        return None
    longest = f.integer("max_relative_positions", default=-1, least=-1)
    span = f.integer("position_buckets", default=-1, least=-1)
    if span < 1:
        span = longest if longest > 0 else f.integer("max_position_embeddings")
    table = job.b.parameter((2 * span, f.integer(*WIDTH)), "relative")
    if "layer_norm" in f.words("norm_rel_ebd"):
        table = norm(job.b, table)
    shared = f.flag("share_att_key", default=False)
    return _Relative(table, tuple(kind.strip() for kind in f.words("pos_att_type")), shared)


def _attention(job: Job, relative: _Relative | None, x: Tensor) -> Tensor:
    b, f = job.b, job.fields
    width, heads = x.size(-1), f.integer(*HEADS)
    size = f.integer("attention_head_size", default=f.divided(width, heads, *HEADS))
    inner = heads * size
    weights = [(b.parameter((width, inner), "weight"), b.parameter((inner,), "bias")) for _ in range(3)]

    def project(source: Tensor, index: int) -> Tensor:
        weight, bias = weights[index]
        return b.add(b.matmul(source, weight), bias)

    query, key, value = (split_heads(b, project(x, index), heads) for index in range(3))
    kinds = relative.kinds if relative else ()
    scale = b.constant((size * (1 + len(kinds))) ** 0.5)
    scores = b.matmul(query, b.div(b.transpose(key, [0, 1, 3, 2]), scale))

    def positions(index: int) -> Tensor:
        """(1, heads, head size, 2 * span): keys (1) or queries (0) of the relative positions."""
        assert relative is not None
        rows = b.op("Unsqueeze", [relative.table, b.constant([0])])
        projected = project(rows, index) if relative.shared else b.linear(rows, inner)
        return split_heads(b, projected, heads, keys=True)

    for kind, source, index in (("c2p", query, 1), ("p2c", key, 0)):
        if kind not in kinds:
            continue
        against = b.matmul(source, positions(index))
        places = job.once(("distance", kind), partial(indices, b, (1, 1, job.sequence, job.sequence), kind))
        wide = b.expand(places, (job.batch, heads, job.sequence, job.sequence))
        picked = b.op("GatherElements", [against, wide], axis=-1)
        if kind == "p2c":
            picked = b.transpose(picked, [0, 1, 3, 2])
        scores = b.add(scores, b.div(picked, scale))
    mixed = b.matmul(b.softmax(scores), value)
    return b.linear(merge_heads(b, mixed), width)


FAMILIES: Mapping[str, Family] = {"deberta-v2": deberta}
