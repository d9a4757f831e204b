"""The front door in process: `Predictor.load().predict(request)`."""

from __future__ import annotations

from predictor.api.predictor import Predictor

__all__ = ["Predictor"]
