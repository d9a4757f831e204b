"""Multi-latent attention as Megatron-LM runs it: compressed queries, keys and values, expanded per head."""

from __future__ import annotations

from predictor.features.architectures.megatron.config import Latent, MegatronConfig
from predictor.features.architectures.megatron.rank_graph import RankGraphBuilder
from predictor.features.architectures.megatron.transformer import (
    core_attention,
    enter,
    leave,
    norm_weights,
    offloadable,
)


def latent_block(b: RankGraphBuilder, c: MegatronConfig, x: str, sequence: int) -> str:
    """Norm, compression, expansion, scores, projection; without the residual.

    Source: megatron/core/transformer/multi_latent_attention.py.
    """
    latent = c.latent
    assert latent is not None
    rows = c.heads // c.tp
    normed = b.norm(offloadable(b, c, x, "attn_norm"), norm_weights(b, c, c.hidden))
    normed = offloadable(b, c, normed, "qkv_linear")
    query = _query(b, c, latent, normed, rows)
    squeezed = b.linear(normed, b.weight("kv_down", c.hidden, latent.kv_rank + latent.rope_dim))
    squeezed = enter(b, c, squeezed)
    tokens = b.shape(squeezed)[0]
    narrow, positions = b.slices(squeezed, ((tokens, latent.kv_rank), (tokens, latent.rope_dim)))
    first = len(b.nodes)
    expanded = b.linear(
        b.norm(b.copy(narrow), norm_weights(b, c, latent.kv_rank)),
        b.weight("kv_up", latent.kv_rank, rows * (latent.nope_dim + latent.value_dim)),
    )
    keys, values = b.slices(expanded, ((tokens, rows * latent.nope_dim), (tokens, rows * latent.value_dim)))
    turned = b.node("RotaryEmbedding", (positions,), (tokens, latent.rope_dim), domain="")
    width = latent.nope_dim + latent.rope_dim
    key = b.node(
        "Concat",
        (keys, b.node("Expand", (turned,), (tokens, rows * latent.rope_dim), domain="")),
        (tokens, rows * width),
        domain="",
        axis=-1,
    )
    if "mla_up_proj" in c.recomputed:
        b.again.append(tuple(range(first, len(b.nodes))))
    context = core_attention(b, c, query, key, values, sequence, rows, rows, causal=True)
    context = offloadable(b, c, context, "attn_proj")
    return leave(b, c, b.linear(context, b.weight("proj", rows * latent.value_dim, c.hidden)))


def _query(b: RankGraphBuilder, c: MegatronConfig, latent: Latent, x: str, rows: int) -> str:
    width = latent.nope_dim + latent.rope_dim
    if latent.query_rank is None:
        whole = b.linear(enter(b, c, x), b.weight("q", c.hidden, rows * width))
    else:
        squeezed = enter(b, c, b.linear(x, b.weight("q_down", c.hidden, latent.query_rank)))
        normed = b.norm(squeezed, norm_weights(b, c, latent.query_rank))
        whole = b.linear(normed, b.weight("q_up", latent.query_rank, rows * width))
    tokens = b.shape(whole)[0]
    plain, positions = b.slices(whole, ((tokens, rows * latent.nope_dim), (tokens, rows * latent.rope_dim)))
    turned = b.node("RotaryEmbedding", (positions,), (tokens, rows * latent.rope_dim), domain="")
    return b.node("Concat", (plain, turned), (tokens, rows * width), domain="", axis=-1)
