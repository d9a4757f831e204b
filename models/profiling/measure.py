"""Times iterations of a graph on the local device: warm-up, repeats, median, clock and power beside it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from predictor.errors import InvalidRequest
from predictor.features.graph import Graph
from predictor.models.profiling.runner import iteration
from predictor.types import Mode, Optimizer, Precision

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    At least `warm_up_s` and `warm_up` iterations first, then until `least` iterations and `at_least_s` are
    reached, or `at_most_s`. `clock` is `wall`, or `cpu` for the processor time of this process: on a busy
    machine that is what one thread would have taken alone.
    """

    warm_up: int = 3
    warm_up_s: float = 0.3
    least: int = 10
    at_least_s: float = 1.0
    at_most_s: float = 10.0
    clock: str = "wall"


USUAL_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one iteration over the repeats; clock in MHz and power in W, 0 where nothing tells."""

    median_s: float
    low_s: float
    high_s: float
    repeats: int
    clock_mhz: float = 0.0
    power_w: float = 0.0


def time_graph(
    graph: Graph,
    *,
    mode: Mode,
    precision: Precision,
    optimizer: Optimizer,
    device: str,
    effort: Effort = USUAL_EFFORT,
) -> Timing:
    """Median, 10th and 90th percentile of single iterations, each waited for.

    Raises what `iteration` raises, and InvalidRequest when the job does not fit into memory.
    """
    import torch

    try:
        run = iteration(graph, mode=mode, precision=precision, optimizer=optimizer, device=device)
        return _timed(_waiting(run, device, torch), device, effort)
    except torch.OutOfMemoryError:
        raise InvalidRequest(
            f"{graph.name or 'the graph'} does not fit into the memory of {device}; lower the batch",
            field="batch",
        ) from None


def _waiting(run: Callable[[], None], device: str, torch: Any) -> Callable[[], None]:
    if not device.startswith("cuda"):
        return run

    def waited() -> None:
        run()
        torch.cuda.synchronize()

    return waited


def _timed(run: Callable[[], None], device: str, effort: Effort) -> Timing:
    begin, done = perf_counter(), 0
    while done < effort.warm_up or perf_counter() - begin < effort.warm_up_s:
        run()
        done += 1
        if perf_counter() - begin > effort.at_most_s:
            break
    seconds: list[float] = []
    now = process_time if effort.clock == "cpu" else perf_counter
    begin = perf_counter()
    while len(seconds) < effort.least or perf_counter() - begin < effort.at_least_s:
        start = now()
        run()
        seconds.append(now() - start)
        if perf_counter() - begin > effort.at_most_s:
            break
    clock_mhz, power_w = _state(device)
    low, median, high = np.quantile(seconds, (0.1, 0.5, 0.9))
    return Timing(float(median), float(low), float(high), len(seconds), clock_mhz, power_w)


def _state(device: str) -> tuple[float, float]:
    """Clock (MHz) and power (W) right after the last repeat; 0 where nothing tells."""
    if device.startswith("cuda"):
        place = device.partition(":")[2] or "0"
        try:
            command = [*_NVIDIA_SMI, f"--id={place}"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
            clock, power = (float(part) for part in found.stdout.split(","))
        except (OSError, ValueError, subprocess.SubprocessError):
            return 0.0, 0.0
        return clock, power
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0, 0.0
    clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return (max(clocks), 0.0) if clocks else (0.0, 0.0)
