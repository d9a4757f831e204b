"""Closed-loop load on a real server: calls/s, candidates/s, CPU per call, resident memory.

    python benchmarks/service.py [--seconds 3] [--rounds 5] [--write]

The loader is one Python process on the same cores as the server: a rate is what these cores give to both ends
together and falls with whatever else they do; the CPU columns do not. Questions are asked once before they
count, except in the rows of new ones. A figure is the median of rounds that alternate between the cases.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import grpc
from record import ROOT, cpu_s, percentile, process_status, table, write

from predictor.client import RemotePredictor
from predictor.v1 import candidate_pb2
from predictor.v1 import prediction_service_pb2 as pb
from predictor.v1.prediction_service_pb2_grpc import PredictionServiceStub

MODEL = ROOT / "examples" / "gpt2.onnx"
IN_FLIGHT = 32
BATCH = 100


@dataclass(frozen=True, slots=True)
class Round:
    """One measured interval."""

    calls: int
    wall_s: float
    server_s: float
    client_s: float
    latencies_s: tuple[float, ...] = ()


@contextmanager
def running_server(command: list[str]) -> Iterator[tuple[str, int]]:
    """(address, pid) of `perfcast serve` on a free port."""
    process = subprocess.Popen(
        [*command, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if line.startswith("perfcast serves on "):
                break
        else:
            raise SystemExit("the server did not start")
        address = line.rsplit(" ", 1)[1].strip()
        # Somebody has to read the access log.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(20)
    drain.wait(5)


def candidate(model_id: str, index: int) -> candidate_pb2.Candidate:
    """The question number `index`: 64 batches times as many power caps as needed."""
    message = candidate_pb2.Candidate(device_id="a100-pcie-40gb", batch=1 + index % 64)
    message.graph.model_id = model_id
    message.power_limit_w = 150.0 + index // 64
    return message


def measure(pid: int, seconds: float, drive: Callable[[float], tuple[int, list[float]]]) -> Round:
    """Runs `drive` until the deadline it gets, and reads both ends' CPU time."""
    server_s, client_s, start_s = cpu_s(pid), time.process_time(), time.perf_counter()
    calls, latencies_s = drive(start_s + seconds)
    wall_s = time.perf_counter() - start_s
    return Round(calls, wall_s, cpu_s(pid) - server_s, time.process_time() - client_s, tuple(latencies_s))


def one_caller(method: Any, messages: Iterator[Any]) -> Callable[[float], tuple[int, list[float]]]:
    """One call after the other."""

    def drive(deadline_s: float) -> tuple[int, list[float]]:
        latencies_s = []
        while (begin_s := time.perf_counter()) < deadline_s:
            method(next(messages))
            latencies_s.append(time.perf_counter() - begin_s)
        return len(latencies_s), latencies_s

    return drive


def many_in_flight(
    method: Any, messages: Iterator[Any], width: int
) -> Callable[[float], tuple[int, list[float]]]:
    """`width` calls open at any time."""

    def drive(deadline_s: float) -> tuple[int, list[float]]:
        waiting = deque(method.future(next(messages)) for _ in range(width))
        calls = 0
        while waiting:
            waiting.popleft().result()
            calls += 1
            if time.perf_counter() < deadline_s:
                waiting.append(method.future(next(messages)))
        return calls, []

    return drive


def main() -> int:
    """Measures and prints; writes the record on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/service.md")
    parser.add_argument("--perfcast", nargs="+", default=[sys.executable, "-m", "predictor.cli.main"])
    options = parser.parse_args()
    with running_server(options.perfcast) as (address, pid), RemotePredictor(address) as client:
        idle = process_status(pid)
        model_id = client.add_graph(MODEL.read_bytes())
        with grpc.insecure_channel(address) as channel:
            rounds = _rounds(PredictionServiceStub(channel), model_id, pid, options.seconds, options.rounds)
        loaded = process_status(pid)
        bundle = client.bundle_id
    body = _report(rounds, idle, loaded)
    print(body)
    if options.write:
        command = (
            f"python benchmarks/service.py --seconds {options.seconds:g} --rounds {options.rounds} --write"
        )
        print(f"wrote {write('service', 'Service: throughput, CPU and memory', command, bundle, body)}")
    return 0


def _rounds(
    stub: PredictionServiceStub, model_id: str, pid: int, seconds: float, count: int
) -> dict[str, list[Round]]:
    known = [candidate(model_id, index) for index in range(256)]
    singles = [pb.PredictRequest(candidate=item) for item in known]
    batches = [pb.BatchPredictRequest(candidates=known[start : start + BATCH]) for start in range(0, 150, 10)]
    for message in singles:
        stub.Predict(message)
    fresh = iter(range(1000, 10**9))
    new_singles = (pb.PredictRequest(candidate=candidate(model_id, index)) for index in fresh)
    new_batches = (
        pb.BatchPredictRequest(candidates=[candidate(model_id, next(fresh)) for _ in range(BATCH)])
        for _ in iter(int, 1)
    )
    cases = {
        "one caller": one_caller(stub.Predict, _cycle(singles)),
        f"{IN_FLIGHT} in flight": many_in_flight(stub.Predict, _cycle(singles), IN_FLIGHT),
        f"batches of {BATCH}": many_in_flight(stub.BatchPredict, _cycle(batches), 4),
        "new questions, one caller": one_caller(stub.Predict, new_singles),
        f"new questions, batches of {BATCH}": many_in_flight(stub.BatchPredict, new_batches, 2),
    }
    found: dict[str, list[Round]] = {name: [] for name in cases}
    for _ in range(count):
        for name, drive in cases.items():
            found[name].append(measure(pid, seconds, drive))
    return found


def _cycle(items: list[Any]) -> Iterator[Any]:
    while True:
        yield from items


def _report(rounds: dict[str, list[Round]], idle: dict[str, int], loaded: dict[str, int]) -> str:
    rows = []
    for name, measured in rounds.items():
        per_call = BATCH if "batches" in name else 1
        latencies_s = [latency for one in measured for latency in one.latencies_s]
        counted = [(one.calls * per_call, one) for one in measured]
        server_us = median(one.server_s / count * 1e6 for count, one in counted)
        client_us = median(one.client_s / count * 1e6 for count, one in counted)
        p50, p99 = (percentile(latencies_s, at) * 1e3 for at in (0.5, 0.99)) if latencies_s else (None, None)
        rows.append(
            (
                name,
                f"{median(count / one.wall_s for count, one in counted):,.0f}",
                f"{server_us:,.1f}",
                f"{client_us:,.1f}",
                f"{min(1e6 / max(server_us, client_us), 2e6 / (server_us + client_us)):,.0f}",
                f"{p50:.2f} / {p99:.2f}" if p50 is not None else "",
            )
        )
    header = ("case", "measured/s", "server CPU µs", "client CPU µs", "per free core pair/s", "p50 / p99 ms")
    mib = 2**20
    return (
        f"Model: {MODEL.name}, inference on a100-pcie-40gb. Server and loader share the cores. All "
        "figures are per candidate. A free core pair is computed from the CPU times: both ends together "
        "have 2 s a second, neither process more than 1 s. Budgets: 2,500 single calls, 100,000 in "
        "batches."
        "\n\n"
        f"{table(header, rows)}\n\n"
        f"Server memory: {idle['resident_bytes'] / mib:.0f} MiB resident when idle, "
        f"{loaded['resident_bytes'] / mib:.0f} MiB after the load, "
        f"peak {loaded['peak_resident_bytes'] / mib:.0f} MiB (budget 500)."
    )


if __name__ == "__main__":
    raise SystemExit(main())
