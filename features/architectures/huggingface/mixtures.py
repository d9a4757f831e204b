"""Mixtral, the Qwen mixtures, OLMoE, gpt-oss, DeepSeek and relatives: Llama-like decoders with experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from predictor.features.architectures.huggingface.attention import QueryKeyNorm
from predictor.features.architectures.huggingface.cache import Caches, LayerCache
from predictor.features.architectures.huggingface.experts import (
    LatentAttention,
    Mixture,
    Router,
    with_shared,
)
from predictor.features.architectures.huggingface.fields import (
    ACTIVATION,
    HEADS,
    HIDDEN,
    LAYERS,
    NORM_EPSILON,
    Fields,
)
from predictor.features.architectures.huggingface.job import Family, Job
from predictor.features.architectures.huggingface.llama import (
    VARIANTS,
    Variant,
    attention_of,
    caches,
    damped,
    decoder_of,
    feed_forward_of,
)
from predictor.features.architectures.huggingface.parts import Norm, NormKind
from predictor.features.architectures.huggingface.stack import Branch, decoder
from predictor.features.builder import Tensor

_BALANCED = frozenset({"deepseek_v3", "glm4_moe", "dots1"})
"""Routers of sigmoids whose choice a bias balances."""

Sparse: TypeAlias = Callable[[Fields, int], Mixture | None]
"""The mixture of a layer, None where the layer is dense."""
_NEVER = ("", False)


def _act(f: Fields) -> str:
    return f.text(*ACTIVATION, default="silu")


def _chosen(f: Fields, experts: int) -> int:
    """How many of so many experts a token visits."""
    return f.integer("num_experts_per_tok", most=experts)


def _mixtral(f: Fields, _: int) -> Mixture:
    experts = f.integer("num_local_experts", "num_experts")
    router = Router(experts, _chosen(f, experts), normalised=True)
    return Mixture(router, f.integer(*HIDDEN), _act(f))


def _olmoe(f: Fields, _: int) -> Mixture:
    experts = f.integer("num_experts")
    router = Router(
        experts,
        _chosen(f, experts),
        normalised=f.flag("norm_topk_prob", default=False),
    )
    return Mixture(router, f.integer(*HIDDEN), _act(f))


def _qwen(f: Fields, index: int) -> Mixture | None:
    dense = f.get("mlp_only_layers")
    if (isinstance(dense, Sequence) and index in dense) or (index + 1) % f.integer(
        "decoder_sparse_step", default=1
    ):
        return None
    experts = f.integer("num_experts")
    router = Router(
        experts,
        _chosen(f, experts),
        normalised=f.flag("norm_topk_prob", default=False),
    )
    mixture = Mixture(router, f.integer("moe_intermediate_size"), _act(f))
    if f.get("model_type") == "qwen2_moe":
        return with_shared(mixture, f.integer("shared_expert_intermediate_size"), gate=True)
    return mixture


def _gpt_oss(f: Fields, _: int) -> Mixture:
    experts = f.integer("num_local_experts")
    router = Router(experts, _chosen(f, experts), chosen_first=True, bias=True)
    # gate * sigmoid(1.702 gate), whatever `hidden_act` says.
    limit = f.number("swiglu_limit", default=7.0)
    return Mixture(router, f.integer(*HIDDEN), "quick_gelu", bias=True, limit=limit)


def _granite(f: Fields, _: int) -> Mixture:
    experts = f.integer("num_local_experts")
    return Mixture(Router(experts, _chosen(f, experts), chosen_first=True), f.integer(*HIDDEN), _act(f))


def _deepseek(f: Fields, index: int) -> Mixture | None:
    if index < f.integer("first_k_dense_replace", default=0, least=0):
        return None
    name = f.get("model_type")
    third = name in _BALANCED
    limited = third or f.text("topk_method", default="greedy") == "group_limited_greedy"
    experts = f.integer("n_routed_experts")
    groups = f.integer("n_group", default=1) if limited else 1
    chosen_groups = f.integer("topk_group", default=1, most=groups) if limited else 1
    reached = f.divided(experts, groups, "n_group") * chosen_groups
    router = Router(
        experts,
        _chosen(f, reached),
        normalised=third and f.flag("norm_topk_prob", default=True),
        sigmoid=third,
        groups=groups,
        chosen_groups=chosen_groups,
        scale=f.number("routed_scaling_factor", default=2.5 if name == "deepseek_v3" else 1.0),
    )
    hidden = f.integer("moe_intermediate_size")
    return with_shared(Mixture(router, hidden, _act(f)), hidden * f.integer("n_shared_experts", default=1))


def _latent(f: Fields) -> LatentAttention:
    return LatentAttention(
        f.integer(*HEADS),
        f.optional_integer("q_lora_rank"),
        f.integer("kv_lora_rank"),
        f.integer("qk_nope_head_dim"),
        f.integer("qk_rope_head_dim"),
        f.integer("v_head_dim"),
        Norm(NormKind.RMS, f.number(*NORM_EPSILON, default=1e-6)),
        f.flag("attention_bias", default=False),
    )


def mixture_of_experts(job: Job, variant: Variant, sparse: Sparse, latent: bool = False) -> Sequence[Tensor]:
    """A decoder whose layers are dense or sparse, as `sparse` says."""
    f = job.fields

    def layer(job: Job, index: int) -> tuple[Branch, Branch]:
        mixture = sparse(f, index)
        feed_forward = feed_forward_of(f, variant) if mixture is None else mixture
        attention = _latent(f) if latent else attention_of(f, variant, index)
        return partial(attention, job), partial(feed_forward, job.b)

    c = replace(decoder_of(f, variant, f.layers(*LAYERS)), layer=layer)
    return decoder(job, damped(f, c))


def _latent_caches(f: Fields) -> tuple[LayerCache, ...]:
    """One latent vector and the rotated part of the keys, shared by all heads."""
    a = _latent(f)
    return (LayerCache(1, a.key_rank + a.rotated, 0),) * f.layers(*LAYERS)


_BIASED = replace(VARIANTS["qwen2"], attention_bias=("qkv_bias", True))
_FAMILIES: Mapping[str, tuple[Variant, Sparse]] = {
    "mixtral": (Variant(epsilon=1e-5, attention_bias=_NEVER, windowed=True), _mixtral),
    "qwen2_moe": (_BIASED, _qwen),
    "qwen3_moe": (VARIANTS["qwen3"], _qwen),
    "olmoe": (Variant(epsilon=1e-5, query_key_norm=QueryKeyNorm.ALL_HEADS, mlp_bias=_NEVER), _olmoe),
    "gpt_oss": (
        Variant(epsilon=1e-5, attention_bias=("attention_bias", True), windowed=True, every=2, sinks=True),
        _gpt_oss,
    ),
    "granitemoe": (Variant(), _granite),
    "glm4_moe": (
        Variant(epsilon=1e-5, output_bias=_NEVER, mlp_bias=_NEVER, rotary_fraction=0.5, norm_is_asked=True),
        _deepseek,
    ),
    "dots1": (Variant(query_key_norm=QueryKeyNorm.HEAD, mlp_bias=_NEVER), _deepseek),
    "deepseek_v2": (Variant(), _deepseek),
    "deepseek_v3": (Variant(), _deepseek),
}
_LATENT = ("deepseek_v2", "deepseek_v3")

FAMILIES: Mapping[str, Family] = {
    name: partial(mixture_of_experts, variant=variant, sparse=sparse, latent=name in _LATENT)
    for name, (variant, sparse) in _FAMILIES.items()
}
CACHES: Mapping[str, Caches] = {
    name: _latent_caches if name in _LATENT else partial(caches, variant=variant)
    for name, (variant, _) in _FAMILIES.items()
}
