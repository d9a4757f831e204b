"""What every face of perfcast can do, in process or over the wire: the one contract callers need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from predictor.errors import PerfcastError
from predictor.request import PredictionRequest
from predictor.types import Explanation, Prediction


class Forecaster(Protocol):
    """`predictor.api.Predictor` and `predictor.client.RemotePredictor` honour this contract alike.

    Both are thread-safe and picklable, answer bit-identically from the same bundle and raise the same errors.
    """

    @property
    def bundle_id(self) -> str:
        """Identity of the trained models; echoed in every answer."""
        ...

    def predict(self, request: PredictionRequest) -> Prediction:
        """The answer to one request. Raises PerfcastError."""
        ...

    def predict_many(self, requests: Iterable[PredictionRequest]) -> list[Prediction | PerfcastError]:
        """Answers in order; a request that fails holds its error instead and never fails the rest."""
        ...

    def explain(self, request: PredictionRequest) -> Explanation:
        """The prediction with its op groups, most expensive first. Raises PerfcastError."""
        ...

    def add_graph(self, data: bytes) -> str:
        """Stores a model without its weights; the id returned serves as a `graph`. Raises InvalidGraph."""
        ...
