"""Evaluation rows as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli.fitted_table import FittedTable
from predictor.evaluation.rows import EvaluationRow


def evaluation_view(rows: Sequence[EvaluationRow]) -> RenderableType:
    """One line per number; a goal that is missed stands out."""
    table = FittedTable("id", "suite", "held out??", "group", "metric", ">value", ">goal", ">n?")
    for row in rows:
        style = "" if row.goal is None else "green" if meets_goal(row) else "bold red"
        table.add_row(
            row.id,
            row.suite,
            row.hold,
            row.group,
            row.metric,
            Text(f"{row.value:.1%}", style),
            "" if row.goal is None else f"{row.goal:.1%}",
            str(row.n),
        )
    scored = [row for row in rows if row.goal is not None]
    met = sum(map(meets_goal, scored))
    return Group(table, Text(), Text(f"{met} of {len(scored)} goals met", "dim"))


def meets_goal(row: EvaluationRow) -> bool:
    """Errors must not exceed their goal, coverage and hits must not fall below it."""
    if row.goal is None:
        return True
    return row.value >= row.goal if row.metric in _MORE_IS_BETTER else row.value <= row.goal


_MORE_IS_BETTER = frozenset({"coverage", "hit_rate"})
