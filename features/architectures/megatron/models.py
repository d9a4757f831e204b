"""Megatron-LM's GPT, BERT and T5 from the embedding to the loss, as the graph of one rank's microbatch."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.features.architectures.megatron.config import MegatronConfig, Style
from predictor.features.architectures.megatron.experts import expert_block
from predictor.features.architectures.megatron.latent import latent_block
from predictor.features.architectures.megatron.rank_graph import RankGraphBuilder
from predictor.features.architectures.megatron.transformer import (
    attention_block,
    core_attention,
    enter,
    feed_forward,
    leave,
    norm_weights,
    residual,
    state_space_block,
)
from predictor.features.dtype import DType
from predictor.features.graph import Graph


@dataclass(frozen=True, slots=True)
class RankGraph:
    """A lowered graph, the piece that each of its nodes belongs to, and what backward runs again.

    Attributes:
        pieces: by node: `embedding`, `layer0` ..., `head`.
        experts: weights that only ranks with the same experts share.
        again: runs of nodes for predictor.features.programs.program.program_of.
        away: values that leave for the host between the passes.
    """

    graph: Graph
    pieces: tuple[str, ...]
    experts: frozenset[str]
    again: tuple[tuple[int, ...], ...]
    away: frozenset[str]


def megatron_graph(c: MegatronConfig) -> RankGraph:
    """The graph of a rank that runs the whole depth of the model; stages are cut from it."""
    b = RankGraphBuilder(c.dtype)
    loss = _MODELS[c.style](b, c)
    graph = b.graph([loss], c.micro_batch, f"megatron-{c.style}-{hash(repr(c)) & 0xFFFFFFFF:08x}")
    return RankGraph(graph, tuple(b.pieces), frozenset(b.experts), tuple(b.again), frozenset(b.away))


def _embedded(
    b: RankGraphBuilder, c: MegatronConfig, table: str, name: str, sequence: int, positions: str | None
) -> str:
    tokens = sequence * c.micro_batch // c.cp
    ids = b.input(name, tokens)
    x = b.node("Gather", (table, ids), (tokens, c.hidden), domain="", dtype=c.dtype, axis=0)
    if positions is not None:
        places = b.input(f"{name}.positions", tokens)
        x = b.add(
            x, b.node("Gather", (positions, places), (tokens, c.hidden), domain="", dtype=c.dtype, axis=0)
        )
    return x


def _entered(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    """Sequence-major, split among tensor ranks where the sequence is, some of it dropped."""
    x = b.copy(leave(b, c, x))
    return b.dropout(x, c.hidden_dropout)


def _layer(b: RankGraphBuilder, c: MegatronConfig, index: int, x: str, sequence: int, *, causal: bool) -> str:
    b.piece = f"layer{index}"
    first = len(b.nodes)
    x = _block(b, c, x, sequence, causal=causal, mixed=c.has_experts(index))
    if "layer" in c.recomputed and (c.recomputed_layers is None or index < c.recomputed_layers):
        b.again.append(tuple(range(first, len(b.nodes))))
    return x


def _block(
    b: RankGraphBuilder, c: MegatronConfig, x: str, sequence: int, *, causal: bool, mixed: bool
) -> str:
    if c.latent is None:
        branch = attention_block(b, c, x, sequence, causal=causal)
    else:
        branch = latent_block(b, c, x, sequence)
    x = residual(b, c, x, branch, c.hidden)
    return residual(b, c, x, expert_block(b, c, x) if mixed else feed_forward(b, c, x, c.ffn), c.hidden)


def _scores(b: RankGraphBuilder, c: MegatronConfig, x: str, table: str, bias: bool = False) -> str:
    """A part of the vocabulary for all tokens."""
    kept = b.weight("output.bias", c.vocabulary // c.tp) if bias else None
    return b.linear(enter(b, c, x), table, kept, transposed=True)


def _loss(b: RankGraphBuilder, c: MegatronConfig, scores: str) -> str:
    labels = b.input("labels", b.shape(scores)[0])
    shapes = ((b.shape(scores)[0],), *[b.shape(scores)] * c.loss_copies)
    return b.nodes_of(
        "TokenLoss", (scores, labels), shapes, dtype=DType.FLOAT32, in_place=int(not c.wide_loss)
    )[0]


def _gpt(b: RankGraphBuilder, c: MegatronConfig) -> str:
    b.input("loss_mask", c.tokens, dtype=DType.FLOAT32)
    table = b.weight("tokens", c.vocabulary // c.tp, c.hidden)
    positions = b.weight("positions", c.positions, c.hidden) if c.positions else None
    x = _entered(b, c, _embedded(b, c, table, "tokens", c.sequence, positions))
    for index in range(c.layers):
        x = _layer(b, c, index, x, c.sequence, causal=True)
    b.piece = "head"
    final = b.norm(x, norm_weights(b, c, c.hidden))
    head = table if c.tied else b.weight("output", c.vocabulary // c.tp, c.hidden)
    total = _loss(b, c, _scores(b, c, final, head))
    for _ in range(c.future_layers):
        ids = b.input(f"tokens.{len(b.inputs)}", c.tokens)
        embedded = leave(
            b, c, b.node("Gather", (table, ids), (c.tokens, c.hidden), domain="", dtype=c.dtype, axis=0)
        )
        parts = [b.norm(part, norm_weights(b, c, c.hidden)) for part in (embedded, x)]
        tokens = b.shape(x)[0]
        joined = b.node("Concat", parts, (tokens, 2 * c.hidden), domain="", axis=-1)
        x = b.linear(joined, b.weight("future", 2 * c.hidden, c.hidden))
        x = _block(b, c, x, c.sequence, causal=True, mixed=c.has_experts(c.layers - 1))
        total = b.add(total, _loss(b, c, _scores(b, c, b.norm(x, norm_weights(b, c, c.hidden)), head)))
    return total


def _hybrid(b: RankGraphBuilder, c: MegatronConfig) -> str:
    assert c.spaces is not None
    table = b.weight("tokens", c.vocabulary // c.tp, c.hidden)
    positions = b.weight("positions", c.positions, c.hidden) if c.positions else None
    x = _entered(b, c, _embedded(b, c, table, "tokens", c.sequence, positions))
    for index, kind in enumerate(c.spaces.pattern):
        b.piece = f"layer{index}"
        if kind == "M":
            branch = state_space_block(b, c, x)
        elif kind == "*":
            branch = attention_block(b, c, x, c.sequence, causal=True)
        elif kind == "E":
            branch = expert_block(b, c, x)
        else:
            branch = feed_forward(b, c, x, c.ffn)
        x = residual(b, c, x, branch, c.hidden)
    b.piece = "head"
    head = table if c.tied else b.weight("output", c.vocabulary // c.tp, c.hidden)
    return _loss(b, c, _scores(b, c, b.norm(x, norm_weights(b, c, c.hidden)), head))


def _bert(b: RankGraphBuilder, c: MegatronConfig) -> str:
    table = b.weight("tokens", c.vocabulary // c.tp, c.hidden)
    positions = b.weight("positions", c.positions, c.hidden)
    x = _embedded(b, c, table, "tokens", c.sequence, positions)
    if c.binary_head:
        kinds = b.weight("tokentypes", 2, c.hidden)
        places = b.input("types", c.tokens)
        x = b.add(x, b.node("Gather", (kinds, places), b.shape(x), domain="", dtype=c.dtype, axis=0))
    x = _entered(b, c, x)
    for index in range(c.layers):
        x = _layer(b, c, index, x, c.sequence, causal=False)
    b.piece = "head"
    x = b.norm(x, norm_weights(b, c, c.hidden))
    first = None
    if c.binary_head:
        pooled = b.copy(b.slices(x, ((c.micro_batch, c.hidden),))[0])
        pooled = b.linear(pooled, b.weight("pooler", c.hidden, c.hidden), b.weight("pooler.bias", c.hidden))
        pooled = b.node("Tanh", (pooled,), b.shape(pooled), domain="")
        first = b.linear(pooled, b.weight("binary", c.hidden, 2), b.weight("binary.bias", 2))
    hidden = b.linear(x, b.weight("lm_dense", c.hidden, c.hidden), b.weight("lm_dense.bias", c.hidden))
    hidden = b.norm(b.node("Gelu", (hidden,), b.shape(hidden), spelling="tanh"), norm_weights(b, c, c.hidden))
    loss = _loss(b, c, _scores(b, c, hidden, table, bias=True))
    if first is None:
        return loss
    extra = b.node("ReduceMean", (b.cast(first, DType.FLOAT32),), (), domain="", dtype=DType.FLOAT32)
    return b.add(loss, extra)


def _t5(b: RankGraphBuilder, c: MegatronConfig) -> str:
    table = b.weight("tokens", c.vocabulary // c.tp, c.hidden)
    positions = b.weight("positions", c.positions, c.hidden) if c.positions else None
    x = _entered(b, c, _embedded(b, c, table, "tokens", c.sequence, positions))
    for index in range(c.layers):
        x = _layer(b, c, index, x, c.sequence, causal=False)
    memory = b.norm(x, norm_weights(b, c, c.hidden))
    y = _entered(b, c, _embedded(b, c, table, "decoder_tokens", c.decoder_sequence, positions))
    for index in range(c.decoder_layers):
        b.piece = f"layer{c.layers + index}"
        first = len(b.nodes)
        y = residual(b, c, y, attention_block(b, c, y, c.decoder_sequence, causal=True), c.hidden)
        y = residual(b, c, y, _cross(b, c, y, memory), c.hidden)
        y = residual(b, c, y, feed_forward(b, c, y, c.ffn), c.hidden)
        if "layer" in c.recomputed:
            b.again.append(tuple(range(first, len(b.nodes))))
    b.piece = "head"
    return _loss(b, c, _scores(b, c, b.norm(y, norm_weights(b, c, c.hidden)), table, bias=True))


def _cross(b: RankGraphBuilder, c: MegatronConfig, x: str, memory: str) -> str:
    """Attention of the decoder to the encoder's result."""
    rows = c.heads // c.tp
    width = rows * c.head_dim
    normed = enter(b, c, b.norm(x, norm_weights(b, c, c.hidden)))
    bias = b.weight("q.bias", width) if c.bias else None
    query = b.linear(normed, b.weight("q", c.hidden, width), bias)
    source = enter(b, c, memory)
    both = b.linear(
        source, b.weight("kv", c.hidden, 2 * width), b.weight("kv.bias", 2 * width) if c.bias else None
    )
    tokens = b.shape(both)[0]
    key, value = b.slices(both, ((tokens, width), (tokens, width)))
    context = core_attention(
        b,
        c,
        query,
        key,
        value,
        c.decoder_sequence,
        rows,
        rows,
        causal=False,
        kv_sequence=c.sequence,
    )
    return leave(b, c, b.linear(context, b.weight("proj", width, c.hidden)))


_MODELS = {Style.GPT: _gpt, Style.BERT: _bert, Style.T5: _t5, Style.HYBRID: _hybrid}
