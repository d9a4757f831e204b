"""N server processes on one port (SO_REUSEPORT), spawned, since gRPC and fork do not mix.

The kernel spreads connections, not calls; `max_connection_age_s` renews them so that clients spread.
A worker that dies is replaced; workers that keep dying end the server.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from threading import Thread
from types import FrameType

from predictor.errors import InvalidRequest, Unavailable
from predictor.serve.logs import EVENTS, configure_logging
from predictor.serve.settings import ServerSettings

_RESTARTS = 5


def run_workers(settings: ServerSettings, on_ready: Callable[[str], None] | None = None) -> None:
    """Runs `settings.workers` processes until SIGTERM or SIGINT. Raises Unavailable when they keep dying."""
    configure_logging(settings.access_log)
    with _reserved_port(settings) as reserved, tempfile.TemporaryDirectory(prefix="perfcast-") as folder:
        port = reserved.getsockname()[1]
        settings = replace(settings, port=port, graph_folder=settings.graph_folder or folder)
        context = multiprocessing.get_context("spawn")
        stopping = False

        def request_stop(number: int, frame: FrameType | None) -> None:
            nonlocal stopping
            stopping = True
            for process in processes:
                process.terminate()

        def spawn() -> BaseProcess:
            process = context.Process(target=_work, args=(settings,), daemon=False)
            process.start()
            return process

        processes: list[BaseProcess] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, request_stop)
        processes.extend(spawn() for _ in range(settings.workers))
        if on_ready is not None:
            on_ready(f"{settings.host}:{port}")
        _watch(processes, spawn, lambda: stopping)


def _watch(
    processes: list[BaseProcess], spawn: Callable[[], BaseProcess], is_stopping: Callable[[], bool]
) -> None:
    restarts = 0
    while processes:
        wait([process.sentinel for process in processes])
        for process in [process for process in processes if not process.is_alive()]:
            process.join()
            processes.remove(process)
            if is_stopping():
                continue
            EVENTS.error("worker died", extra={"fields": {"pid": process.pid, "exit_code": process.exitcode}})
            restarts += 1
            if restarts > _RESTARTS:
                for other in processes:
                    other.terminate()
                raise Unavailable(f"worker processes died {restarts} times; the log says why")
            processes.append(spawn())


def _work(settings: ServerSettings) -> None:
    from predictor.serve.app import run

    Thread(target=_follow_parent, daemon=True, name="perfcast-parent").start()
    run(settings)


def _follow_parent() -> None:
    """Stops this worker when the process that watches it is gone, killed without a chance to say so."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _reserved_port(settings: ServerSettings) -> socket.socket:
    """A bound socket that keeps the port for us and never listens."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    host = settings.host.strip("[]")
    try:
        with socket.socket(family) as probe:
            # Without SO_REUSEPORT: fails when any other server has the port.
            probe.bind((host, settings.port))
        reserved = socket.socket(family)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, settings.port))
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another with --port",
            field="port",
        ) from None
    return reserved
