"""Work rules of ATen operators, one module per family. Importing the package registers them all.

Adding an operator: one decorated function, keyed by its name without overload and in-place underscore.
"""

from __future__ import annotations

from predictor.features.torch_capture.rules import (
    attention,
    matrix,
    moves,
    norms,
    optimizer,
    pointwise,
    pooling,
    recurrent,
    reductions,
)

__all__ = [
    "attention",
    "matrix",
    "moves",
    "norms",
    "optimizer",
    "pointwise",
    "pooling",
    "recurrent",
    "reductions",
]
