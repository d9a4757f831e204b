"""Footprints as tables for people: energy of the node, carbon, money; unknown where nobody knows."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from predictor.cli import text as txt
from predictor.cli.fitted_table import FittedTable
from predictor.types import Footprint, Interval

_LABEL, _BOUNDS, _VALUE = "bold", "dim", "bold cyan"


def footprint_view(found: Footprint) -> RenderableType:
    """Lines under a prediction's headline."""
    table = FittedTable("<", "<", "<", "")

    def line(label: str, interval: Interval | None, form: txt.Formatter, note: str) -> None:
        value = Text("unknown", "yellow") if interval is None else Text(form(interval.value), _VALUE)
        bounds = "" if interval is None else txt.span(interval, form)
        table.add_row(Text(label, _LABEL), value, Text(bounds, _BOUNDS), Text(note, _BOUNDS))

    line(f"energy ({found.scope})", found.energy_j, txt.joules, _parts(found))
    line(
        "",
        found.energy_kwh,
        kilowatt_hours,
        f"PUE {found.pue:g}" if found.pue else "PUE unknown, not applied",
    )
    line("carbon", found.carbon_g, grams, found.carbon_note)
    line("cost", found.cost_usd, dollars, found.cost_note)
    return Group(Text("footprint of one iteration", _LABEL), table)


def _parts(found: Footprint) -> str:
    total = sum(found.parts_j.values()) or 1.0
    shown = sorted(found.parts_j.items(), key=lambda part: -part[1])[:4]
    return ", ".join(f"{name.replace('_', ' ')} {txt.percent(value / total)}" for name, value in shown)


def kilowatt_hours(value: float) -> str:
    """`3.2 mWh`, `1.2 kWh`."""
    return txt.watts(1e3 * value) + "h"


def grams(value: float) -> str:
    """`2.03 mg`, `1.2 kg`: of CO2 equivalent."""
    for unit, size in (("t", 1e6), ("kg", 1e3), ("g", 1.0), ("mg", 1e-3)):
        if abs(value) >= size:
            return f"{txt.number(value / size)} {unit} CO2e"
    return f"{txt.number(value / 1e-6)} µg CO2e"


def dollars(value: float) -> str:
    """`0.000202 USD`."""
    return f"{value:.3g} USD" if value < 100 else f"{value:,.0f} USD"
