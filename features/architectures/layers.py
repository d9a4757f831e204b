"""Layers that several architectures share, spelled operator by operator as eager frameworks launch them.

Nothing here is fused on purpose: a reader that recognises a fused kernel does so later, and what ran as eight
kernels must stay eight nodes. Activations are (batch, length, width); the batch is a number or a symbol.
"""

from __future__ import annotations

from predictor.features.builder import GraphBuilder, Tensor
from predictor.features.dtype import DType


def embed(b: GraphBuilder, ids: Tensor, table: Tensor) -> Tensor:
    """Rows of a table by integer ids."""
    return b.gather(table, ids, axis=0)


def indices(b: GraphBuilder, shape: tuple[int, ...], name: str) -> Tensor:
    """A table of integers that the model owns; its contents do not matter for any shape."""
    return b.parameter(shape, name, DType.INT64)


def projection(
    b: GraphBuilder, x: Tensor, features: int, *, weight: Tensor | None = None, bias: bool = True
) -> Tensor:
    """One matrix product over all tokens with the bias in its epilogue (addmm).

    `weight` is a shared table of shape (features, width), used transposed: a tied language-model head.
    """
    width = x.size(-1)
    rows = b.reshape(x, [-1, width]) if x.rank > 2 else x
    matrix = weight or b.parameter((width, features), "weight")
    operands = [rows, matrix] + ([b.parameter((features,), "bias")] if bias else [])
    y: Tensor = b.op("Gemm", operands, transB=1 if weight else None)
    return b.reshape(y, [-1, x.size(1), features]) if x.rank > 2 else y


def dropout(b: GraphBuilder, training: bool, x: Tensor) -> Tensor:
    """A Dropout that drops where `training`, and `x` itself elsewhere, as eager inference runs it."""
    if not training:
        return x
    y: Tensor = b.op("Dropout", [x, b.constant(0.1), b.constant(True, dtype=DType.BOOL)])
    return y


def split_heads(b: GraphBuilder, x: Tensor, heads: int, *, keys: bool = False) -> Tensor:
    """(batch, length, heads * d) to (batch, heads, length, d), or to (batch, heads, d, length) for keys."""
    parted = b.reshape(x, [0, 0, heads, x.size(-1) // heads])
    return b.transpose(parted, [0, 2, 3, 1] if keys else [0, 2, 1, 3])


def merge_heads(b: GraphBuilder, x: Tensor) -> Tensor:
    """Inverse of `split_heads`."""
    return b.reshape(b.transpose(x, [0, 2, 1, 3]), [0, 0, x.size(1) * x.size(3)])


def tanh_gelu(b: GraphBuilder, x: Tensor) -> Tensor:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) as the eight kernels of the formula."""
    half = b.mul(x, b.constant(0.5))
    cube: Tensor = b.op("Pow", [x, b.constant(3.0)])
    inner = b.mul(b.add(x, b.mul(cube, b.constant(0.044715))), b.constant(0.7978845608))
    return b.mul(half, b.add(b.tanh(inner), b.constant(1.0)))


def padding_scores(b: GraphBuilder, mask: Tensor) -> Tensor:
    """An integer mask (batch, length), 1 = token, to additive scores (batch, 1, 1, length)."""
    spread = b.reshape(b.op("Cast", [mask], to=1), [0, 1, 1, -1])
    return b.mul(b.sub(b.constant(1.0), spread), b.constant(-3.4e38))


def token_loss(b: GraphBuilder, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy over all tokens; logits (batch, length, classes) or (batch, classes)."""
    rows = b.reshape(logits, [-1, logits.size(-1)])
    loss: Tensor = b.op("SoftmaxCrossEntropyLoss", [rows, b.reshape(labels, [-1])], reduction="mean")
    return loss
