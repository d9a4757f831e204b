"""Work and backward rules, one module per op family. Importing the package registers them all.

Counting conventions of the vector FLOPs: one per arithmetic operation and output element, elementary
functions (exp, log, erf, tanh, sqrt ...) count one; they matter little, since such ops are bound by memory.
"""

from __future__ import annotations

from predictor.features.ops import (
    attention,
    classic,
    contrib,
    contrib_attention,
    contrib_matrix,
    contrib_quantised,
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
    state,
    steps,
    text,
    views,
)

__all__ = [
    "attention",
    "classic",
    "contrib",
    "contrib_attention",
    "contrib_matrix",
    "contrib_quantised",
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
    "state",
    "steps",
    "text",
    "views",
]
