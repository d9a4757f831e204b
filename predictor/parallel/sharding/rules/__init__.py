"""Shard rules, one module per kind of op. Importing the package registers them all."""

from __future__ import annotations

from predictor.parallel.sharding.rules import (
    attention,
    collectives,
    elementwise,
    images,
    indexing,
    losses,
    products,
    rows,
    shapes,
)

__all__ = [
    "attention",
    "collectives",
    "elementwise",
    "images",
    "indexing",
    "losses",
    "products",
    "rows",
    "shapes",
]
