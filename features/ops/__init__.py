"""Work and backward rules, one module per op family. Importing the package registers them all.

Counting conventions of the vector FLOPs: one per arithmetic operation and output element, elementary
functions (exp, log, erf, tanh, sqrt ...) count one; they matter little, since such ops are bound by memory.
"""

from __future__ import annotations

from predictor.features.ops import (
    attention,
    conv,
    copies,
    einsum,
    elementwise,
    embedding,
    experts,
    fused,
    indexing,
    matmul,
    norms,
    pooling,
    quantize,
    recurrent,
    reductions,
    signal,
    softmax,
    sources,
    spatial,
    views,
)

__all__ = [
    "attention",
    "conv",
    "copies",
    "einsum",
    "elementwise",
    "embedding",
    "experts",
    "fused",
    "indexing",
    "matmul",
    "norms",
    "pooling",
    "quantize",
    "recurrent",
    "reductions",
    "signal",
    "softmax",
    "sources",
    "spatial",
    "views",
]
