"""What every face of perfcast can do, in process or over the wire: the one contract callers need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from predictor.errors import PerfcastError
from predictor.request import PredictionRequest
from predictor.types import Explanation, Prediction

if TYPE_CHECKING:
    from predictor.fits import Change, FitAnswer
    from predictor.search.search import Goal, SearchResult
    from predictor.search.tables import ScalingPoint, ThroughputRow


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

    def search_plans(
        self,
        request: PredictionRequest,
        goal: Goal | None = None,
        *,
        max_devices: int | None = None,
        cp: Sequence[int] = (1,),
    ) -> SearchResult:
        """The best plans for a job; its own plan does not matter. Raises PerfcastError."""
        ...

    def throughput_table(
        self, request: PredictionRequest, devices: Sequence[str], counts: Sequence[int]
    ) -> list[ThroughputRow]:
        """The fastest plan by device and number of devices, in this order. Raises PerfcastError."""
        ...

    def scaling_curve(
        self, request: PredictionRequest, replicas: Sequence[int], *, weak: bool = False
    ) -> list[ScalingPoint]:
        """Times of the request's plan with other numbers of replicas. Raises PerfcastError."""
        ...

    def fit(self, request: PredictionRequest, *, axis: str = "batch", probability: float = 0.9) -> FitAnswer:
        """The largest batch, or symbolic dimension, with which the job fits. Raises PerfcastError."""
        ...

    def changes_to_fit(self, request: PredictionRequest, probability: float = 0.9) -> list[Change]:
        """What to change so that the job fits, the fastest first. Raises PerfcastError."""
        ...

    def add_graph(self, data: bytes) -> str:
        """Stores a model without its weights; the id returned serves as a `graph`. Raises InvalidGraph."""
        ...
