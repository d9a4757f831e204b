"""Sweeps over caps and batches as a table for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.api.power_sweep import SweepPoint
from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable

SWEEP_SCHEMA = "perfcast.sweep/1"


def sweep_view(points: Sequence[SweepPoint], name: str) -> RenderableType:
    """One line per point, the Pareto front marked."""
    table = FittedTable(
        "<batch",
        ">cap",
        ">iteration",
        ">90 % interval?",
        ">mean power",
        ">samples/s??",
        ">energy/sample",
        "",
    )
    for point in points:
        mark = Text("◀ front", "bold green") if point.on_front else Text("")
        if not point.fits:
            mark = Text("does not fit", "bold red")
        table.add_row(
            str(point.batch) if point.batch else "file's",
            f"{point.power_limit_w:g} W",
            Text(txt.seconds(point.iteration_time_s.value), "bold cyan"),
            Text(txt.span(point.iteration_time_s, txt.seconds), "dim"),
            txt.watts(point.average_power_w.value),
            txt.number(1 / point.time_per_sample_s),
            txt.joules(point.energy_per_sample_j),
            mark,
        )
    anchored = any(point.anchored for point in points)
    source = "moved to the measured runs" if anchored else "predicted, no measured run"
    front = "front: nothing else is faster and needs less"
    note = f"energy of the boards (scope device) per sample · {source} · {front}"
    return Group(Text(name, "bold"), Text(), table, Text(), Text(note, "dim"))


def sweep_to_json(points: Sequence[SweepPoint]) -> dict[str, Any]:
    """The points in order; energy is per iteration, scope device."""
    return {
        "schema": SWEEP_SCHEMA,
        "energy_scope": "device",
        "points": [
            {
                **asdict(point),
                "time_per_sample_s": point.time_per_sample_s,
                "energy_per_sample_j": point.energy_per_sample_j,
            }
            for point in points
        ],
    }
