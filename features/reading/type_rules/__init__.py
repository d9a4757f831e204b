"""Output types that ONNX's inference does not know, one module per kind. Importing it registers all rules."""

from predictor.features.reading.type_rules import blocks, bounds, classic, containers, contrib

__all__ = ["blocks", "bounds", "classic", "containers", "contrib"]
