"""Plans as tables for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.cli.render import job_words
from predictor.request import PredictionRequest
from predictor.search.reasons import plan_words, why_it_loses
from predictor.search.search import Goal, Objective, SearchResult


def search_view(request: PredictionRequest, goal: Goal, found: SearchResult, model: str) -> RenderableType:
    """The best plans, why the second loses, and the front of devices against time."""
    device = request.device if isinstance(request.device, str) else request.device.id
    heading = Text.assemble((model, "bold"), f" on {device}   least {goal.objective}")
    job = Text(job_words(request, batch=request.batch), "dim")
    table = FittedTable("", ">iteration", ">devices", ">memory?", _value_column(goal), "plan")
    for rank, item in enumerate(found.best, start=1):
        table.add_row(
            str(rank),
            Text(txt.seconds(item.outcome.time_s), "bold"),
            f"{item.devices:,}",
            txt.size(item.outcome.peak_bytes),
            _value(goal, item.value, item.outcome.energy_j),
            plan_words(item.plan),
        )
    parts: list[RenderableType] = [heading, job, Text(""), table]
    if len(found.best) > 1:
        reason = why_it_loses(found.best[0], found.best[1])
        parts += [Text(""), Text(f"the second against the first: {reason}")]
    front = FittedTable(">devices", ">iteration", "fastest plan")
    for point in found.front:
        front.add_row(f"{point.devices:,}", txt.seconds(point.time_s), plan_words(point.plan))
    parts += [Text(""), Text("fewer devices, longer iterations", "bold"), front, Text("")]
    parts.append(
        Text(
            f"{found.considered:,} plans considered, {found.too_large:,} too large for the device's memory, "
            f"{found.priced:,} priced exactly",
            "dim",
        )
    )
    return Group(*parts)


def _value_column(goal: Goal) -> str:
    return {
        Objective.TIME: ">energy?",
        Objective.COST: ">cost",
        Objective.ENERGY: ">energy",
        Objective.CARBON: ">carbon",
    }[goal.objective]


def _value(goal: Goal, value: float, energy_j: float) -> str:
    if goal.objective is Objective.TIME:
        return txt.joules(energy_j)
    if goal.objective is Objective.ENERGY:
        return txt.joules(value)
    return f"{txt.number(value)}{' g' if goal.objective is Objective.CARBON else ''}"
