"""Studies as tables for people: columns are formatted by the unit in their name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.units import format_quantity


def study_view(rows: Sequence[Mapping[str, Any]], constants: Mapping[str, float]) -> RenderableType:
    """One line per row, and the fitted constants below."""
    names = list(rows[0]) if rows else []
    numeric = {name for name in names if not isinstance(rows[0][name], str)}
    table = FittedTable(*(f">{_title(name)}" if name in numeric else _title(name) for name in names))
    for row in rows:
        table.add_row(*(_cell(name, row[name]) for name in names))
    parts: list[RenderableType] = [table]
    if constants:
        listed = ", ".join(f"{_title(name)} {_cell(name, value)}" for name, value in constants.items())
        parts += [Text(), Text(listed, "dim")]
    return Group(*parts)


def _title(name: str) -> str:
    for unit in ("_bytes_per_s", "_bytes", "_s"):
        if name.endswith(unit):
            return txt.words(name.removesuffix(unit))
    return txt.words(name)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith("_bytes_per_s"):
        return format_quantity(value, "B/s")
    if name.endswith("_bytes"):
        return format_quantity(value, "B")
    return txt.seconds(value) if name.endswith("_s") else txt.number(value)
