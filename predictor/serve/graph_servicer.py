"""GraphService: translation only."""

# ruff: noqa: N802 - gRPC names the methods.

from __future__ import annotations

from collections.abc import Iterator

import grpc

from predictor.errors import InvalidGraph, UnknownGraph
from predictor.serve.answers import Answers
from predictor.serve.graph_store import GraphStore, StoredModel
from predictor.serve.pages import page_of
from predictor.serve.prediction_servicer import StreamSlots
from predictor.v1 import graph_pb2
from predictor.v1 import graph_service_pb2 as pb
from predictor.v1.graph_service_pb2_grpc import GraphServiceServicer


class GraphServicer(GraphServiceServicer):
    """Takes models and describes those held."""

    def __init__(self, answers: Answers, store: GraphStore, slots: StreamSlots, max_graph_bytes: int) -> None:
        self._answers = answers
        self._store = store
        self._slots = slots
        self._max_graph_bytes = max_graph_bytes

    def UploadGraph(
        self, request_iterator: Iterator[pb.UploadGraphRequest], context: grpc.ServicerContext
    ) -> pb.UploadGraphResponse:
        """Stores one model sent in chunks."""
        with self._slots.hold():
            data = _join(request_iterator, self._max_graph_bytes)
        return pb.UploadGraphResponse(graph=_to_proto(self._answers.add_graph(data)))

    def GetGraph(self, request: pb.GetGraphRequest, context: grpc.ServicerContext) -> pb.GetGraphResponse:
        """Describes one model."""
        found = self._store.find(request.model_id)
        if found is None:
            shown = request.model_id[:80]
            raise UnknownGraph(f"unknown graph {shown!r}: upload the model first", graph=shown)
        return pb.GetGraphResponse(graph=_to_proto(found))

    def ListGraphs(
        self, request: pb.ListGraphsRequest, context: grpc.ServicerContext
    ) -> pb.ListGraphsResponse:
        """Lists the models."""
        page, token = page_of(
            self._store.all(), lambda model: model.model_id, request.page_size, request.page_token
        )
        return pb.ListGraphsResponse(graphs=[_to_proto(model) for model in page], next_page_token=token)


def _join(requests: Iterator[pb.UploadGraphRequest], limit_bytes: int) -> bytes:
    data = bytearray()
    for request in requests:
        data += request.chunk
        if len(data) > limit_bytes:
            raise InvalidGraph(
                f"the model exceeds {limit_bytes} bytes: remove its weights first (perfcast graph strip), or "
                "raise the server's max_graph_bytes",
                limit=limit_bytes,
            )
    return bytes(data)


def _to_proto(model: StoredModel) -> graph_pb2.StoredGraph:
    return graph_pb2.StoredGraph(model_id=model.model_id, size_bytes=model.size_bytes)
