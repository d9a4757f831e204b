"""BERT and its relatives: encoders of learned positions that normalise after each branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from predictor.features.architectures.huggingface.attention import Attention
from predictor.features.architectures.huggingface.fields import (
    ACTIVATION,
    HEADS,
    HIDDEN,
    LAYERS,
    POSITIONS,
    WIDTH,
)
from predictor.features.architectures.huggingface.job import Family, Job, Task
from predictor.features.architectures.huggingface.parts import (
    FeedForward,
    Norm,
    NormKind,
    activation,
    pooled,
)
from predictor.features.architectures.huggingface.stack import Arrangement, block, word_scores
from predictor.features.architectures.layers import embed, indices
from predictor.features.builder import Tensor

_TASKS = (Task.BASE, Task.LANGUAGE, Task.CLASSIFIER, Task.TOKENS, Task.SPANS)


@dataclass(frozen=True, slots=True)
class Variant:
    """What one relative does differently from BERT.

    Attributes:
        segments: tokens carry a segment.
        pooler: activation of the matrix over the first token, "" for none.
        classifier: activation between the classifier's two matrices, "" where it reads the pooler.
        reserved: the first rows of the position table hold no position (those up to the padding token).
        second_head: classes of the head that pre-training has beside the words; 0 for a detector of
            replaced tokens instead.
        narrow: word vectors have a width of their own, and the head returns to it.
        repeated: layers share their weights within a group.
    """

    segments: bool = True
    pooler: str = "tanh"
    classifier: str = ""
    reserved: bool = False
    second_head: int = 2
    narrow: bool = False
    repeated: bool = False


VARIANTS: Mapping[str, Variant] = {
    "bert": Variant(),
    "roberta": Variant(classifier="tanh", reserved=True),
    "xlm-roberta": Variant(classifier="tanh", reserved=True),
    "camembert": Variant(classifier="tanh", reserved=True),
    "distilbert": Variant(segments=False, pooler="", classifier="relu"),
    "albert": Variant(narrow=True, repeated=True),
    "electra": Variant(pooler="", classifier="gelu", second_head=0, narrow=True),
}


def encoder(job: Job, variant: Variant) -> Sequence[Tensor]:
    """Token ids to hidden states, scores of words, classes or spans."""
    detects = variant.second_head == 0 or variant.pooler != ""
    job.among(*_TASKS, *((Task.PRETRAINING,) if detects else ()))
    b, f = job.b, job.fields
    width, norm = f.integer(*WIDTH), Norm(NormKind.LAYER, f.number("layer_norm_eps", default=1e-12))
    narrow = f.integer("embedding_size", default=128) if variant.narrow else width
    tokens = b.parameter((f.integer("vocab_size"), narrow), "tokens")
    x = _embedded(job, variant, tokens, norm)
    # ALBERT always has the matrix, ELECTRA only where the widths differ.
    if narrow != width or variant.repeated:
        x = b.linear(x, width)
    for index in range(f.layers(*LAYERS)):
        x = _layer(job, variant, x, norm, index)
    return _head(job, variant, x, tokens, norm)


def _embedded(job: Job, variant: Variant, tokens: Tensor, norm: Norm) -> Tensor:
    b, f = job.b, job.fields
    width, rows = tokens.size(-1), f.integer(*POSITIONS)
    job.check_positions(rows - (f.integer("pad_token_id", default=1, least=0) + 1 if variant.reserved else 0))
    x = embed(b, job.ids(), tokens)
    if variant.segments:
        kinds = b.parameter((f.integer("type_vocab_size", default=2), width), "segments")
        x = b.add(x, embed(b, job.ids("token_type_ids"), kinds))
    places = embed(b, indices(b, (1, job.sequence), "position_ids"), b.parameter((rows, width), "positions"))
    return norm(b, b.add(x, places))


def _layer(job: Job, variant: Variant, x: Tensor, norm: Norm, index: int) -> Tensor:
    """One layer; where layers share weights, one of its group's inner layers after the other."""
    b, f = job.b, job.fields
    width, heads = f.integer(*WIDTH), f.integer(*HEADS)
    head_dim = f.divided(width, heads, *HEADS)
    attention = Attention(heads, heads, head_dim, bias=True, out_bias=True, causal=False)
    feed_forward = FeedForward(f.integer(*HIDDEN), f.text(*ACTIVATION, default="gelu"), bias=True)
    branches = (partial(attention, job), partial(feed_forward, b))
    if not variant.repeated:
        return block(b, x, branches, norm, Arrangement.AFTER)
    groups = f.integer("num_hidden_groups", default=1)
    group = min(index * groups // f.layers(*LAYERS), groups - 1)
    for inner in range(f.layers("inner_group_num", default=1)):
        with b.shared_weights(f"{group}.{inner}"):
            x = block(b, x, branches, norm, Arrangement.AFTER)
    return x


def _head(job: Job, variant: Variant, x: Tensor, tokens: Tensor, norm: Norm) -> Sequence[Tensor]:
    b, f, task = job.b, job.fields, job.task
    act = f.text(*ACTIVATION, default="gelu")
    if task is Task.TOKENS:
        return [b.linear(x, f.labels)]
    if task is Task.SPANS:
        return [b.linear(x, 2)]
    if task is Task.PRETRAINING and variant.second_head == 0:
        return [b.linear(activation(act)(b, b.linear(x, x.size(-1))), 1)]
    if task in (Task.LANGUAGE, Task.PRETRAINING):
        inner = norm(b, activation(act)(b, b.linear(x, tokens.size(-1))))
        words = word_scores(b, inner, tokens, tokens.size(0), bias=True)
        if task is Task.LANGUAGE:
            return [words]
        return [words, b.linear(pooled(b, x, activation(variant.pooler)), variant.second_head)]
    if task is Task.CLASSIFIER:
        between = activation(variant.classifier or variant.pooler)
        return [b.linear(pooled(b, x, between), f.labels)]
    return [x, pooled(b, x, activation(variant.pooler))] if variant.pooler else [x]


FAMILIES: Mapping[str, Family] = {
    name: partial(encoder, variant=variant) for name, variant in VARIANTS.items()
}
