"""A server around one predictor: services, health, reflection, limits, and a stop that lets calls finish.

Threads, not asyncio: cheaper per call here, and a slow answer never stalls a health check.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from types import FrameType

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from predictor.errors import InvalidRequest
from predictor.protocol import Forecaster
from predictor.serve.answers import Answers
from predictor.serve.catalog_servicer import CatalogServicer
from predictor.serve.fit_servicer import FitServicer
from predictor.serve.graph_servicer import GraphServicer
from predictor.serve.graph_store import GraphStore
from predictor.serve.interceptors import CallInterceptor, TokenInterceptor
from predictor.serve.logs import EVENTS, configure_logging
from predictor.serve.plan_servicer import PlanServicer
from predictor.serve.prediction_servicer import PredictionServicer, StreamSlots
from predictor.serve.settings import ServerSettings
from predictor.v1 import (
    catalog_service_pb2,
    catalog_service_pb2_grpc,
    fit_service_pb2,
    fit_service_pb2_grpc,
    graph_service_pb2,
    graph_service_pb2_grpc,
    plan_service_pb2,
    plan_service_pb2_grpc,
    prediction_service_pb2,
    prediction_service_pb2_grpc,
)

SERVICES = (
    prediction_service_pb2.DESCRIPTOR.services_by_name["PredictionService"].full_name,
    graph_service_pb2.DESCRIPTOR.services_by_name["GraphService"].full_name,
    catalog_service_pb2.DESCRIPTOR.services_by_name["CatalogService"].full_name,
    plan_service_pb2.DESCRIPTOR.services_by_name["PlanService"].full_name,
    fit_service_pb2.DESCRIPTOR.services_by_name["FitService"].full_name,
)


class PerfcastServer:
    """A started or startable server. Use it as a context manager, or call `start` and `stop`."""

    def __init__(self, server: grpc.Server, settings: ServerSettings, port: int, cleanup: ExitStack) -> None:
        self._server = server
        self._settings = settings
        self._cleanup = cleanup
        self._health = health.HealthServicer()
        self.port = port
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return f"{self._settings.host}:{self.port}"

    def start(self) -> None:
        """Begins to answer."""
        self._server.start()
        for service in ("", *SERVICES):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Reports "not serving", waits `drain_s`, takes no more calls, gives running ones `grace_s`."""
        self._health.enter_graceful_shutdown()
        time.sleep(self._settings.drain_s)
        self._server.stop(self._settings.grace_s).wait()
        self._cleanup.close()

    def __enter__(self) -> PerfcastServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def build_server(predictor: Forecaster, settings: ServerSettings) -> PerfcastServer:
    """A server that has its port but does not answer yet. Raises InvalidRequest when it cannot listen."""
    cleanup = ExitStack()
    try:
        folder = settings.graph_folder or cleanup.enter_context(
            tempfile.TemporaryDirectory(prefix="perfcast-")
        )
        store = GraphStore(Path(folder), settings.graph_store_bytes)
        answers = Answers(predictor, store)
        pool = cleanup.enter_context(ThreadPoolExecutor(settings.threads, thread_name_prefix="perfcast"))
        tokens = [TokenInterceptor(settings.token)] if settings.token else []
        server = grpc.server(
            pool,
            interceptors=[CallInterceptor(), *tokens],
            options=_options(settings),
            maximum_concurrent_rpcs=settings.max_concurrent_rpcs,
        )
        slots = StreamSlots(max(1, settings.threads // 2))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            PredictionServicer(answers, slots), server
        )
        graph_service_pb2_grpc.add_GraphServiceServicer_to_server(
            GraphServicer(answers, store, slots, settings.max_graph_bytes), server
        )
        catalog_service_pb2_grpc.add_CatalogServiceServicer_to_server(CatalogServicer(answers), server)
        plan_service_pb2_grpc.add_PlanServiceServicer_to_server(PlanServicer(answers, slots), server)
        fit_service_pb2_grpc.add_FitServiceServicer_to_server(FitServicer(answers, slots), server)
        if settings.reflection:
            names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        return PerfcastServer(server, settings, _listen(server, settings), cleanup)
    except BaseException:
        cleanup.close()
        raise


def run(settings: ServerSettings, on_ready: Callable[[str], None] | None = None) -> None:
    """Loads the bundle and serves until SIGTERM or SIGINT. `on_ready` gets the address."""
    from predictor.api import Predictor

    configure_logging(settings.access_log)
    stop = Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    predictor = Predictor.load(settings.bundle)
    with build_server(predictor, settings) as server:
        EVENTS.info("serving", extra={"fields": {"address": server.address, "bundle": predictor.bundle_id}})
        if on_ready is not None:
            on_ready(server.address)
        stop.wait()
        EVENTS.info("draining")
    EVENTS.info("stopped")


def main(settings: ServerSettings, on_ready: Callable[[str], None] | None = None) -> None:
    """Serves with as many processes as the settings say."""
    if settings.workers == 1:
        run(settings, on_ready)
        return
    from predictor.serve.workers import run_workers

    run_workers(settings, on_ready)


def _listen(server: grpc.Server, settings: ServerSettings) -> int:
    address = f"{settings.host}:{settings.port}"
    tls = settings.read_tls()
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
    except RuntimeError:
        raise InvalidRequest(
            f"cannot listen on {address}: the port is taken or not allowed; choose another one with --port",
            field="port",
        ) from None


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Off with one worker: a second server on the port must fail, not share it in silence.
        ("grpc.so_reuseport", int(settings.workers > 1)),
        ("grpc.max_connection_age_ms", int(settings.max_connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(settings.grace_s * 1000)),
    ]
