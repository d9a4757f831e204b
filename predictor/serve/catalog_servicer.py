"""CatalogService: translation only."""

# ruff: noqa: N802 - gRPC names the methods.

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import grpc

from predictor.hardware.catalog import list_devices
from predictor.serve.answers import Answers
from predictor.serve.pages import page_of
from predictor.types import OpCostRow
from predictor.v1 import catalog_service_pb2 as pb
from predictor.v1.catalog_service_pb2_grpc import CatalogServiceServicer
from predictor.wire.hardware import device_to_proto
from predictor.wire.prediction import prediction_to_proto


class CatalogServicer(CatalogServiceServicer):
    """Says what the server knows."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def ListDevices(
        self, request: pb.ListDevicesRequest, context: grpc.ServicerContext
    ) -> pb.ListDevicesResponse:
        """Lists the devices by id."""
        devices = sorted(list_devices(), key=lambda device: device.id)
        page, token = page_of(devices, lambda device: device.id, request.page_size, request.page_token)
        return pb.ListDevicesResponse(
            devices=[device_to_proto(device) for device in page], next_page_token=token
        )

    def ListBundles(
        self, request: pb.ListBundlesRequest, context: grpc.ServicerContext
    ) -> pb.ListBundlesResponse:
        """Lists the one bundle that this server answers from."""
        page, token = page_of([self._answers.bundle_id], str, request.page_size, request.page_token)
        return pb.ListBundlesResponse(bundles=[pb.Bundle(id=item) for item in page], next_page_token=token)

    def GetCoverage(
        self, request: pb.GetCoverageRequest, context: grpc.ServicerContext
    ) -> pb.GetCoverageResponse:
        """Groups the op costs of a candidate by op type and source."""
        explanation = self._answers.explain(request.candidate)
        prediction = prediction_to_proto(explanation.prediction)
        return pb.GetCoverageResponse(
            coverage=prediction.coverage, ops=_by_op(explanation.rows), out_of_range=prediction.out_of_range
        )


def _by_op(rows: Iterable[OpCostRow]) -> list[pb.OpCoverage]:
    groups: dict[tuple[str, str], list[OpCostRow]] = defaultdict(list)
    for row in rows:
        groups[row.op_type, row.source].append(row)
    found = [
        pb.OpCoverage(
            op_type=op_type,
            source=source,
            count=sum(row.count for row in members),
            share_fraction=sum(row.share_fraction for row in members),
        )
        for (op_type, source), members in groups.items()
    ]
    return sorted(found, key=lambda item: (-item.share_fraction, item.op_type))
