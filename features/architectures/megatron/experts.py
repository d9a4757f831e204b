"""Megatron-LM's mixture of experts: router, dispatch of tokens, experts, and the way back.

Tokens are assumed to spread evenly: a rank's experts get as many as it sends. Dispatchers (megatron/core/
transformer/moe/token_dispatcher.py): `alltoall` sorts a rank's own tokens and sends them; `allgather` gives
every rank all tokens of its expert and tensor ranks and picks from these.
"""

from __future__ import annotations

from predictor.features.architectures.megatron.config import Experts, MegatronConfig
from predictor.features.architectures.megatron.rank_graph import RankGraphBuilder
from predictor.features.architectures.megatron.transformer import (
    activation,
    enter,
    leave,
    norm_weights,
    offloadable,
)
from predictor.features.dtype import DType


def expert_block(b: RankGraphBuilder, c: MegatronConfig, x: str) -> str:
    """Norm and mixture; without the residual."""
    e = c.experts
    assert e is not None
    first = len(b.nodes)
    normed = b.norm(offloadable(b, c, x, "mlp_norm"), norm_weights(b, c, c.hidden))
    chances = _router(b, c, e, normed)
    if e.dispatcher == "allgather":
        result = _all_gathered(b, c, e, normed, chances)
    else:
        result = _exchanged(b, c, e, normed, chances)
    if e.shared_hidden:
        result = b.add(result, _shared(b, c, e, normed))
    if "moe" in c.recomputed:
        b.again.append(tuple(range(first, len(b.nodes))))
    return result


def _router(b: RankGraphBuilder, c: MegatronConfig, e: Experts, x: str) -> str:
    """Chances of all experts for a rank's own tokens."""
    tokens = b.shape(x)[0]
    source = b.cast(x, DType.FLOAT32) if e.wide_router and not e.fused_router else x
    weight = b.weight("router", c.hidden, e.count)
    logits = b.node("Linear", (source, weight), (tokens, e.count), dtype=DType.FLOAT32)
    return b.node("Softmax", (logits,), (tokens, e.count), domain="", dtype=DType.FLOAT32, axis=-1)


def _exchanged(b: RankGraphBuilder, c: MegatronConfig, e: Experts, x: str, chances: str) -> str:
    tokens, width = b.shape(x)
    sent = _picked(b, x, tokens * e.top_k)
    arrived = sent
    if e.ep > 1:
        arrived = b.node("AllToAll", (sent,), (tokens * e.top_k, width), group="ep", ranks=e.ep)
    if e.etp > 1:
        arrived = b.node("AllGather", (arrived,), (tokens * e.top_k * e.etp, width), group="tp", ranks=e.etp)
    if e.count // e.ep > 1:
        # Rows of one expert next to each other.
        arrived = _picked(b, arrived, b.shape(arrived)[0])
    done = _run(b, c, e, arrived, chances)
    if e.count // e.ep > 1:
        done = _picked(b, done, b.shape(done)[0])
    if e.etp > 1:
        done = b.node("ReduceScatter", (done,), (tokens * e.top_k, width), group="tp", ranks=e.etp)
    if e.ep > 1:
        done = b.node("AllToAll", (done,), (tokens * e.top_k, width), group="ep", ranks=e.ep)
    return _combined(b, e, done, chances, tokens)


def _all_gathered(b: RankGraphBuilder, c: MegatronConfig, e: Experts, x: str, chances: str) -> str:
    tokens, width = b.shape(x)
    ranks = e.ep * (c.tp if c.sequence_parallel else 1)
    everyone = x
    if ranks > 1:
        everyone = b.node("AllGather", (x,), (tokens * ranks, width), group="ep", ranks=ranks)
    # A rank's experts get their part of what all ranks have; tensor ranks of an expert share its tokens.
    own = max(1, tokens * ranks * e.top_k // e.ep // (1 if e.etp > 1 or not c.sequence_parallel else c.tp))
    picked = _picked(b, everyone, own)
    done = _run(b, c, e, picked, chances)
    whole = _combined(b, e, done, chances, tokens * ranks)
    if ranks > 1:
        whole = b.node("ReduceScatter", (whole,), (tokens, width), group="ep", ranks=ranks)
    return whole


def _picked(b: RankGraphBuilder, x: str, rows: int) -> str:
    """Rows in another order, some of them more than once; only their numbers are kept."""
    return b.node("Permuted", (x,), (rows, b.shape(x)[1]))


def _run(b: RankGraphBuilder, c: MegatronConfig, e: Experts, x: str, chances: str) -> str:
    """The experts of a rank on the tokens that came."""
    rows, width = b.shape(x)
    own, inner = e.count // e.ep, e.hidden // e.etp
    wide = 2 * inner if c.gated else inner
    first = b.weight("experts.fc1", own, width, wide, expert=True)
    offloadable(b, c, x, "expert_fc1")
    hidden = offloadable(b, c, b.node("GroupedMatMul", (x, first), (rows, wide)), "moe_act")
    begin = len(b.nodes)
    active = activation(b, c, hidden, rows, inner)
    if e.weights_inside and not c.gated:
        # The product with each token's chance is a tensor of its own; a gated kernel has it inside.
        scale = b.node("Scale", (chances,), (rows, 1), dtype=c.dtype)
        active = b.multiply(active, scale)
    if "moe_act" in c.recomputed:
        b.again.append(tuple(range(begin, len(b.nodes))))
    second = b.weight("experts.fc2", own, inner, width, expert=True)
    return b.node("GroupedMatMul", (active, second), (rows, width))


def _combined(b: RankGraphBuilder, e: Experts, x: str, chances: str, tokens: int) -> str:
    """Results of a token's experts added up."""
    if not e.weights_inside:
        scale = b.node("Scale", (chances,), (b.shape(x)[0], 1), dtype=b.values[x].dtype)
        x = b.multiply(x, scale)
    return _picked(b, x, tokens)


def _shared(b: RankGraphBuilder, c: MegatronConfig, e: Experts, x: str) -> str:
    """The expert that all tokens visit."""
    inner = e.shared_hidden // c.tp
    wide = 2 * inner if c.gated else inner
    source = enter(b, c, x)
    hidden = b.linear(source, b.weight("shared.fc1", c.hidden, wide))
    active = activation(b, c, hidden, b.shape(hidden)[0], inner)
    return leave(b, c, b.linear(active, b.weight("shared.fc2", inner, c.hidden)))
