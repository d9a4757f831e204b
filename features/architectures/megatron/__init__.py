"""Megatron-LM's models as graphs of one rank: its modules, its fused kernels, and what each of them keeps."""

from __future__ import annotations

from predictor.features.architectures.megatron.config import (
    AttentionKernel,
    Experts,
    Latent,
    MegatronConfig,
    StateSpace,
    Style,
)
from predictor.features.architectures.megatron.models import RankGraph, megatron_graph

__all__ = [
    "AttentionKernel",
    "Experts",
    "Latent",
    "MegatronConfig",
    "RankGraph",
    "StateSpace",
    "Style",
    "megatron_graph",
]
