"""Attention and feed-forward layers of Megatron-LM, kernel by kernel and with what each of them keeps.

Tokens are the first dimension: [tokens, width], sequence-major as Megatron-LM lays them out, a part of them
under sequence parallelism. Sources: megatron/core/transformer and tensor_parallel, and Transformer Engine's
LayerNormLinear and DotProductAttention.
"""

from __future__ import annotations

from predictor.features.architectures.megatron.config import AttentionKernel, MegatronConfig
from predictor.features.architectures.megatron.rank_graph import RankGraphBuilder


def norm_weights(b: RankGraphBuilder, c: MegatronConfig, width: int, *, rms: bool | None = None) -> list[str]:
    """Scale, and shift where the norm has one."""
    plain = c.rms if rms is None else rms
    return [b.weight("norm", width)] if plain else [b.weight("norm", width), b.weight("norm.bias", width)]


def enter(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    """Whole tokens in front of a column-parallel product."""
    return b.gather_sequence(x, c.tp) if c.sequence_parallel and c.tp > 1 else x


def leave(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    """The sum behind a row-parallel product."""
    if c.tp == 1:
        return x
    return b.scatter_sum(x, c.tp) if c.sequence_parallel else b.sum_over_ranks(x, c.tp)


def residual(b: RankGraphBuilder, c: MegatronConfig, x: str, branch: str, width: int) -> str:
    """Bias, dropout and sum, one fused kernel that keeps the mask."""
    if c.bias:
        branch = b.add(branch, b.weight("bias", width))
    return b.add(b.dropout(branch, c.hidden_dropout), x)


def attention_block(b: RankGraphBuilder, c: MegatronConfig, x: str, sequence: int, *, causal: bool) -> str:
    """Norm, queries keys and values, scores, projection; without the residual."""
    rows, heads = c.heads // c.tp, c.head_dim
    groups = max(1, c.kv_heads // c.tp)
    normed = b.norm(offloadable(b, c, x, "attn_norm"), norm_weights(b, c, c.hidden))
    normed = enter(b, c, offloadable(b, c, normed, "qkv_linear"))
    width = (rows + 2 * groups) * heads
    bias = b.weight("qkv.bias", width) if c.bias or c.qkv_bias else None
    mixed = b.linear(normed, b.weight("qkv", c.hidden, width), bias)
    tokens = b.shape(mixed)[0]
    query, key, value = b.slices(
        mixed, ((tokens, rows * heads), (tokens, groups * heads), (tokens, groups * heads))
    )
    if c.query_key_norm:
        query, key = (_head_norm(b, c, part) for part in (query, key))
    if c.rotary:
        query, key = _rotate(b, query), _rotate(b, key)
    context = core_attention(b, c, query, key, value, sequence, rows, groups, causal=causal)
    context = offloadable(b, c, context, "attn_proj")
    return leave(b, c, b.linear(context, b.weight("proj", rows * heads, c.hidden)))


def offloadable(b: RankGraphBuilder, c: MegatronConfig, x: str, module: str) -> str:
    """The value that `module` reads, marked where that module's input leaves for the host."""
    if module in c.offloaded:
        b.away.add(x)
    return x


def _head_norm(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    tokens, width = b.shape(x)
    parted = b.view(b.copy(x), tokens, width // c.head_dim, c.head_dim)
    normed = b.norm(parted, norm_weights(b, c, c.head_dim))
    return b.view(normed, tokens, width)


def _rotate(b: RankGraphBuilder, x: str) -> str:
    """Rotary positions, a fused kernel: the result is a new tensor, nothing but small tables is kept."""
    return b.node("RotaryEmbedding", (x,), b.shape(x), domain="")


def core_attention(
    b: RankGraphBuilder,
    c: MegatronConfig,
    query: str,
    key: str,
    value: str,
    sequence: int,
    heads: int,
    groups: int,
    *,
    causal: bool,
    kv_sequence: int | None = None,
) -> str:
    """Softmax of the scores times values; [tokens, heads * head size]."""
    length = sequence // c.cp
    batch = c.micro_batch
    for part in (query, key, value):
        offloadable(b, c, part, "core_attn")
    kv_length = (kv_sequence or sequence) // c.cp
    query_dim, value_dim = b.shape(query)[1] // heads, b.shape(value)[1] // groups
    tokens = b.shape(query)[0]
    if c.attention in (AttentionKernel.FLASH, AttentionKernel.FUSED):
        parts = [query, key, value]
        if c.attention is AttentionKernel.FLASH:
            # Batch-major copies.
            parts = [b.copy(part) for part in parts]
        shaped = [
            b.view(part, batch, count, size, width)
            for part, count, size, width in (
                (parts[0], heads, length, query_dim),
                (parts[1], groups, kv_length, query_dim),
                (parts[2], groups, kv_length, value_dim),
            )
        ]
        out = b.node(
            "Attention",
            shaped,
            (batch, heads, length, value_dim),
            causal=int(causal),
            heads=heads,
            kv_heads=groups,
        )
        flat = b.view(out, tokens, heads * value_dim)
        return b.copy(flat) if c.attention is AttentionKernel.FLASH else flat
    first = len(b.nodes)
    query = b.view(query, batch, heads, length, query_dim)
    key = b.view(key, batch, groups, query_dim, kv_length)
    value = b.view(value, batch, groups, kv_length, value_dim)
    if groups != heads:
        key = b.view(b.copy(key, batch, heads, query_dim, kv_length), batch, heads, query_dim, kv_length)
        value = b.view(b.copy(value, batch, heads, kv_length, value_dim), batch, heads, kv_length, value_dim)
    scores = b.node("MatMul", (query, key), (batch, heads, length, kv_length), domain="")
    chances = b.node("Softmax", (scores,), b.shape(scores), domain="", axis=-1)
    dropped = b.dropout(chances, c.attention_dropout)
    mixed = b.node("MatMul", (dropped, value), (batch, heads, length, value_dim), domain="")
    for part in (chances, dropped):
        # All that is kept inside the module leaves with its inputs.
        offloadable(b, c, part, "core_attn")
    if "core_attn" in c.recomputed:
        b.again.append(tuple(range(first, len(b.nodes))))
    return b.copy(mixed, tokens, heads * value_dim)


def feed_forward(b: RankGraphBuilder, c: MegatronConfig, x: str, ffn: int, *, normed: bool = True) -> str:
    """Norm, two products and what lies between; without the residual."""
    first = len(b.nodes)
    if normed:
        x = b.norm(offloadable(b, c, x, "mlp_norm"), norm_weights(b, c, c.hidden))
    inner = mlp(b, c, enter(b, c, x), c.hidden, ffn // c.tp)
    if "mlp" in c.recomputed:
        b.again.append(tuple(range(first, len(b.nodes))))
    return leave(b, c, inner)


def mlp(b: RankGraphBuilder, c: MegatronConfig, x: str, width: int, ffn: int) -> str:
    """The two products of a feed-forward layer on whatever tokens are given."""
    wide = 2 * ffn if c.gated else ffn
    bias = b.weight("fc1.bias", wide) if c.bias else None
    hidden = b.linear(x, b.weight("fc1", width, wide), bias)
    tokens = b.shape(x)[0]
    inner = activation(b, c, hidden, tokens, ffn)
    return b.linear(inner, b.weight("fc2", ffn, width))


def activation(b: RankGraphBuilder, c: MegatronConfig, hidden: str, tokens: int, ffn: int) -> str:
    """GELU, or a Swish of one half times the other: one kernel that keeps its input."""
    if not c.gated:
        return b.node("Gelu", (hidden,), (tokens, ffn), spelling="tanh")
    gate, value = b.slices(hidden, ((tokens, ffn), (tokens, ffn)))
    return b.node("SwiGLU", (gate, value), (tokens, ffn), domain="")


def state_space_block(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    """Norm, a product in, scan, a product out (megatron/core/ssm/mamba_mixer.py); without the residual."""
    spaces = c.spaces
    assert spaces is not None
    inner = spaces.heads * spaces.head_dim // c.tp
    groups = max(1, spaces.groups // c.tp)
    width = 2 * inner + 2 * groups * spaces.state + spaces.heads // c.tp
    normed = enter(b, c, b.norm(x, norm_weights(b, c, c.hidden)))
    mixed = b.linear(normed, b.weight("in_proj", c.hidden, width))
    taps = b.weight("conv", 4, inner + 2 * groups * spaces.state)
    scanned = b.node(
        "SplitScan",
        (mixed, taps),
        (b.shape(mixed)[0], inner),
        inner=inner,
        state=spaces.state,
    )
    # Back to sequence-major order, and a norm that Megatron-LM runs apart.
    normed = b.norm(b.copy(scanned), [b.weight("scan.norm", inner)])
    return leave(b, c, b.linear(normed, b.weight("out_proj", inner, c.hidden)))
