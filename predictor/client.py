"""RemotePredictor: the contract of `predictor.protocol.Forecaster` over gRPC.

A model travels once: weights are removed here, the content's hash is sent, and the bytes follow only when the
server does not hold them. Files are read on this side; the server never sees a path.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import grpc
from grpc_status import rpc_status

from predictor.cache import Memo
from predictor.errors import (
    InvalidGraph,
    InvalidRequest,
    Overloaded,
    PerfcastError,
    Unavailable,
    UnknownGraph,
)
from predictor.features.graph import Graph
from predictor.features.programs.program_source import ProgramSource
from predictor.request import GraphSource, PredictionRequest, checked_request
from predictor.types import Explanation, Prediction
from predictor.units import MIB
from predictor.v1 import candidate_pb2
from predictor.v1 import catalog_service_pb2 as catalog_pb
from predictor.v1 import fit_service_pb2 as fit_pb
from predictor.v1 import graph_service_pb2 as graph_pb
from predictor.v1 import plan_service_pb2 as plan_pb
from predictor.v1 import prediction_service_pb2 as pb
from predictor.v1.catalog_service_pb2_grpc import CatalogServiceStub
from predictor.v1.graph_service_pb2_grpc import GraphServiceStub
from predictor.v1.prediction_service_pb2_grpc import PredictionServiceStub
from predictor.wire.prediction import explanation_from_proto, prediction_from_proto
from predictor.wire.request import request_to_proto
from predictor.wire.status import status_to_error

if TYPE_CHECKING:
    from predictor.fits import Change, FitAnswer
    from predictor.search.search import Goal, SearchResult
    from predictor.search.tables import ScalingPoint, ThroughputRow

__all__ = ["RemotePredictor"]

Answer = TypeVar("Answer")
_Outcome: TypeAlias = "candidate_pb2.Candidate | PerfcastError"

_CHUNK_BYTES = MIB
_BATCH_CANDIDATES = 1024
_BATCH_BYTES = 4 * MIB
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * MIB),
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    # Shorter than all pauses together: a client that saw its server die finds the next one.
    ("grpc.max_reconnect_backoff_ms", 200),
)


class RemotePredictor:
    """Asks a perfcast server. Thread-safe; picklable (copies reconnect); end it with `close` or `with`."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 30.0,
        attempts: int = 4,
        token: str | None = None,
        root_certificate: bytes | None = None,
    ) -> None:
        """Nothing connects yet.

        Args:
            address: `host:port`, or any other gRPC target such as `unix:/run/perfcast.sock`.
            timeout_s: deadline of each call, retries included.
            attempts: how often a call that finds no server is made, with growing pauses.
            token: bearer token of the server.
            root_certificate: PEM of the authority behind the server's certificate; None speaks plain text.

        Raises InvalidRequest: a deadline, count or address outside its domain.
        """
        if not timeout_s > 0:
            raise InvalidRequest(f"timeout_s is {timeout_s}; expected seconds above 0", field="timeout_s")
        if address.startswith(("http://", "https://", "grpc://")) or not address.strip():
            raise InvalidRequest(
                f"address is {address!r}; expected HOST:PORT without a scheme, e.g. localhost:50051",
                field="address",
            )
        if attempts < 1:
            raise InvalidRequest(f"attempts is {attempts}; expected at least 1", field="attempts")
        self._arguments: dict[str, Any] = {
            "timeout_s": timeout_s,
            "attempts": attempts,
            "token": token,
            "root_certificate": root_certificate,
        }
        self.address = address
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._root_certificate = root_certificate
        self._lock = Lock()
        self._channel: grpc.Channel | None = None
        self._bundle_id: str | None = None
        self._models: Memo[object, _LocalModel] = Memo(256)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, **self._arguments}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def close(self) -> None:
        """Ends the connection; the next call opens another."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    @property
    def bundle_id(self) -> str:
        """Identity of the trained models that the server answers from. Raises Unavailable."""
        if self._bundle_id is None:
            stub = CatalogServiceStub(self._connect())
            response = self._call(stub.ListBundles, catalog_pb.ListBundlesRequest())
            self._bundle_id = str(response.bundles[0].id)
        return self._bundle_id

    def predict(self, request: PredictionRequest) -> Prediction:
        """The answer to one request. Raises what `Predictor.predict` raises, and Unavailable."""

        def ask(candidate: candidate_pb2.Candidate) -> Prediction:
            stub = PredictionServiceStub(self._connect())
            response = self._call(stub.Predict, pb.PredictRequest(candidate=candidate))
            return prediction_from_proto(response.prediction)

        return self._with_upload(request, ask)

    def explain(self, request: PredictionRequest) -> Explanation:
        """The prediction with its op groups. Raises what `Predictor.explain` raises, and Unavailable."""

        def ask(candidate: candidate_pb2.Candidate) -> Explanation:
            stub = PredictionServiceStub(self._connect())
            return explanation_from_proto(self._call(stub.Explain, pb.ExplainRequest(candidate=candidate)))

        return self._with_upload(request, ask)

    def search_plans(
        self,
        request: PredictionRequest,
        goal: Goal | None = None,
        *,
        max_devices: int | None = None,
        cp: Sequence[int] = (1,),
    ) -> SearchResult:
        """The best plans for a job. Raises what `Predictor.search_plans` raises, Overloaded, Unavailable."""
        from predictor.v1.plan_service_pb2_grpc import PlanServiceStub
        from predictor.wire import search as wire

        def ask(candidate: candidate_pb2.Candidate) -> SearchResult:
            message = plan_pb.SearchPlansRequest(
                candidate=candidate,
                goal=None if goal is None else wire.goal_to_proto(goal),
                max_devices=max_devices,
                cp=cp,
            )
            return wire.result_from_proto(self._call(PlanServiceStub(self._connect()).SearchPlans, message))

        return self._with_upload(request, ask)

    def throughput_table(
        self, request: PredictionRequest, devices: Sequence[str], counts: Sequence[int]
    ) -> list[ThroughputRow]:
        """The fastest plan by device and number of devices. Raises as `search_plans`."""
        from predictor.v1.plan_service_pb2_grpc import PlanServiceStub
        from predictor.wire import search as wire

        def ask(candidate: candidate_pb2.Candidate) -> list[ThroughputRow]:
            message = plan_pb.ThroughputTableRequest(
                candidate=candidate, device_ids=devices, device_counts=counts
            )
            return wire.table_from_proto(
                self._call(PlanServiceStub(self._connect()).ThroughputTable, message)
            )

        return self._with_upload(request, ask)

    def scaling_curve(
        self, request: PredictionRequest, replicas: Sequence[int], *, weak: bool = False
    ) -> list[ScalingPoint]:
        """Times of the request's plan with other numbers of replicas. Raises as `search_plans`."""
        from predictor.v1.plan_service_pb2_grpc import PlanServiceStub
        from predictor.wire import search as wire

        def ask(candidate: candidate_pb2.Candidate) -> list[ScalingPoint]:
            message = plan_pb.ScalingCurveRequest(candidate=candidate, replicas=replicas, weak=weak)
            return wire.curve_from_proto(self._call(PlanServiceStub(self._connect()).ScalingCurve, message))

        return self._with_upload(request, ask)

    def fit(self, request: PredictionRequest, *, axis: str = "batch", probability: float = 0.9) -> FitAnswer:
        """The largest size with which the job fits. Raises as `search_plans`."""
        from predictor.v1.fit_service_pb2_grpc import FitServiceStub
        from predictor.wire.fit import fit_from_proto

        def ask(candidate: candidate_pb2.Candidate) -> FitAnswer:
            message = fit_pb.FindFitRequest(candidate=candidate, axis=axis, probability=probability)
            return fit_from_proto(self._call(FitServiceStub(self._connect()).FindFit, message))

        return self._with_upload(request, ask)

    def changes_to_fit(self, request: PredictionRequest, probability: float = 0.9) -> list[Change]:
        """What to change so that the job fits. Raises as `search_plans`."""
        from predictor.v1.fit_service_pb2_grpc import FitServiceStub
        from predictor.wire.fit import changes_from_proto

        def ask(candidate: candidate_pb2.Candidate) -> list[Change]:
            message = fit_pb.FindChangesRequest(candidate=candidate, probability=probability)
            found = self._call(FitServiceStub(self._connect()).FindChanges, message)
            return changes_from_proto(found, request)

        return self._with_upload(request, ask)

    def predict_many(self, requests: Iterable[PredictionRequest]) -> list[Prediction | PerfcastError]:
        """Answers in order; failed requests hold their error. Raises Unavailable if there is no server."""
        asked = list(requests)
        answers = self._ask_many(asked)
        missing = [index for index, answer in enumerate(answers) if isinstance(answer, UnknownGraph)]
        if missing:
            for source in {id(asked[index].graph): asked[index].graph for index in missing}.values():
                # An id that the caller gave has no bytes here: its error stands.
                if (model := self._local(source)) is not None:
                    model.model_id = self.add_graph(model.stripped)
            for index, answer in zip(
                missing, self._ask_many([asked[index] for index in missing]), strict=True
            ):
                answers[index] = answer
        return answers

    def add_graph(self, data: bytes) -> str:
        """Uploads a model without its weights; returns its id. Raises InvalidGraph, Unavailable."""
        from predictor.features.reading.strip import strip_model

        stripped = strip_model(data)
        stub = GraphServiceStub(self._connect())
        response = self._call(lambda _, **options: stub.UploadGraph(_chunks(stripped), **options), None)
        return str(response.graph.model_id)

    def _ask_many(self, requests: Sequence[PredictionRequest]) -> list[Prediction | PerfcastError]:
        outcomes: list[Prediction | PerfcastError] = []
        batch: list[_Outcome] = []
        size_bytes = 0
        for request in requests:
            try:
                candidate = self._candidate(request)
                size_bytes += candidate.ByteSize()
                batch.append(candidate)
            except PerfcastError as error:
                batch.append(error)
            if len(batch) >= _BATCH_CANDIDATES or size_bytes >= _BATCH_BYTES:
                outcomes.extend(self._send(batch))
                batch, size_bytes = [], 0
        outcomes.extend(self._send(batch))
        return outcomes

    def _send(self, batch: Sequence[_Outcome]) -> Iterator[Prediction | PerfcastError]:
        candidates = [item for item in batch if not isinstance(item, PerfcastError)]
        results: Iterator[pb.CandidateResult] = iter(())
        if candidates:
            stub = PredictionServiceStub(self._connect())
            response = self._call(stub.BatchPredict, pb.BatchPredictRequest(candidates=candidates))
            if len(response.results) != len(candidates):
                raise Unavailable(
                    f"{self.address}: {len(response.results)} results for {len(candidates)} candidates"
                )
            results = iter(response.results)
        return (item if isinstance(item, PerfcastError) else _outcome(next(results)) for item in batch)

    def _with_upload(
        self, request: PredictionRequest, ask: Callable[[candidate_pb2.Candidate], Answer]
    ) -> Answer:
        try:
            return ask(self._candidate(request))
        except UnknownGraph:
            model = self._local(request.graph)
            if model is None:
                raise
            model.model_id = self.add_graph(model.stripped)
            return ask(self._candidate(request))

    def _candidate(self, request: PredictionRequest) -> candidate_pb2.Candidate:
        model = self._local(checked_request(request).graph)
        return request_to_proto(request, model.model_id if model is not None else str(request.graph))

    def _local(self, source: GraphSource) -> _LocalModel | None:
        """The model of a file or of bytes, stripped once; None for an id."""
        if isinstance(source, Graph):
            raise InvalidRequest(
                "a Graph object cannot be sent to a server: give the ONNX file or its bytes", field="graph"
            )
        if isinstance(source, ProgramSource):
            raise InvalidRequest(
                "a torch module cannot be sent to a server: write it with `perfcast graph from-torch` and "
                "give that file",
                field="graph",
            )
        if isinstance(source, str) and source.startswith("sha256:"):
            return None
        return self._models.get_or(_content_key(source), lambda: _LocalModel(source))

    def _connect(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                if self._root_certificate is None:
                    self._channel = grpc.insecure_channel(self.address, options=_CHANNEL_OPTIONS)
                else:
                    credentials = grpc.ssl_channel_credentials(self._root_certificate)
                    self._channel = grpc.secure_channel(self.address, credentials, options=_CHANNEL_OPTIONS)
            return self._channel

    def _call(self, method: Callable[..., Any], message: object) -> Any:
        deadline_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, self._attempts + 1):
            remaining_s = deadline_s - time.monotonic()
            try:
                return method(message, timeout=max(remaining_s, 1e-3), metadata=self._metadata)
            except grpc.RpcError as failure:
                error = self._error(failure)
                retry = isinstance(error, Unavailable) and failure.code() in _RETRIED
                if not retry or attempt == self._attempts or remaining_s <= pause_s:
                    raise error from None
            # Jitter, so that many clients of a restarted server do not come back at once.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    def _error(self, failure: grpc.RpcError) -> PerfcastError:
        status = rpc_status.from_call(failure)
        if status is not None:
            return status_to_error(status)
        code, details = failure.code(), failure.details()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"{self.address}: no answer within {self._timeout_s:g} s; raise the timeout")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"{self.address}: the server refused the call: {details}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unavailable(
                f"{self.address}: no server answers; check the address, or start one with `perfcast serve`"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(f"{self.address}: the server does not speak predictor.v1 ({details})")
        return PerfcastError(f"{self.address}: {code.name}: {details}")


_RETRIED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)


class _LocalModel:
    """A model read on this side, and the id under which the server knows it."""

    def __init__(self, source: str | os.PathLike[str] | bytes) -> None:
        from predictor.features.reading.strip import strip_model

        self.stripped = strip_model(source if isinstance(source, bytes) else Path(source))
        # The server's id replaces it after an upload; they differ only if its version strips differently.
        self.model_id = f"sha256:{hashlib.sha256(self.stripped).hexdigest()}"


def _content_key(source: str | os.PathLike[str] | bytes) -> object:
    if isinstance(source, bytes):
        return hashlib.sha256(source).digest()
    path = os.fspath(source)
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        # ValueError: a zero byte in the path.
        reason = getattr(error, "strerror", None) or error
        raise InvalidGraph(f"{path}: {reason}; expected a readable ONNX file", path=path) from None
    return path, status.st_mtime_ns, status.st_size, status.st_ino


def _chunks(data: bytes) -> Iterator[graph_pb.UploadGraphRequest]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield graph_pb.UploadGraphRequest(chunk=data[start : start + _CHUNK_BYTES])


def _outcome(result: pb.CandidateResult) -> Prediction | PerfcastError:
    if result.WhichOneof("outcome") == "error":
        return status_to_error(result.error)
    return prediction_from_proto(result.prediction)
