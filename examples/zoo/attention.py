"""Transformer reference models: GPT-2 small, BERT-base and ViT-B/16."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """Multi-head attention with one joint projection to queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def feed_forward(width: int, gelu: str) -> nn.Sequential:
    """Two linear layers with a hidden width four times the outer one."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width))


class PreNormBlock(nn.Module):
    """Normalise, transform, add: GPT-2 and ViT."""

    def __init__(self, width: int, heads: int, causal: bool, gelu: str, epsilon: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, epsilon)
        self.attention = SelfAttention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width, epsilon)
        self.mlp = feed_forward(width, gelu)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT2(nn.Module):
    """GPT-2 small (Radford et al. 2019): 124,439,808 parameters, the head tied to the token embedding."""

    def __init__(
        self,
        vocabulary: int = 50257,
        context: int = 1024,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads, True, "tanh", 1e-5) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, 1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.head(self.norm(self.blocks(self.tokens(input_ids) + self.positions(position))))


class PostNormBlock(nn.Module):
    """Transform, add, normalise: BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads, causal=False)
        self.norm1 = nn.LayerNorm(width, 1e-12)
        self.mlp = feed_forward(width, "none")
        self.norm2 = nn.LayerNorm(width, 1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class BertBase(nn.Module):
    """BERT-base uncased with its pooler (Devlin et al. 2018): 109,482,240 parameters."""

    def __init__(
        self, vocabulary: int = 30522, context: int = 512, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(PostNormBlock(width, heads) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.tokens(input_ids) + self.positions(position) + self.segments(token_type_ids))
        # Padding gets the lowest finite score, in the shape that broadcasts over heads and queries.
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for block in self.blocks:
            x = block(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class ViTB16(nn.Module):
    """ViT-B/16 (Dosovitskiy et al. 2020) at 224 x 224: 86,567,656 parameters."""

    def __init__(
        self, image: int = 224, patch: int = 16, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(PreNormBlock(width, heads, False, "none", 1e-6) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
