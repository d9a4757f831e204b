"""What Megatron-LM's command line says about a model, as far as it decides which tensors exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from predictor.features.dtype import DType


class Style(StrEnum):
    """Which of its models."""

    GPT = "gpt"
    BERT = "bert"
    T5 = "t5"
    HYBRID = "hybrid"


class AttentionKernel(StrEnum):
    """How scores are computed.

    FLASH copies queries, keys and values to batch-major order, and the result back; FUSED (cuDNN) reads them
    where they lie; UNFUSED writes the scores out, under Transformer Engine or LOCAL, with Megatron's own
    kernels and a buffer that stays.
    """

    FLASH = "flash"
    FUSED = "fused"
    UNFUSED = "unfused"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-latent attention: ranks of the compressed queries and keys, sizes of a head's parts."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the feed-forward layer.

    Attributes:
        count, top_k: experts of the model, and those that a token visits.
        hidden: width of one expert. shared_hidden: of the expert that all tokens visit, 0 without.
        ep, etp: ranks that share the experts, and ranks that share each expert.
        grouped: one kernel runs all experts of a rank.
        dispatcher: `alltoall`, `allgather` or `flex`.
        wide_router: scores are computed in FP32; fused_router: without a copy of the tokens.
        layers: which layers have experts; None is all.
        weights_inside: probabilities multiply inside the experts, not when tokens come back.
    """

    count: int
    top_k: int
    hidden: int
    shared_hidden: int = 0
    ep: int = 1
    etp: int = 1
    grouped: bool = True
    dispatcher: str = "allgather"
    wide_router: bool = False
    fused_router: bool = False
    layers: tuple[bool, ...] | None = None
    weights_inside: bool = True


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Mamba-2 layers, and the order of all: M for such a one, `*` attention, `-` feed-forward, E experts."""

    pattern: str
    heads: int
    head_dim: int = 64
    groups: int = 8
    state: int = 128


@dataclass(frozen=True, slots=True)
class MegatronConfig:
    """Sizes, and the choices that change what is kept; counts are those of the whole model.

    Attributes:
        ffn: width of the feed-forward layer. vocabulary: padded. positions: rows of the table, 0 without.
        sequence: tokens of a sample (of T5's encoder). decoder_sequence: of T5's decoder.
        micro_batch: samples of a microbatch.
        dtype: of weights and activations.
        tp, cp: ranks that share each weight, and each sequence.
        engine: Transformer Engine's modules; else Megatron's local ones.
        wide_loss: the cross entropy works on an FP32 copy of the scores; else where they lie.
        loss_copies: further FP32 copies that a compiler's version of it holds at once.
        recomputed: modules that backward runs again: `layer`, `core_attn`, `mlp`, `moe`, `layernorm`,
            `moe_act`, `mla_up_proj`. recomputed_layers: how many layers, None is all.
        offloaded: modules whose inputs leave for the host between the passes: `attn_norm`, `qkv_linear`,
            `core_attn`, `attn_proj`, `mlp_norm`, `expert_fc1`, `moe_act`.
        future_layers: layers that predict words further ahead, each with the head and the loss again.
    """

    style: Style
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocabulary: int
    sequence: int
    micro_batch: int
    head_dim: int
    kv_heads: int
    positions: int = 0
    decoder_layers: int = 0
    decoder_sequence: int = 0
    dtype: DType = DType.BFLOAT16
    tp: int = 1
    cp: int = 1
    sequence_parallel: bool = False
    engine: bool = True
    attention: AttentionKernel = AttentionKernel.FLASH
    wide_loss: bool = True
    loss_copies: int = 0
    hidden_dropout: bool = True
    attention_dropout: bool = True
    bias: bool = True
    qkv_bias: bool = False
    rms: bool = False
    gated: bool = False
    rotary: bool = False
    query_key_norm: bool = False
    tied: bool = True
    binary_head: bool = True
    experts: Experts | None = None
    latent: Latent | None = None
    spaces: StateSpace | None = None
    recomputed: frozenset[str] = field(default_factory=frozenset)
    recomputed_layers: int | None = None
    future_layers: int = 0
    offloaded: frozenset[str] = field(default_factory=frozenset)

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on a rank, before they are split among tensor ranks."""
        return self.sequence * self.micro_batch // self.cp

    def has_experts(self, layer: int) -> bool:
        """Whether that layer is a mixture."""
        if self.experts is None:
            return False
        return self.experts.layers is None or self.experts.layers[layer]
