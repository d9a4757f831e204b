"""Runs cases on the local device and returns them as timed jobs."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from predictor.errors import InvalidRequest, PerfcastError
from predictor.models.corpus.build import Progress, silent
from predictor.models.profiling.measure import USUAL_EFFORT, Effort, time_graph
from predictor.models.profiling.rows import TimedJob, job_graph
from predictor.models.profiling.suite import Case
from predictor.types import Mode, Optimizer, Runtime


def profile(
    cases: Sequence[Case],
    *,
    device: str = "",
    threads: int | None = None,
    effort: Effort = USUAL_EFFORT,
    label: str = "",
    progress: Progress = silent,
) -> tuple[tuple[TimedJob, ...], tuple[str, ...]]:
    """Timed jobs, and a sentence for each case that could not be run.

    Args:
        device: torch's name, `cpu` or `cuda:0`; empty takes CUDA where it is present.
        threads: of the CPU; None is torch's choice.
        label: written as the rows' device; empty writes what the machine says it is.

    Raises InvalidRequest: no such device, or processor time of more than one thread.
    """
    import torch

    place = _place(torch, device)
    if effort.clock == "cpu" and (place != "cpu" or threads != 1):
        raise InvalidRequest(
            "processor time means something for one thread on a CPU; add --threads 1", field="clock"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    name = label or _name(torch, place)
    jobs: list[TimedJob] = []
    failed: list[str] = []
    for done, case in enumerate(cases):
        progress("profile", done, len(cases))
        try:
            jobs.append(_job(torch, case, place, name, effort))
        except PerfcastError as error:
            failed.append(f"{case.graph}: {error.message}")
    progress("profile", len(cases), len(cases))
    return tuple(jobs), tuple(failed)


def _job(torch: Any, case: Case, place: str, name: str, effort: Effort) -> TimedJob:
    optimizer = case.optimizer if case.mode is Mode.TRAIN else Optimizer.NONE
    timing = time_graph(
        job_graph(case.graph, case.batch, case.mode),
        mode=case.mode,
        precision=case.precision,
        optimizer=optimizer,
        device=place,
        effort=effort,
    )
    return TimedJob(
        graph=case.graph,
        time_s=timing.median_s,
        batch=case.batch,
        mode=case.mode,
        precision=case.precision,
        optimizer=optimizer,
        runtime=Runtime.EAGER,
        device=name,
        low_s=timing.low_s,
        high_s=timing.high_s,
        repeats=timing.repeats,
        clock_mhz=timing.clock_mhz,
        power_w=timing.power_w,
        threads=torch.get_num_threads() if place == "cpu" else 0,
        framework="torch",
        framework_version=torch.__version__.partition("+")[0],
        clock=effort.clock,
    )


def _place(torch: Any, device: str) -> str:
    if not device:
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidRequest(f"device {device}: torch sees no CUDA device here; try --on cpu", field="device")
    if not device.startswith(("cpu", "cuda")):
        raise InvalidRequest(f"device {device!r}; expected cpu, cuda or cuda:N", field="device")
    return "cuda:0" if device == "cuda" else device


def _name(torch: Any, place: str) -> str:
    if place.startswith("cuda"):
        return str(torch.cuda.get_device_name(place))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model} ({os.cpu_count()} threads)"
