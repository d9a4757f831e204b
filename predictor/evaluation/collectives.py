"""Times of collectives against measured ones: systems, link generations and sizes left out (D4).

A system is one publisher's machine. Twins (H100 and H200 boards, the Blackwell boards) stay in when one of
them is left out; the hold `link generation` takes all of them away, wherever they were timed.
Hyper-parameters are chosen inside each fold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, coverage_row, error_rows
from predictor.models.corpus.build import Progress, read_source
from predictor.models.corpus.exchanges import SOURCES
from predictor.models.plans.exchange_rows import ExchangeFacts, ExchangeTable, FloatArray, exchange_table
from predictor.models.plans.exchange_training import half_widths, held_out, is_timed_elsewhere
from predictor.models.train import SEED

_SUITE = "collectives"
GOAL_SYSTEM, GOAL_SIZE = 0.12, 0.04
_LEAST = 20
_LARGE = 20.0

_GENERATIONS: Mapping[str, str] = {
    "v100": "NVLink 2",
    "a100": "NVLink 3",
    "h100": "NVLink 4",
    "h200": "NVLink 4",
    "b200": "NVLink 5",
    "b300": "NVLink 5",
    "gb200": "NVLink 5",
    "gb300": "NVLink 5",
}


def collectives_suite(corpus: Path, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows and tables from a corpus that holds the sources of collectives."""
    table = exchange_table(read_source(corpus, name) for name in SOURCES)
    holds = (
        ("system", table.system, False),
        ("size", table.octave, True),
        ("generation", _links(table), False),
    )
    found = {}
    for done, (name, group, known) in enumerate(holds):
        progress(f"collectives without each {name}", done, len(holds))
        found[name] = held_out(table, group, SEED, known=known)
    system = found["system"].residual
    rows = [
        *_errors(system, "system", "all, its system left out", GOAL_SYSTEM),
        *_errors(found["size"].residual, "size", "all, its size left out", GOAL_SIZE),
        *_errors(found["generation"].residual, "link generation", "all, its link generation left out", None),
        *_errors(system[table.log_size >= _LARGE], "system", "1 MiB and more, its system left out", None),
        *_macro(table, system),
        *_by_link(table, system),
        *_coverage(table, system, found["system"].nearest),
    ]
    return rows, [_table(table, {name: item.residual for name, item in found.items()})]


def _errors(residual: FloatArray, hold: str, group: str, goal: float | None) -> list[EvaluationRow]:
    return error_rows(
        np.abs(np.expm1(residual)), id="D4", suite=_SUITE, hold=hold, group=group, goal_median=goal
    )


def _links(table: ExchangeTable) -> NDArray[np.str_]:
    """(n,) generation of the link inside the node, else its kind and the chip."""
    names = [_GENERATIONS.get(facts.chip, facts.chip) for facts in table.curves]
    return np.array(names)[table.curve]


def _kind(facts: ExchangeFacts) -> str:
    if facts.library == "custom":
        return "an inference stack's own all-reduce"
    return f"across nodes: {facts.far}" if facts.far else f"in a node: {facts.near}"


def _by_link(table: ExchangeTable, residual: FloatArray) -> list[EvaluationRow]:
    kinds = np.array([_kind(facts) for facts in table.curves])[table.curve]
    rows: list[EvaluationRow] = []
    for kind in np.unique(kinds):
        if (kinds == kind).sum() >= _LEAST:
            rows += _errors(residual[kinds == kind], "system", f"{kind}, its system left out", None)
    return rows


def _macro(table: ExchangeTable, residual: FloatArray) -> list[EvaluationRow]:
    """Mean over systems of each one's median: small ones count like large ones."""
    errors = np.abs(np.expm1(residual))
    medians = [float(np.median(errors[table.system == name])) for name in np.unique(table.system)]
    value = float(np.mean(medians))
    return [EvaluationRow("D4", _SUITE, "system", "mean over systems", "median_ape", value, None, len(table))]


def _coverage(table: ExchangeTable, residual: FloatArray, nearest: FloatArray) -> list[EvaluationRow]:
    """Each system's half-width comes from the held-out errors of the others."""
    inside, known = np.zeros(len(table), dtype=bool), is_timed_elsewhere(table, nearest)
    for name in np.unique(table.system):
        mine = table.system == name
        same, similar = half_widths(table.take(~mine), residual[~mine], nearest[~mine])
        inside[mine] = np.abs(residual[mine]) <= np.where(known[mine], same, similar)
    large = table.log_size >= _LARGE
    return coverage_row(
        inside[large], id="D4", suite=_SUITE, hold="system", group="1 MiB and more, its system left out"
    )


def _table(table: ExchangeTable, residuals: Mapping[str, FloatArray]) -> Table:
    lines = []
    for name in np.unique(table.system):
        mine = table.system == name
        errors = [np.abs(np.expm1(residual[mine])) for residual in residuals.values()]
        lines.append(
            (str(name), str(int(mine.sum())), *(f"{np.median(e):.1%} / {e.mean():.1%}" for e in errors))
        )
    return Table(
        "Collectives: median / mean error by what was left out",
        ("system", "rows", *residuals),
        tuple(lines),
    )
