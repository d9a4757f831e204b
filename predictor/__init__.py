"""perfcast: how long, how much memory, how much energy, and how sure, before anything runs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.api import Predictor as Predictor
    from predictor.client import RemotePredictor as RemotePredictor
    from predictor.parallel.plan import Plan as Plan
    from predictor.request import PredictionRequest as PredictionRequest
    from predictor.types import Prediction as Prediction

__version__ = "0.1.0"

# Loaded on first use, so that a low layer or `--help` never pays for xgboost or grpc.
_LAZY = {
    "Predictor": "predictor.api",
    "RemotePredictor": "predictor.client",
    "PredictionRequest": "predictor.request",
    "Prediction": "predictor.types",
    "Plan": "predictor.parallel.plan",
}
__all__ = sorted([*_LAZY, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'predictor' has no attribute {name!r}")
