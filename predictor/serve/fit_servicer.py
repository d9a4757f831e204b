"""FitService: translation, under the limit on searches at once."""

# ruff: noqa: N802 - gRPC names the methods.

from __future__ import annotations

import grpc

from predictor.serve.answers import Answers
from predictor.serve.prediction_servicer import StreamSlots
from predictor.v1 import fit_service_pb2 as pb
from predictor.v1.fit_service_pb2_grpc import FitServiceServicer
from predictor.wire.fit import changes_to_proto, fit_to_proto


class FitServicer(FitServiceServicer):
    """Where jobs stop to fit, and what to change. Each call holds one of the slots that streams share."""

    def __init__(self, answers: Answers, slots: StreamSlots) -> None:
        self._answers = answers
        self._slots = slots

    def FindFit(self, request: pb.FindFitRequest, context: grpc.ServicerContext) -> pb.FindFitResponse:
        """The largest size that fits."""
        probability = request.probability if request.HasField("probability") else None
        with self._slots.turn(context):
            found = self._answers.fit(request.candidate, request.axis or "batch", probability)
        return fit_to_proto(found, request.request_id)

    def FindChanges(
        self, request: pb.FindChangesRequest, context: grpc.ServicerContext
    ) -> pb.FindChangesResponse:
        """What makes the job fit."""
        probability = request.probability if request.HasField("probability") else None
        with self._slots.turn(context):
            found = self._answers.changes_to_fit(request.candidate, probability)
        return changes_to_proto(found, request.request_id)
