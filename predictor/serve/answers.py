"""Candidates in, messages out: the predictor behind the wire, with uploaded models and remembered answers.

An answer depends on the candidate and the bundle alone, so the serialized candidate is its key. That makes a
repeated question cost its transport and little more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from predictor.api.plan_tables import check_devices
from predictor.cache import Memo
from predictor.errors import PerfcastError, UnknownGraph
from predictor.features.reading.strip import strip_model
from predictor.fits import PROBABILITY, Change, FitAnswer
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from predictor.search.search import Goal, SearchResult
from predictor.search.tables import ScalingPoint, ThroughputRow
from predictor.serve.graph_store import GraphStore, StoredModel
from predictor.types import Explanation, Prediction
from predictor.v1 import candidate_pb2, prediction_pb2
from predictor.v1.prediction_service_pb2 import CandidateResult
from predictor.wire.prediction import prediction_to_proto
from predictor.wire.request import request_from_proto

Result = TypeVar("Result")

# About 2 KiB each.
_REMEMBERED = 16384


class Answers:
    """A forecaster that speaks predictor.v1."""

    def __init__(self, predictor: Forecaster, store: GraphStore) -> None:
        self._predictor = predictor
        self._store = store
        self._memo: Memo[bytes, CandidateResult] = Memo(_REMEMBERED)

    @property
    def bundle_id(self) -> str:
        """Identity of the trained models."""
        return self._predictor.bundle_id

    def predict(self, candidate: candidate_pb2.Candidate) -> prediction_pb2.Prediction:
        """The answer to one candidate. Raises PerfcastError."""
        key = _key(candidate)
        found = self._memo.get(key) if key else None
        if found is None:
            request = request_from_proto(candidate)
            found = self._remember(key, self._with_models(request, self._predictor.predict))
        return found.prediction

    def predict_many(
        self, candidates: Sequence[candidate_pb2.Candidate]
    ) -> list[CandidateResult | PerfcastError]:
        """Results in order; a candidate that fails holds its error."""
        results: list[CandidateResult | PerfcastError | None] = []
        pending: list[tuple[int, bytes, PredictionRequest]] = []
        for index, candidate in enumerate(candidates):
            key = _key(candidate)
            found: CandidateResult | PerfcastError | None = self._memo.get(key) if key else None
            if found is None:
                try:
                    pending.append((index, key, request_from_proto(candidate)))
                except PerfcastError as error:
                    found = error
            results.append(found)
        if pending:
            answers = self._price([request for _, _, request in pending])
            for (index, key, _), answer in zip(pending, answers, strict=True):
                results[index] = answer if isinstance(answer, PerfcastError) else self._remember(key, answer)
        return [result for result in results if result is not None]

    def explain(self, candidate: candidate_pb2.Candidate) -> Explanation:
        """The prediction with its op groups. Raises PerfcastError."""
        return self._with_models(request_from_proto(candidate), self._predictor.explain)

    def search_plans(
        self, candidate: candidate_pb2.Candidate, goal: Goal, max_devices: int | None, cp: Sequence[int]
    ) -> SearchResult:
        """The best plans for the candidate's job. Raises PerfcastError."""
        if max_devices is not None:
            check_devices(max_devices, "max_devices")
        return self._with_models(
            request_from_proto(candidate),
            lambda request: self._predictor.search_plans(request, goal, max_devices=max_devices, cp=cp),
        )

    def throughput_table(
        self, candidate: candidate_pb2.Candidate, devices: Sequence[str], counts: Sequence[int]
    ) -> list[ThroughputRow]:
        """The fastest plan by device and number of devices. Raises PerfcastError."""
        return self._with_models(
            request_from_proto(candidate),
            lambda request: self._predictor.throughput_table(request, devices, counts),
        )

    def scaling_curve(
        self, candidate: candidate_pb2.Candidate, replicas: Sequence[int], *, weak: bool
    ) -> list[ScalingPoint]:
        """Times of the candidate's plan by replicas. Raises PerfcastError."""
        return self._with_models(
            request_from_proto(candidate),
            lambda request: self._predictor.scaling_curve(request, replicas, weak=weak),
        )

    def fit(self, candidate: candidate_pb2.Candidate, axis: str, probability: float | None) -> FitAnswer:
        """Where the candidate's job stops to fit. Raises PerfcastError."""
        wanted = PROBABILITY if probability is None else probability
        return self._with_models(
            request_from_proto(candidate),
            lambda request: self._predictor.fit(request, axis=axis, probability=wanted),
        )

    def changes_to_fit(self, candidate: candidate_pb2.Candidate, probability: float | None) -> list[Change]:
        """What makes the candidate's job fit. Raises PerfcastError."""
        wanted = PROBABILITY if probability is None else probability
        return self._with_models(
            request_from_proto(candidate), lambda request: self._predictor.changes_to_fit(request, wanted)
        )

    def add_graph(self, data: bytes) -> StoredModel:
        """Stores an uploaded model. Raises InvalidGraph."""
        stripped = strip_model(data)
        return self._store.put(self._predictor.add_graph(stripped), stripped)

    def _price(self, requests: Sequence[PredictionRequest]) -> list[Prediction | PerfcastError]:
        answers = self._predictor.predict_many(requests)
        missing: dict[object, list[int]] = {}
        for index, answer in enumerate(answers):
            if isinstance(answer, UnknownGraph):
                missing.setdefault(requests[index].graph, []).append(index)
        # Model by model, because a predictor keeps a limited number of them.
        for indices in missing.values():
            if self._restore(requests[indices[0]]):
                again = self._predictor.predict_many([requests[index] for index in indices])
                for index, answer in zip(indices, again, strict=True):
                    answers[index] = answer
        return answers

    def _remember(self, key: bytes, answer: Prediction) -> CandidateResult:
        # Kept in the form that batches append as it is.
        result = CandidateResult(prediction=prediction_to_proto(answer))
        if key:
            self._memo.put(key, result)
        return result

    def _with_models(self, request: PredictionRequest, ask: Callable[[PredictionRequest], Result]) -> Result:
        try:
            return ask(request)
        except UnknownGraph:
            if not self._restore(request):
                raise
            return ask(request)

    def _restore(self, request: PredictionRequest) -> bool:
        """Gives the predictor a model that this or another worker has stored."""
        if not isinstance(request.graph, str):
            return False
        data = self._store.read(request.graph)
        return data is not None and self._predictor.add_graph(data) == request.graph


def _key(candidate: candidate_pb2.Candidate) -> bytes:
    """The candidate's identity; empty for inline models, which are too large to be remembered as keys."""
    if candidate.graph.WhichOneof("source") != "model_id":
        return b""
    return candidate.SerializeToString(deterministic=True)
