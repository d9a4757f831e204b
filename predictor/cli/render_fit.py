"""Fits as tables for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.cli.render import job_words
from predictor.fits import Change, FitAnswer, FitPoint
from predictor.parallel.plan_text import format_plan
from predictor.request import PredictionRequest

FIT_SCHEMA = "perfcast.fit/1"


def fit_view(
    request: PredictionRequest, found: FitAnswer, changes: Sequence[Change], model: str
) -> RenderableType:
    """The last size that fits, the next, the one asked for, and what to change."""
    heading = Text.assemble(
        (model, "bold"),
        f" on {found.device}   {txt.size(found.capacity_bytes)} usable",
        f" · wanted {txt.percent(found.wanted)} sure",
    )
    table = FittedTable("", f">{found.axis}", ">peak", ">90 % interval?", ">fits with")
    for name, point in _points(found):
        table.add_row(
            name,
            f"{point.value:,}",
            Text(txt.size(point.peak.value), "bold"),
            txt.span(point.peak, txt.size),
            txt.percent(point.probability),
        )
    job = Text(job_words(request, batch=request.batch), "dim")
    parts: list[RenderableType] = [heading, job, Text(""), Text(_sentence(found), "bold"), Text(""), table]
    if found.stopped:
        parts += [Text(""), Text(f"nothing larger: {found.stopped}", "dim")]
    if changes:
        asked = f"{found.axis} {found.asked.value:,}" if found.asked else "the job as asked"
        fits = any(change.fits for change in changes)
        title = (
            f"what makes {asked} fit, fastest first" if fits else f"nothing alone makes {asked} fit; nearest"
        )
        ways = FittedTable("change", ">time", ">peak", ">fits with")
        for change in changes:
            ways.add_row(
                change.what,
                f"x{txt.number(change.slowdown)}",
                txt.size(change.peak.value),
                txt.percent(change.probability),
            )
        parts += [Text(""), Text(title, "bold"), ways]
    return Group(*parts)


def _sentence(found: FitAnswer) -> str:
    if found.largest is None:
        return f"no {found.axis} fits: the smallest, {found.step}, needs more"
    more = " or more" if found.beyond is None else ""
    return f"largest {found.axis} that fits: {found.largest.value:,}{more}"


def _points(found: FitAnswer) -> list[tuple[str, FitPoint]]:
    named = (
        ("asked for", found.asked),
        ("smallest", found.smallest if found.largest is None else None),
        ("largest", found.largest),
        ("one more" if found.step == 1 else f"{found.step} more", found.beyond),
    )
    seen: dict[int, tuple[str, FitPoint]] = {}
    for name, point in named:
        if point is not None:
            seen[point.value] = (
                (f"{seen[point.value][0]}, {name}", point) if point.value in seen else (name, point)
            )
    return [seen[value] for value in sorted(seen)]


def fit_to_json(found: FitAnswer, changes: Sequence[Change]) -> dict[str, Any]:
    """Plain fields, null for what does not exist."""
    return {
        "schema": FIT_SCHEMA,
        "axis": found.axis,
        "step": found.step,
        "probability": found.wanted,
        "device": found.device,
        "capacity_bytes": found.capacity_bytes,
        "largest": _point(found.largest),
        "beyond": _point(found.beyond),
        "asked": _point(found.asked),
        "stopped": found.stopped,
        "changes": [
            {
                "what": change.what,
                "plan": None if change.request is None else format_plan(change.request.plan),
                "precision": None if change.request is None else change.request.precision.value,
                "slowdown": change.slowdown,
                "device_peak_bytes": change.peak.value,
                "fit_probability": change.probability,
                "fits": change.fits,
            }
            for change in changes
        ],
    }


def _point(point: FitPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        "value": point.value,
        "device_peak_bytes": {"value": point.peak.value, "low": point.peak.low, "high": point.peak.high},
        "fit_probability": point.probability,
    }
