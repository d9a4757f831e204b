"""Calibrations as tables for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli.fitted_table import FittedTable
from predictor.units import format_time

if TYPE_CHECKING:
    from predictor.api.calibrate import CalibrationResult

_UNMOVED = 0.005


def calibration_view(result: CalibrationResult) -> RenderableType:
    """Every job before and after, and the factors."""
    table = FittedTable(
        "graph", "mode", "precision??", ">batch?", ">measured", ">before", ">after", ">left out?"
    )
    for item in result.jobs:
        job = item.job
        table.add_row(
            f"{Path(job.graph).name} {job.plan}".rstrip(),
            job.mode.value,
            job.precision.value,
            str(job.batch),
            format_time(job.time_s),
            _error(item.before_s, job.time_s),
            _error(item.after_s, job.time_s),
            "" if item.left_out_s is None else _error(item.left_out_s, job.time_s),
        )
    moved = {name: factor for name, factor in result.factors.items() if abs(factor - 1) > _UNMOVED}
    factors = ", ".join(f"{name} x{factor:.2f}" for name, factor in moved.items()) or "all x1.00"
    errors = [
        np.mean([abs(getattr(item, name) / item.job.time_s - 1) for item in result.jobs])
        for name in ("before_s", "after_s")
    ]
    return Group(
        table,
        Text(),
        Text(f"{result.device}: mean error {errors[0]:.1%} before, {errors[1]:.1%} after"),
        Text(f"factors: {factors}", "dim"),
        Text("left out: predicted from the other jobs alone", "dim"),
    )


def _error(predicted_s: float, measured_s: float) -> str:
    return f"{predicted_s / measured_s - 1:+.0%}"
