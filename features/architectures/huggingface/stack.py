"""How the branches of a block join the residual stream, and the causal language model made of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from predictor.features.architectures.huggingface.fields import Fields
from predictor.features.architectures.huggingface.job import Job, Task
from predictor.features.architectures.huggingface.parts import Norm, scaled
from predictor.features.architectures.layers import embed, indices
from predictor.features.builder import GraphBuilder, Tensor

Branch: TypeAlias = Callable[[Tensor], Tensor]
Layers: TypeAlias = Callable[[Job, int], tuple[Branch, Branch]]
"""Job and number of the layer to its attention and its feed-forward."""


class Arrangement(StrEnum):
    """Where a block normalises."""

    BEFORE = "before"
    """x + f(norm(x))."""
    AFTER = "after"
    """norm(x + f(x))."""
    AROUND = "around"
    """x + norm(f(norm(x)))."""
    RESULT = "result"
    """x + norm(f(x))."""
    PARALLEL = "parallel"
    """x + f(n) + g(n) with one norm n."""
    PARALLEL_NORMS = "parallel_norms"
    """x + f(norm(x)) + g(norm(x))."""


def residual(b: GraphBuilder, x: Tensor, branch: Branch, norm: Norm, arrangement: Arrangement) -> Tensor:
    """One branch added to the stream."""
    inner = norm(b, x) if arrangement in (Arrangement.BEFORE, Arrangement.AROUND) else x
    y = branch(inner)
    if arrangement in (Arrangement.AROUND, Arrangement.RESULT):
        y = norm(b, y)
    joined = b.add(x, y)
    return norm(b, joined) if arrangement is Arrangement.AFTER else joined


def block(
    b: GraphBuilder, x: Tensor, branches: Sequence[Branch], norm: Norm, arrangement: Arrangement
) -> Tensor:
    """All branches of one layer, one after the other or side by side."""
    if arrangement is Arrangement.PARALLEL:
        normed = norm(b, x)
        outputs = [branch(normed) for branch in branches]
    elif arrangement is Arrangement.PARALLEL_NORMS:
        outputs = [branch(norm(b, x)) for branch in branches]
    else:
        for branch in branches:
            x = residual(b, x, branch, norm, arrangement)
        return x
    for output in outputs:
        x = b.add(output, x)
    return x


@dataclass(frozen=True, slots=True)
class Decoder:
    """A causal language model.

    Attributes:
        layer: what each layer consists of.
        positions: rows of a table of learned positions, which starts at row `position_offset`.
        embedding_width: of the word table where it differs from `width`: two matrices adapt it.
        embedding_norm, embedding_scale: what follows the lookup.
        final_norm: False where blocks normalise their own output.
        tied: the head is the word table.
        logit_scale, logit_cap: a factor on the scores of words; a size they are squeezed to by tanh.
    """

    vocabulary: int
    width: int
    layers: int
    norm: Norm
    layer: Layers
    arrangement: Arrangement = Arrangement.BEFORE
    positions: int | None = None
    position_offset: int = 0
    embedding_width: int | None = None
    embedding_norm: bool = False
    embedding_scale: float | None = None
    final_norm: bool = True
    tied: bool = True
    head_bias: bool = False
    logit_scale: float | None = None
    logit_cap: float | None = None


def decoder(job: Job, c: Decoder) -> Sequence[Tensor]:
    """Token ids to scores of words, classes, or hidden states."""
    task = job.among(Task.LANGUAGE, Task.BASE, Task.CLASSIFIER, Task.TOKENS)
    b = job.b
    tokens = b.parameter((c.vocabulary, c.embedding_width or c.width), "tokens")
    x = scaled(b, embed(b, job.ids(), tokens), c.embedding_scale)
    adapted = c.embedding_width is not None and c.embedding_width != c.width
    if adapted:
        x = b.linear(x, c.width, bias=False)
    if c.positions is not None:
        job.check_positions(c.positions)
        table = b.parameter((c.positions + c.position_offset, c.width), "positions")
        x = b.add(x, embed(b, indices(b, (1, job.sequence), "position_ids"), table))
    if c.embedding_norm:
        x = c.norm(b, x)
    for index in range(c.layers):
        x = block(b, x, c.layer(job, index), c.norm, c.arrangement)
    if c.final_norm:
        x = c.norm(b, x)
    if adapted:
        x = b.linear(x, tokens.size(-1), bias=False)
    if task is Task.LANGUAGE:
        x = last_token(job, x)
        scores = word_scores(b, x, tokens if c.tied else None, c.vocabulary, bias=c.head_bias)
        return [_capped(b, scaled(b, scores, c.logit_scale), c.logit_cap)]
    if task is Task.BASE:
        return [x]
    return [classes(job, x, job.fields, task)]


def last_token(job: Job, x: Tensor) -> Tensor:
    """The last token's vector alone, (batch, 1, width), where the job asks for no other; else x."""
    return job.b.slice(x, x.size(1) - 1, x.size(1), axis=1) if job.last_only and x.size(1) > 1 else x


def word_scores(
    b: GraphBuilder, x: Tensor, tied: Tensor | None, vocabulary: int, *, bias: bool = False
) -> Tensor:
    """A score per word: the table of words transposed where tied, else a matrix of its own."""
    if tied is None:
        return b.linear(x, vocabulary, bias=bias, weight=b.parameter((x.size(-1), vocabulary), "head.weight"))
    scores = b.matmul(x, b.transpose(tied, [1, 0]))
    return b.add(scores, b.parameter((vocabulary,), "head.bias")) if bias else scores


def classes(job: Job, x: Tensor, fields: Fields, task: Task) -> Tensor:
    """Classes per token, or of the last token; all tokens are scored either way."""
    b = job.b
    head = b.parameter((x.size(-1), fields.labels), "head.weight")
    scores = b.linear(x, fields.labels, bias=task is Task.TOKENS, weight=head)
    if task is Task.TOKENS:
        return scores
    return b.reshape(b.slice(scores, job.sequence - 1, job.sequence, axis=1), [0, fields.labels])


def _capped(b: GraphBuilder, x: Tensor, cap: float | None) -> Tensor:
    if cap is None:
        return x
    size = b.constant(float(cap))
    return b.mul(b.tanh(b.div(x, size)), size)
