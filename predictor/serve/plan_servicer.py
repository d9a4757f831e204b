"""PlanService: translation, and a limit on searches at once."""

# ruff: noqa: N802 - gRPC names the methods.

from __future__ import annotations

import grpc

from predictor.serve.answers import Answers
from predictor.serve.prediction_servicer import StreamSlots
from predictor.v1 import plan_service_pb2 as pb
from predictor.v1.plan_service_pb2_grpc import PlanServiceServicer
from predictor.wire.search import curve_to_proto, goal_from_proto, result_to_proto, table_to_proto


class PlanServicer(PlanServiceServicer):
    """Searches and tables of splits. They last long, so each holds one of the slots that streams share."""

    def __init__(self, answers: Answers, slots: StreamSlots) -> None:
        self._answers = answers
        self._slots = slots

    def SearchPlans(
        self, request: pb.SearchPlansRequest, context: grpc.ServicerContext
    ) -> pb.SearchPlansResponse:
        """The best plans of a job."""
        goal = goal_from_proto(request.goal)
        most = request.max_devices if request.HasField("max_devices") else None
        with self._slots.turn(context):
            found = self._answers.search_plans(request.candidate, goal, most, tuple(request.cp) or (1,))
        return result_to_proto(found, request.request_id)

    def ThroughputTable(
        self, request: pb.ThroughputTableRequest, context: grpc.ServicerContext
    ) -> pb.ThroughputTableResponse:
        """The fastest plan by kind and number of devices."""
        with self._slots.turn(context):
            rows = self._answers.throughput_table(
                request.candidate, tuple(request.device_ids), tuple(request.device_counts)
            )
        return table_to_proto(rows, request.request_id)

    def ScalingCurve(
        self, request: pb.ScalingCurveRequest, context: grpc.ServicerContext
    ) -> pb.ScalingCurveResponse:
        """Times by number of replicas."""
        with self._slots.turn(context):
            points = self._answers.scaling_curve(
                request.candidate, tuple(request.replicas), weak=request.weak
            )
        return curve_to_proto(points, request.request_id)
