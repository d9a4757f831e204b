"""GPT as Megatron-LM trains it: attention written out, scale, mask and softmax in one kernel.

Biases ride in the products or in the kernel after them (GELU, dropout and residual), so none is an op of its
own. Narayanan et al. 2021, arXiv:2104.04473; Korthikanti et al. 2022, arXiv:2205.05198.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.errors import InvalidRequest
from predictor.features.architectures.layers import (
    embed,
    indices,
    projection,
    token_loss,
)
from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType


@dataclass(frozen=True, slots=True)
class MegatronConfig:
    """Sizes of a GPT; `hidden` is the feed-forward width, 4 x width where it is not given."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 51200
    hidden: int | None = None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise InvalidRequest(f"width {self.width} is not a multiple of {self.heads} heads", field="heads")


def megatron_gpt(
    config: MegatronConfig,
    *,
    batch: int | str = "batch",
    sequence: int = 2048,
    flash: bool = False,
    training: bool = True,
    drops: bool = True,
) -> bytes:
    """ONNX bytes of the model on (batch, sequence) token ids.

    Args:
        flash: one kernel for attention, as of Megatron-LM 2023.
        training: ends in the cross entropy over `labels`.
        drops: attention weights are dropped out in training, as Megatron-LM's own default is.
    """
    # Attention is an operator from opset 23 on.
    b = GraphBuilder(f"megatron_{config.layers}x{config.width}", opset=23)
    # Positions come first, as in Megatron-LM: a head's matrix is then a strided view, and no copy is made.
    ids = b.transpose(b.input("input_ids", (batch, sequence), DType.INT64), [1, 0])
    words = b.parameter((config.vocabulary, config.width), "words")
    places = b.parameter((sequence, config.width), "positions")
    table = embed(b, indices(b, (sequence, 1), "position_ids"), places)
    x = b.add(embed(b, ids, words), table)
    for _ in range(config.layers):
        joint = b.linear(b.layer_norm(x), 3 * config.width)
        mixed = _attention(b, config, joint, flash=flash, drops=training and drops)
        x = b.add(b.linear(mixed, config.width), x)
        hidden = b.gelu(b.linear(b.layer_norm(x), config.hidden or 4 * config.width), approximate="tanh")
        x = b.add(b.linear(hidden, config.width), x)
    rows = b.reshape(b.layer_norm(x), [-1, config.width])
    logits = projection(b, rows, config.vocabulary, weight=words, bias=False)
    if not training:
        return b.build([logits])
    return b.build([token_loss(b, logits, b.input("labels", (batch, sequence), DType.INT64))])


def _attention(b: GraphBuilder, config: MegatronConfig, joint: Tensor, *, flash: bool, drops: bool) -> Tensor:
    """(length, batch, 3 x width), query, key and value of each head together, to (length, batch, width)."""
    length, size = joint.size(0), config.width // config.heads
    if flash:
        heads = b.transpose(b.reshape(joint, [length, 0, config.heads, 3 * size]), [1, 2, 0, 3])
        query, key, value = b.split(heads, 3, axis=-1)
        mixed = b.transpose(b.op("Attention", [query, key, value], is_causal=1), [2, 0, 1, 3])
        return b.reshape(mixed, [length, 0, config.width])
    # Heads of all samples side by side: strided views of the projection.
    query, key, value = b.split(b.reshape(joint, [length, -1, 3 * size]), 3, axis=-1)
    scores = b.matmul(b.transpose(query, [1, 0, 2]), b.transpose(key, [1, 2, 0]))
    weights = b.softmax(scores)
    if drops:
        weights = b.op("Dropout", [weights, b.constant(0.1), b.constant(True, DType.BOOL)])
    mixed = b.transpose(b.matmul(weights, b.transpose(value, [1, 0, 2])), [1, 0, 2])
    return b.reshape(mixed, [length, -1, config.width])
