"""Graphs of published distributed training: a recipe of sizes becomes the model its framework would train.

Llama-like models and mixtures come from the fields of a Hugging Face configuration, GPTs from Megatron-LM's
layers. What a table leaves out (ranks of DeepSeek's latent attention, head sizes) is that of the released
model's own configuration. Hybrids of state-space layers and attention have no builder yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from predictor.errors import InvalidData

UNBUILT = frozenset({"hybrid-mamba2", "hybrid-mamba2-moe", "qwen3-next-hybrid-moe"})
"""Architectures of the table that have no builder."""

TARGETS = 0.25
"""Tokens that T5's decoder writes, over those that its encoder reads: spans of 3 that hide 15 % of 512 tokens
leave 114 (Raffel et al. 2020, arXiv:1910.10683), and NVIDIA's scripts pad them to 128."""


@dataclass(frozen=True, slots=True, order=True)
class Recipe:
    """Sizes of one model on one sequence length.

    Attributes:
        style: architecture as the table names it. hidden: feed-forward width. flash: attention is one kernel.
        experts, chosen, expert_hidden: of mixtures; 0 without. drops: attention weights are dropped out.
    """

    style: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    sequence: int
    flash: bool
    experts: int = 0
    chosen: int = 0
    expert_hidden: int = 0
    drops: bool = True


def build(recipe: Recipe) -> bytes:
    """ONNX bytes of the model with its loss, batch symbolic. Raises InvalidData: no builder."""
    if recipe.style in ("gpt", "bloom-like gpt"):
        from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt

        config = MegatronConfig(recipe.layers, recipe.width, recipe.heads, recipe.vocabulary, recipe.hidden)
        return megatron_gpt(config, sequence=recipe.sequence, flash=recipe.flash, drops=recipe.drops)
    if recipe.style not in _CONFIGS:
        raise InvalidData(f"no builder for architecture {recipe.style!r}")
    from predictor.features.architectures.from_config import from_config

    fields, read = _config(recipe), recipe.sequence
    if recipe.style == "t5":
        return from_config(fields, sequence=round(TARGETS * read), source_length=read, task="language")
    return from_config(fields, sequence=read, task="language")


def _config(recipe: Recipe) -> Mapping[str, Any]:
    common: dict[str, Any] = {
        "num_hidden_layers": recipe.layers,
        "hidden_size": recipe.width,
        "intermediate_size": recipe.hidden,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "vocab_size": recipe.vocabulary,
        "max_position_embeddings": recipe.sequence,
        "tie_word_embeddings": False,
    }
    if recipe.head_dim:
        common["head_dim"] = recipe.head_dim
    mixture = {
        "num_experts_per_tok": recipe.chosen,
        "moe_intermediate_size": recipe.expert_hidden,
    }
    own = _CONFIGS[recipe.style](recipe)
    return {**common, **(mixture if recipe.experts else {}), **own}


def _llama(recipe: Recipe) -> Mapping[str, Any]:
    return {"model_type": "llama", "hidden_act": "silu"}


def _gqa(recipe: Recipe) -> Mapping[str, Any]:
    """Nemotron: no gate, grouped heads; squared ReLU costs what its plain form does."""
    return {"model_type": "starcoder2", "hidden_act": "relu2", "use_bias": False, "sliding_window": None}


def _qwen3(recipe: Recipe) -> Mapping[str, Any]:
    return {"model_type": "qwen3_moe", "num_experts": recipe.experts, "norm_topk_prob": True}


def _gpt_oss(recipe: Recipe) -> Mapping[str, Any]:
    """As Mixtral, which is built alike: softmax over the chosen, gated experts in every layer."""
    return {
        "model_type": "mixtral",
        "num_local_experts": recipe.experts,
        "intermediate_size": recipe.expert_hidden,
        "hidden_act": "silu",
        "sliding_window": None,
    }


def _deepseek(recipe: Recipe) -> Mapping[str, Any]:
    """DeepSeek-V3; Kimi K2 is the same with one dense layer and one group of experts."""
    kimi = recipe.experts == 384
    return {
        "model_type": "deepseek_v3",
        "n_routed_experts": recipe.experts,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1 if kimi else 3,
        "n_group": 1 if kimi else 8,
        "topk_group": 1 if kimi else 4,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "hidden_act": "silu",
    }


def _t5(recipe: Recipe) -> Mapping[str, Any]:
    return {
        "model_type": "t5",
        "d_model": recipe.width,
        "d_kv": 64,
        "d_ff": recipe.hidden,
        "num_layers": recipe.layers,
        "num_heads": recipe.heads,
        "feed_forward_proj": "gated-gelu",
    }


_CONFIGS: Mapping[str, Callable[[Recipe], Mapping[str, Any]]] = {
    "llama": _llama,
    "gpt-gqa": _gqa,
    "qwen3-moe": _qwen3,
    "gpt-oss-moe": _gpt_oss,
    "deepseek-mla-moe": _deepseek,
    "t5": _t5,
}
