"""A real server on a free port, with a forecaster that misbehaves on demand."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from predictor.client import RemotePredictor
from predictor.errors import (
    InvalidGraph,
    InvalidRequest,
    Overloaded,
    PerfcastError,
    Unauthenticated,
    Unavailable,
)
from predictor.request import PredictionRequest
from predictor.serve.app import SERVICES, PerfcastServer, build_server
from predictor.serve.settings import ServerSettings
from predictor.types import Prediction
from predictor.v1 import catalog_service_pb2 as catalog_pb
from predictor.v1 import graph_service_pb2 as graph_pb
from predictor.v1 import prediction_service_pb2 as pb
from predictor.v1.catalog_service_pb2_grpc import CatalogServiceStub
from predictor.v1.graph_service_pb2_grpc import GraphServiceStub
from predictor.v1.prediction_service_pb2_grpc import PredictionServiceStub
from tests.contract.fake import FakePredictor
from tests.contract.models import perceptron

MODEL = perceptron().SerializeToString()


class Moody(FakePredictor):
    """Batch 13 is a bug, batch 14 takes as long as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.entered = threading.Event()

    def predict(self, request: PredictionRequest) -> Prediction:
        if request.batch == 13:
            raise ZeroDivisionError("secret detail")
        if request.batch == 14:
            self.entered.set()
            self.release.wait(10)
        return super().predict(request)


def _settings(**changes: Any) -> ServerSettings:
    return ServerSettings(**{"port": 0, "grace_s": 2.0, "access_log": False, **changes})


@pytest.fixture
def predictor() -> Moody:
    return Moody()


@pytest.fixture
def server(predictor: Moody) -> Iterator[PerfcastServer]:
    with build_server(predictor, _settings()) as running:
        yield running


@pytest.fixture
def channel(server: PerfcastServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.fixture
def model_id(channel: grpc.Channel) -> str:
    return str(GraphServiceStub(channel).UploadGraph(_chunks(MODEL)).graph.model_id)


def _chunks(data: bytes) -> Iterator[graph_pb.UploadGraphRequest]:
    return (graph_pb.UploadGraphRequest(chunk=data[i : i + 1000]) for i in range(0, len(data), 1000))


def _ask(model_id: str, batch: int = 1, **fields: Any) -> pb.PredictRequest:
    request = pb.PredictRequest(**fields)
    request.candidate.graph.model_id = model_id
    request.candidate.device_id = "a100-pcie-40gb"
    request.candidate.batch = batch
    return request


def _info(error: grpc.RpcError) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(error).details[0].Unpack(info)
    return info


def test_predict_echoes_the_request_id_in_answer_and_trailer(channel: grpc.Channel, model_id: str) -> None:
    response, call = PredictionServiceStub(channel).Predict.with_call(_ask(model_id, request_id="mine"))
    assert response.request_id == "mine"
    assert response.prediction.schema == "perfcast.prediction/1"
    assert ("x-request-id", "mine") in call.trailing_metadata()


def test_request_id_from_metadata_or_made(channel: grpc.Channel, model_id: str) -> None:
    stub = PredictionServiceStub(channel)
    _, call = stub.Predict.with_call(_ask(model_id), metadata=(("x-request-id", "theirs"),))
    assert ("x-request-id", "theirs") in call.trailing_metadata()
    ids = {
        dict(stub.Predict.with_call(_ask(model_id))[1].trailing_metadata())["x-request-id"] for _ in range(3)
    }
    assert len(ids) == 3


def test_validate_only_finds_errors_and_gives_no_prediction(channel: grpc.Channel, model_id: str) -> None:
    stub = PredictionServiceStub(channel)
    assert not stub.Predict(_ask(model_id, validate_only=True)).HasField("prediction")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(_ask(model_id, batch=-1, validate_only=True))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_remembered_answers_are_the_same(channel: grpc.Channel, model_id: str) -> None:
    stub = PredictionServiceStub(channel)
    assert stub.Predict(_ask(model_id, 3)) == stub.Predict(_ask(model_id, 3))
    assert stub.Predict(_ask(model_id, 3)) != stub.Predict(_ask(model_id, 4))


def test_inline_models_need_no_upload(channel: grpc.Channel, model_id: str) -> None:
    request = _ask(model_id)
    expected = PredictionServiceStub(channel).Predict(request)
    request.candidate.graph.stripped_model = MODEL
    assert PredictionServiceStub(channel).Predict(request) == expected


def test_a_bug_is_internal_with_an_id_and_the_server_goes_on(
    channel: grpc.Channel, model_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    stub = PredictionServiceStub(channel)
    with caplog.at_level(logging.ERROR, "perfcast.serve"), pytest.raises(grpc.RpcError) as caught:
        stub.Predict(_ask(model_id, 13, request_id="bug-1"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value)
    assert _info(caught.value).metadata["request_id"] == "bug-1"
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.__dict__["fields"]["request_id"] == "bug-1"
    stub.Predict(_ask(model_id, 1))


@pytest.mark.parametrize("method", ["Predict", "BatchPredict", "Explain"])
def test_bytes_that_are_no_message_are_the_callers_fault(channel: grpc.Channel, method: str) -> None:
    raw = channel.unary_unary(f"/predictor.v1.PredictionService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        raw(b"\xff\xff\xff garbage")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert _info(caught.value).reason == "REQUEST_INVALID"


def test_empty_request_names_what_is_absent(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError, match="without graph"):
        PredictionServiceStub(channel).Predict(pb.PredictRequest())


def test_long_request_ids_are_refused(channel: grpc.Channel, model_id: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        PredictionServiceStub(channel).Predict(_ask(model_id, request_id="x" * 500))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_batches_hold_errors_in_place(channel: grpc.Channel, model_id: str) -> None:
    candidates = [_ask(model_id, batch).candidate for batch in (1, -2, 3)]
    candidates.append(_ask("sha256:" + "0" * 64).candidate)
    response = PredictionServiceStub(channel).BatchPredict(
        pb.BatchPredictRequest(candidates=candidates, request_id="b")
    )
    assert response.request_id == "b"
    kinds = [result.WhichOneof("outcome") for result in response.results]
    assert kinds == ["prediction", "error", "prediction", "error"]
    assert [response.results[i].error.code for i in (1, 3)] == [code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND]


def test_streams_answer_in_order_and_are_limited(predictor: Moody) -> None:
    with (
        build_server(predictor, _settings(threads=2)) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        model_id = GraphServiceStub(channel).UploadGraph(_chunks(MODEL)).graph.model_id
        stub = PredictionServiceStub(channel)
        gate = threading.Event()

        def questions() -> Iterator[pb.StreamPredictRequest]:
            for batch in (2, -1, 5):
                yield pb.StreamPredictRequest(
                    candidate=_ask(model_id, batch).candidate, request_id=str(batch)
                )
            gate.wait(10)

        answers = stub.StreamPredict(questions())
        got = [next(answers) for _ in range(3)]
        assert [answer.request_id for answer in got] == ["2", "-1", "5"]
        assert [answer.result.WhichOneof("outcome") for answer in got] == [
            "prediction",
            "error",
            "prediction",
        ]
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.StreamPredict(iter(())))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert _info(caught.value).reason == "OVERLOADED"
        gate.set()
        assert list(answers) == []
        assert list(stub.StreamPredict(iter(()))) == []


def test_uploads_are_checked_and_limited(predictor: Moody) -> None:
    with (
        build_server(predictor, _settings(max_graph_bytes=5000)) as running,
        grpc.insecure_channel(running.address) as channel,
    ):
        stub = GraphServiceStub(channel)
        for data in (b"", b"no onnx at all", b"x" * 6000):
            with pytest.raises(grpc.RpcError) as caught:
                stub.UploadGraph(_chunks(data))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert _info(caught.value).reason == "GRAPH_INVALID"


def test_graphs_can_be_described_and_listed(channel: grpc.Channel, model_id: str) -> None:
    stub = GraphServiceStub(channel)
    other = stub.UploadGraph(_chunks(perceptron(128).SerializeToString())).graph.model_id
    found = stub.GetGraph(graph_pb.GetGraphRequest(model_id=model_id)).graph
    assert found.model_id == model_id
    assert 0 < found.size_bytes < len(MODEL)
    first = stub.ListGraphs(graph_pb.ListGraphsRequest(page_size=1))
    rest = stub.ListGraphs(graph_pb.ListGraphsRequest(page_size=1, page_token=first.next_page_token))
    assert [graph.model_id for graph in (*first.graphs, *rest.graphs)] == sorted([model_id, other])
    assert rest.next_page_token == ""
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetGraph(graph_pb.GetGraphRequest(model_id="../../etc/passwd"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_catalogue(channel: grpc.Channel, model_id: str, predictor: Moody) -> None:
    stub = CatalogServiceStub(channel)
    seen: list[str] = []
    token = ""
    while True:
        response = stub.ListDevices(catalog_pb.ListDevicesRequest(page_size=50, page_token=token))
        seen += [device.id for device in response.devices]
        token = response.next_page_token
        if not token:
            break
    assert "a100-pcie-40gb" in seen
    assert seen == sorted(set(seen))
    bundles = stub.ListBundles(catalog_pb.ListBundlesRequest()).bundles
    assert [bundle.id for bundle in bundles] == [predictor.bundle_id]
    coverage = stub.GetCoverage(catalog_pb.GetCoverageRequest(candidate=_ask(model_id).candidate))
    assert coverage.coverage.analytic == 1.0
    assert sum(op.share_fraction for op in coverage.ops) == pytest.approx(1.0)
    assert {op.source for op in coverage.ops} == {"analytic"}


def test_health_and_reflection(server: PerfcastServer, channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", *SERVICES):
        status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert status == health_pb2.HealthCheckResponse.SERVING
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([request]))
    assert set(SERVICES) <= {service.name for service in answer.list_services_response.service}


def test_stop_reports_drains_and_lets_calls_finish(predictor: Moody) -> None:
    server = build_server(predictor, _settings(drain_s=0.3, grace_s=10.0))
    server.start()
    channel = grpc.insecure_channel(server.address)
    try:
        model_id = GraphServiceStub(channel).UploadGraph(_chunks(MODEL)).graph.model_id
        running = PredictionServiceStub(channel).Predict.future(_ask(model_id, 14))
        assert predictor.entered.wait(5)
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        time.sleep(0.1)
        health = health_pb2_grpc.HealthStub(channel)
        status = health.Check(health_pb2.HealthCheckRequest()).status
        assert status == health_pb2.HealthCheckResponse.NOT_SERVING
        predictor.release.set()
        assert running.result(10).prediction.schema
        stopper.join(10)
        assert not stopper.is_alive()
    finally:
        channel.close()


def test_a_taken_port_is_named(server: PerfcastServer) -> None:
    with pytest.raises(InvalidRequest, match=str(server.port)):
        build_server(FakePredictor(), _settings(port=server.port))


def test_tokens(predictor: Moody) -> None:
    with build_server(predictor, _settings(token="right")) as running:
        request = PredictionRequest(MODEL, "a100-pcie-40gb")
        with RemotePredictor(running.address, token="right") as client:
            assert client.predict(request).schema == "perfcast.prediction/1"
        for token in (None, "wrong", "right "):
            with RemotePredictor(running.address, token=token) as client, pytest.raises(Unauthenticated):
                client.predict(request)
        with grpc.insecure_channel(running.address) as channel:
            # Probes carry no token.
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            with pytest.raises(grpc.RpcError) as caught:
                list(PredictionServiceStub(channel).StreamPredict(iter(())))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_tls(predictor: Moody, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with openssl, which is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *make, *files], check=True, capture_output=True)
    settings = _settings(host="localhost", tls_certificate=str(certificate), tls_key=str(key))
    request = PredictionRequest(MODEL, "a100-pcie-40gb")
    with build_server(predictor, settings) as running:
        with RemotePredictor(running.address, root_certificate=certificate.read_bytes()) as client:
            assert client.predict(request).schema == "perfcast.prediction/1"
        with RemotePredictor(running.address, attempts=1) as client, pytest.raises(Unavailable):
            client.predict(request)


def test_access_log_is_one_json_line_a_call(
    server: PerfcastServer, channel: grpc.Channel, model_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    from predictor.serve.logs import JsonFormatter

    with caplog.at_level(logging.INFO, "perfcast.access"):
        PredictionServiceStub(channel).Predict(_ask(model_id, request_id="log-1"))
        with pytest.raises(grpc.RpcError):
            PredictionServiceStub(channel).Predict(_ask(model_id, -1))
        deadline = time.monotonic() + 5
        while len(caplog.records) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [(line["method"], line["code"], line["candidates"]) for line in lines] == [
        ("Predict", "OK", 1),
        ("Predict", "INVALID_ARGUMENT", 1),
    ]
    assert lines[0]["request_id"] == "log-1"
    assert lines[1]["reason"] == "REQUEST_INVALID"


class TestClient:
    """What RemotePredictor adds to the calls."""

    def test_uploads_again_when_the_server_has_forgotten(self, predictor: Moody) -> None:
        request = PredictionRequest(MODEL, "a100-pcie-40gb", batch=2)
        with build_server(predictor, _settings()) as first:
            port = first.port
            client = RemotePredictor(first.address)
            answer = client.predict(request)
        with client, build_server(Moody(), _settings(port=port)):
            assert client.predict(request) == answer
            assert client.predict_many([request, request]) == [answer, answer]

    def test_another_worker_finds_the_upload(self, tmp_path: Any) -> None:
        settings = _settings(graph_folder=str(tmp_path))
        with build_server(Moody(), settings) as one, build_server(Moody(), settings) as other:
            with RemotePredictor(one.address) as client:
                model_id = client.add_graph(MODEL)
            with RemotePredictor(other.address) as client:
                requests = [PredictionRequest(model_id, "a100-pcie-40gb", batch=batch) for batch in (1, 2)]
                assert all(isinstance(answer, Prediction) for answer in client.predict_many(requests))
                assert client.explain(requests[0]).rows

    def test_no_server(self) -> None:
        with RemotePredictor("127.0.0.1:1", timeout_s=5, attempts=2) as client:
            request = PredictionRequest(MODEL, "a100-pcie-40gb")
            for ask in (client.predict, client.explain, lambda one: client.predict_many([one])):
                with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
                    ask(request)

    def test_waits_for_a_server_that_comes_back(self, predictor: Moody) -> None:
        server = build_server(predictor, _settings())
        with RemotePredictor(server.address, timeout_s=20, attempts=20) as client:
            timer = threading.Timer(0.5, server.start)
            timer.start()
            try:
                assert client.predict(PredictionRequest(MODEL, "a100-pcie-40gb")).schema
            finally:
                timer.join()
                server.stop()

    def test_deadline(self, server: PerfcastServer, predictor: Moody) -> None:
        with RemotePredictor(server.address) as client:
            model_id = client.add_graph(MODEL)
        with RemotePredictor(server.address, timeout_s=0.3) as client:
            with pytest.raises(Unavailable, match=r"within 0\.3 s"):
                client.predict(PredictionRequest(model_id, "a100-pcie-40gb", batch=14))
            predictor.release.set()

    def test_a_bug_of_the_server_is_no_class_of_ours(self, server: PerfcastServer) -> None:
        with (
            RemotePredictor(server.address) as client,
            pytest.raises(PerfcastError, match="request id") as caught,
        ):
            client.predict(PredictionRequest(MODEL, "a100-pcie-40gb", batch=13))
        assert type(caught.value) is PerfcastError
        assert caught.value.exit_code == 1

    def test_many_threads_share_one(self, server: PerfcastServer) -> None:
        with RemotePredictor(server.address) as client:
            results: list[object] = []

            def ask() -> None:
                for batch in range(1, 9):
                    results.append(client.predict(PredictionRequest(MODEL, "a100-pcie-40gb", batch=batch)))

            threads = [threading.Thread(target=ask) for _ in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(results) == 48
            assert len({repr(result) for result in results}) == 8

    def test_close_is_not_the_end(self, server: PerfcastServer) -> None:
        client = RemotePredictor(server.address)
        request = PredictionRequest(MODEL, "a100-pcie-40gb")
        first = client.predict(request)
        client.close()
        client.close()
        assert client.predict(request) == first
        client.close()

    @pytest.mark.parametrize("bad", [{"timeout_s": 0}, {"timeout_s": -1.0}, {"attempts": 0}])
    def test_bad_arguments(self, bad: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            RemotePredictor("x:1", **bad)

    def test_bytes_that_are_no_model_never_leave(self) -> None:
        with RemotePredictor("127.0.0.1:1") as client, pytest.raises(InvalidGraph):
            client.predict(PredictionRequest(b"no model", "a100-pcie-40gb"))

    def test_overload_is_its_own_class(self, predictor: Moody) -> None:
        settings = _settings(max_concurrent_rpcs=1, threads=2)
        with (
            build_server(predictor, settings) as running,
            RemotePredictor(running.address, attempts=1) as client,
        ):
            model_id = client.add_graph(MODEL)
            asked = PredictionRequest(model_id, "a100-pcie-40gb", batch=14)
            slow = threading.Thread(target=client.predict, args=(asked,))
            slow.start()
            assert predictor.entered.wait(5)
            with pytest.raises(Overloaded):
                client.predict(PredictionRequest(model_id, "a100-pcie-40gb", batch=1))
            predictor.release.set()
            slow.join()


def test_a_caller_that_leaves_its_stream_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with build_server(FakePredictor(), _settings(threads=2)) as running, caplog.at_level(logging.INFO):
        with grpc.insecure_channel(running.address) as channel:
            gate = threading.Event()

            def questions() -> Iterator[pb.StreamPredictRequest]:
                yield pb.StreamPredictRequest(request_id="left")
                gate.wait(10)

            answers = PredictionServiceStub(channel).StreamPredict(questions())
            next(answers)
            answers.cancel()
            gate.set()
        deadline_s = time.monotonic() + 5
        while time.monotonic() < deadline_s and not any(
            record.message == "call" for record in caplog.records
        ):
            time.sleep(0.01)
    codes = [record.__dict__["fields"]["code"] for record in caplog.records if record.message == "call"]
    # gRPC may end the requests before it knows that the call was cancelled.
    assert codes in (["CANCELLED"], ["OK"])
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
