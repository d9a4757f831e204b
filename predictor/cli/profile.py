"""`perfcast profile`: operators and networks timed on this machine, as rows that `calibrate` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def profile(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GRAPH]...", help="Architecture[--option=N] or ONNX file; none: a standard set."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="CSV, or Parquet in the corpus's schema.")
    ] = Path("rows.csv"),
    batch: Annotated[int, typer.Option("--batch", "-b", metavar="N", min=1)] = 1,
    mode: Annotated[str, typer.Option("--mode", metavar="infer|train")] = "infer",
    precision: Annotated[str, typer.Option("--precision", metavar="fp32|tf32|fp16|bf16|amp|fp64")] = "fp32",
    optimizer: Annotated[str, typer.Option("--optimizer", metavar="none|sgd|momentum|adam|adamw")] = "sgd",
    on: Annotated[
        str, typer.Option("--on", metavar="cpu|cuda[:N]", help="Where to run; default: CUDA if present.")
    ] = "",
    device: Annotated[
        str,
        typer.Option("--device", "-d", metavar="NAME", help="What the rows call it, e.g. a catalogue id."),
    ] = "",
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", min=1, help="Of the CPU.")] = None,
    clock: Annotated[
        str, typer.Option("--clock", metavar="wall|cpu", help="cpu: processor time, for busy machines.")
    ] = "wall",
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.01, help="Least time spent on each case.")
    ] = 1.0,
) -> None:
    """Time operators and networks on this machine: warm-up, medians, clock and power beside them."""
    from predictor.cli.console import progress_bar, warn
    from predictor.errors import InvalidRequest
    from predictor.models.profiling.measure import Effort
    from predictor.models.profiling.profile import profile as run
    from predictor.models.profiling.rows import write_jobs, write_measurements
    from predictor.models.profiling.suite import STANDARD, Case
    from predictor.types import Mode, Optimizer, Precision

    if clock not in ("wall", "cpu"):
        raise InvalidRequest(f"clock is {clock!r}; expected wall or cpu", field="clock")
    how = (batch, Mode.parse(mode), Precision.parse(precision), Optimizer.parse(optimizer))
    cases = [Case(graph, *how) for graph in graphs or ()] or list(STANDARD)
    effort = Effort(at_least_s=seconds, at_most_s=max(10.0, 3 * seconds), clock=clock)
    with progress_bar() as progress:
        jobs, failed = run(cases, device=on, threads=threads, effort=effort, label=device, progress=progress)
    for message in failed:
        warn(message)
    if not jobs:
        raise InvalidRequest("nothing could be timed; see the warnings above", field="graph")
    unsteady = [job.graph for job in jobs if job.high_s > 1.5 * job.low_s]
    if unsteady:
        warn(
            f"{len(unsteady)} of {len(jobs)} jobs vary by half between repeats, first {unsteady[0]}: "
            "the machine is busy or changes its clock"
        )
    (write_measurements if out.suffix == ".parquet" else write_jobs)(out, jobs)
    typer.echo(f"{out}: {len(jobs)} rows", err=True)
