"""`perfcast calibrate`: a few measured jobs of a device into an overlay bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from predictor.cli import options as opt
from predictor.cli.options import Output

if TYPE_CHECKING:
    from predictor.api.calibrate import CalibrationResult

SCHEMA = "perfcast.calibration/1"


def calibrate(
    rows: Annotated[Path, typer.Argument(metavar="ROWS.csv", help="Measured jobs: graph, batch, time_s ...")],
    device: Annotated[str, typer.Option("--device", "-d", metavar="NAME|FILE", help="The measured device.")],
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", metavar="NAME|FILE", help="What jobs of several devices ran on."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The overlay; `predict --bundle DIR` takes it.")
    ] = Path("calibrated"),
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="DIR", help="What to calibrate; default: what ships.")
    ] = None,
    output: opt.OutputOption = Output.TABLE,
) -> None:
    """Move and narrow the answers for one device, and a cluster's links, by measured jobs.

    The rows' columns are those that `perfcast profile` writes; graph and time_s are enough. Jobs of several
    devices name their plan: dp=8 tp=2.
    """
    from predictor.api.calibrate import calibrate as run
    from predictor.cli.console import data_console
    from predictor.cli.output import write_json
    from predictor.models.profiling.rows import read_jobs

    where = None if cluster is None else opt.read_cluster(cluster)
    result = run(read_jobs(rows), opt.read_device(device), cluster=where, bundle=bundle, out=out)
    _warn_of_strange_times(result)
    if output is Output.JSON:
        write_json(_to_json(result))
        return
    from predictor.cli.render_calibration import calibration_view

    data_console().print(calibration_view(result))
    typer.echo(f"{out}: {result.bundle}", err=True)


_STRANGE = 10.0
"""No device that was measured is this far from what was said before: a slip of unit, or another job."""


def _warn_of_strange_times(result: CalibrationResult) -> None:
    from predictor.cli.console import warn
    from predictor.units import format_time

    for item in result.jobs:
        job, ratio = item.job, item.job.time_s / item.before_s
        if not 1 / _STRANGE < ratio < _STRANGE:
            line = f"line {job.line}: " if job.line else ""
            warn(
                f"{line}{job.graph} took {format_time(job.time_s)} and was predicted to take "
                f"{format_time(item.before_s)}; is its time in seconds, and its graph the one that ran?"
            )


def _to_json(result: CalibrationResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "device": result.device,
        "bundle": result.bundle,
        "factors": result.factors,
        "jobs": [
            {
                "graph": item.job.graph,
                "line": item.job.line,
                "batch": item.job.batch,
                "plan": item.job.plan,
                "mode": item.job.mode.value,
                "precision": item.job.precision.value,
                "measured_s": item.job.time_s,
                "before_s": item.before_s,
                "after_s": item.after_s,
                "left_out_s": item.left_out_s,
            }
            for item in result.jobs
        ],
    }
