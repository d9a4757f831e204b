"""PredictionService: translation only."""

# ruff: noqa: N802 - gRPC names the methods.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore

import grpc

from predictor.errors import Overloaded, PerfcastError, Unavailable
from predictor.serve.answers import Answers
from predictor.v1 import prediction_service_pb2 as pb
from predictor.v1.prediction_service_pb2_grpc import PredictionServiceServicer
from predictor.wire.prediction import exchanges_to_proto, prediction_to_proto, rows_to_proto
from predictor.wire.status import error_to_status

# Between chunks the server looks whether the caller is still there, so that a stop is not held up by answers
# nobody waits for: 32 new shapes of a model take about half a second.
_CHUNK = 32


class StreamSlots:
    """How many long-lived calls may hold a thread each, so that short ones are never starved."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = BoundedSemaphore(count)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """One slot. Raises Overloaded when none is free."""
        if not self._free.acquire(blocking=False):
            raise Overloaded(
                f"all {self._count} streams of this server are in use: try later, or send batches"
            )
        try:
            yield
        finally:
            self._free.release()

    @contextmanager
    def turn(self, context: grpc.ServicerContext) -> Iterator[None]:
        """A slot, if the caller still waits. Raises Overloaded, Unavailable."""
        with self.hold():
            if not context.is_active():
                raise Unavailable("the caller's deadline passed before the search began")
            yield


class PredictionServicer(PredictionServiceServicer):
    """Answers candidates."""

    def __init__(self, answers: Answers, slots: StreamSlots) -> None:
        self._answers = answers
        self._slots = slots

    def Predict(self, request: pb.PredictRequest, context: grpc.ServicerContext) -> pb.PredictResponse:
        """One candidate."""
        prediction = self._answers.predict(request.candidate)
        if request.validate_only:
            # Predicting is the complete check: nothing else finds the errors of every layer.
            return pb.PredictResponse(request_id=request.request_id)
        return pb.PredictResponse(prediction=prediction, request_id=request.request_id)

    def BatchPredict(
        self, request: pb.BatchPredictRequest, context: grpc.ServicerContext
    ) -> pb.BatchPredictResponse:
        """Many candidates; a bad one is a status in its place."""
        response = pb.BatchPredictResponse(request_id=request.request_id)
        for start in range(0, len(request.candidates), _CHUNK):
            if not context.is_active():
                break
            answers = self._answers.predict_many(request.candidates[start : start + _CHUNK])
            response.results.extend(_result(answer, request.request_id) for answer in answers)
        return response

    def StreamPredict(
        self, request_iterator: Iterator[pb.StreamPredictRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.StreamPredictResponse]:
        """Candidates as they come."""
        with self._slots.hold():
            for request in request_iterator:
                answer = self._answers.predict_many((request.candidate,))[0]
                yield pb.StreamPredictResponse(
                    result=_result(answer, request.request_id), request_id=request.request_id
                )

    def Explain(self, request: pb.ExplainRequest, context: grpc.ServicerContext) -> pb.ExplainResponse:
        """One candidate with its op groups."""
        explanation = self._answers.explain(request.candidate)
        return pb.ExplainResponse(
            prediction=prediction_to_proto(explanation.prediction),
            rows=rows_to_proto(explanation.rows),
            request_id=request.request_id,
            exchanges=exchanges_to_proto(explanation.exchanges),
        )


def _result(answer: pb.CandidateResult | PerfcastError, request_id: str) -> pb.CandidateResult:
    if isinstance(answer, PerfcastError):
        return pb.CandidateResult(error=error_to_status(answer, request_id))
    return answer
