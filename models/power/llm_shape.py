"""A decoder's sizes from its Hugging Face `config.json`: parameters by part, cache and state per token.

What serving costs follows from a few sums over layers; no graph is needed for them. Covered: attention with
grouped heads, windows on some layers, latent attention, dense and routed feed-forwards with shared experts,
Mamba-2 mixers beside attention.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from predictor.errors import InvalidRequest

CONFIGS = Path(__file__).parents[1] / "corpus" / "llm_configs.toml"
"""Configurations of decoders that were measured."""
_CACHE_BYTES, _STATE_BYTES = 2, 4
# Families whose feed-forwards are up and down without a gate, as those of the hybrid family are.
_UNGATED = frozenset(
    {"bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt", "opt", "phi",
     "starcoder2"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LlmShape:
    """Sizes of a decoder.

    Attributes:
        layers: all blocks. hidden: width of the stream. vocabulary: rows of the output matrix.
        attention_layers, attention_parameters: how many attend, and weights of one.
        heads, head_dim: of the scores. cache_per_token: numbers one token leaves in one attention layer.
        window, window_layers: layers that look back at most `window` tokens.
        dense_parameters: weights of all dense feed-forwards. expert_parameters: of one expert of one layer.
        expert_layers, experts, experts_per_token: of the routed ones. shared_parameters: experts that every
            token passes, all layers.
        mixer_parameters, state_numbers: Mamba-2: weights of all mixers, numbers of state per sequence.
        block_scaled: whether its FP8 weights have a scale per block of a matrix, not per matrix or row.
        image_tokens: of every image, which is resized; 0 where an image's resolution decides.
    """

    layers: int
    hidden: int
    vocabulary: int
    attention_layers: int
    attention_parameters: int
    heads: int
    head_dim: int
    cache_per_token: int
    window: int = 0
    window_layers: int = 0
    dense_parameters: int = 0
    expert_parameters: int = 0
    expert_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_parameters: int = 0
    mixer_parameters: int = 0
    state_numbers: int = 0
    block_scaled: bool = False
    image_tokens: int = 0

    @property
    def head_parameters(self) -> int:
        """Weights of the output matrix."""
        return self.hidden * self.vocabulary

    @property
    def fixed_parameters(self) -> int:
        """Weights every token passes, without the output matrix and routed experts."""
        attention = self.attention_layers * self.attention_parameters
        return attention + self.dense_parameters + self.shared_parameters + self.mixer_parameters

    @property
    def active_parameters(self) -> int:
        """Weights that one token passes."""
        routed = self.expert_layers * self.experts_per_token * self.expert_parameters
        return self.fixed_parameters + routed + self.head_parameters

    @property
    def total_parameters(self) -> int:
        """All weights, input embeddings counted apart from the output matrix."""
        routed = self.expert_layers * self.experts * self.expert_parameters
        return self.fixed_parameters + routed + 2 * self.head_parameters

    def touched_experts(self, tokens: float) -> float:
        """Experts of a layer that see at least one of `tokens` tokens routed evenly."""
        if not self.experts:
            return 0.0
        missed = float((1.0 - self.experts_per_token / self.experts) ** tokens)
        return self.experts * (1.0 - missed)

    def cache_bytes(self, tokens: float) -> float:
        """Cache and state of one sequence of `tokens` tokens."""
        full = (self.attention_layers - self.window_layers) * tokens
        windowed = self.window_layers * min(tokens, self.window) if self.window_layers else 0.0
        return _CACHE_BYTES * self.cache_per_token * (full + windowed) + _STATE_BYTES * self.state_numbers


def llm_shape(config: Mapping[str, Any]) -> LlmShape:
    """The sizes of a decoder's configuration; of its `text_config` where it has one.

    Raises InvalidRequest for a model without a decoder, and naming the field that is absent or no positive
    whole number.
    """
    stored = config.get("quantization_config")
    fields = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    if "thinker_config" in config:
        fields = config["thinker_config"]["text_config"]
    assert isinstance(fields, Mapping)
    from predictor.features.architectures.from_config import FAMILIES
    from predictor.features.architectures.huggingface import gpt, llama, mixtures

    name = fields.get("model_type")
    if name in FAMILIES and name not in {**gpt.CACHES, **llama.CACHES, **mixtures.CACHES}:
        raise InvalidRequest(
            f"model_type {name!r} is no decoder alone; expected a model that generates from its prompt",
            field="model_type",
        )
    layers = _size(fields, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = _size(fields, "hidden_size", "n_embd", "n_embed", "d_model")
    heads = _size(fields, "num_attention_heads", "n_head", "num_heads", "n_heads")
    attention, cache, head_dim = _attention(fields, hidden, heads)
    pattern = fields.get("hybrid_override_pattern")
    attending = pattern.count("*") if isinstance(pattern, str) else layers
    window_layers = _window_layers(fields, layers)
    return LlmShape(
        layers=layers,
        hidden=hidden,
        vocabulary=_size(fields, "vocab_size"),
        attention_layers=attending,
        attention_parameters=attention,
        heads=heads,
        head_dim=head_dim,
        cache_per_token=cache,
        window=_size(fields, "sliding_window") if window_layers else 0,
        window_layers=window_layers,
        block_scaled=isinstance(stored, Mapping) and bool(stored.get("weight_block_size")),
        image_tokens=_size(config, "mm_tokens_per_image", default=0),
        **_feed_forwards(fields, layers, hidden, pattern),
        **_mixers(fields, hidden, pattern),
    )


def _size(fields: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    for name in names:
        value = fields.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidRequest(
                    f"config: {name} is {value!r}; expected a whole number", field=f"config.{name}"
                )
            return value
    if default is None:
        raise InvalidRequest(f"config: no {names[0]}; is this a decoder's config.json?", field=names[0])
    return default


def _attention(fields: Mapping[str, Any], hidden: int, heads: int) -> tuple[int, int, int]:
    """(weights of one layer, numbers cached per token, head size)."""
    if "kv_lora_rank" in fields:
        queries, latent = _size(fields, "q_lora_rank", default=0), _size(fields, "kv_lora_rank")
        plain, rotated = _size(fields, "qk_nope_head_dim"), _size(fields, "qk_rope_head_dim")
        value = _size(fields, "v_head_dim")
        wide = heads * (plain + rotated)
        into = hidden * queries + queries * wide if queries else hidden * wide
        weights = (
            into + hidden * (latent + rotated) + latent * heads * (plain + value) + heads * value * hidden
        )
        return weights, latent + rotated, plain + rotated
    head_dim = _size(fields, "head_dim", default=hidden // heads)
    shared = bool(fields.get("multi_query")) and not fields.get("new_decoder_architecture")
    kept = _size(fields, "num_key_value_heads", "num_kv_heads", default=1 if shared else heads)
    return hidden * (heads + 2 * kept) * head_dim + heads * head_dim * hidden, 2 * kept * head_dim, head_dim


def _window_layers(fields: Mapping[str, Any], layers: int) -> int:
    types = fields.get("layer_types")
    if isinstance(types, list) and types:
        return sum(kind == "sliding_attention" for kind in types)
    pattern = fields.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1 and fields.get("sliding_window"):
        # Every n-th layer sees all.
        return layers - layers // pattern
    return 0


def _feed_forwards(fields: Mapping[str, Any], layers: int, hidden: int, pattern: object) -> dict[str, int]:
    matrices = 2 if isinstance(pattern, str) or fields.get("model_type") in _UNGATED else 3
    experts = _size(fields, "num_experts", "num_local_experts", "n_routed_experts", default=0)
    # Families of four times the width leave it open.
    inner = _size(
        fields, "intermediate_size_mlp", "intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner",
        default=4 * hidden,
    )  # fmt: skip
    if not experts:
        dense_layers = pattern.count("-") if isinstance(pattern, str) else layers
        return {"dense_parameters": dense_layers * matrices * hidden * inner}
    step = _size(fields, "decoder_sparse_step", "interleave_moe_layer_step", default=1)
    first_dense = _size(fields, "first_k_dense_replace", default=0)
    routed_layers = (layers - first_dense) // max(1, step)
    expert_inner = _size(fields, "moe_intermediate_size", "intermediate_size")
    shared = _size(fields, "n_shared_experts", default=0) * expert_inner
    shared += _size(fields, "shared_expert_intermediate_size", default=0)
    if fields.get("model_type") == "llama4_text":
        shared += expert_inner
    return {
        "dense_parameters": (layers - routed_layers) * matrices * hidden * inner,
        "expert_parameters": matrices * hidden * expert_inner,
        "expert_layers": routed_layers,
        "experts": experts,
        "experts_per_token": _size(fields, "num_experts_per_tok"),
        "shared_parameters": routed_layers * matrices * hidden * shared,
    }


def _mixers(fields: Mapping[str, Any], hidden: int, pattern: object) -> dict[str, int]:
    if not isinstance(pattern, str):
        return {}
    mixers = pattern.count("M")
    heads, width = _size(fields, "mamba_num_heads"), _size(fields, "mamba_head_dim")
    state, groups = _size(fields, "ssm_state_size"), _size(fields, "n_groups", default=8)
    inner = heads * width
    weights = hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden
    return {"mixer_parameters": mixers * weights, "state_numbers": mixers * inner * state}


@cache
def published_shapes() -> Mapping[str, LlmShape]:
    """Model id -> sizes, for the decoders whose configurations are kept here."""
    table = tomllib.loads(CONFIGS.read_text(encoding="utf-8"))
    return {
        name: llm_shape(entry["fields"])
        for entry in table["config"]
        for name in (entry["id"], *entry.get("also", ()))
    }
