"""Iterations with the log times of fits that never saw their group, and the rows that score them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.features.tables.tiles import FloatArray
from predictor.models.steps.rows import AggregateTable, joined_tables

SUITE = "time"
BoolArray = NDArray[np.bool_]
TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Held:
    """Iterations with the log times of fits that never saw their group."""

    table: AggregateTable
    log_time: FloatArray

    @property
    def residual(self) -> FloatArray:
        """(r,) log of predicted over measured."""
        return self.log_time - self.table.log_time

    @property
    def error(self) -> FloatArray:
        """(r,) absolute relative error."""
        return np.abs(np.expm1(self.residual))

    def take(self, chosen: BoolArray) -> Held:
        """The chosen iterations."""
        return Held(self.table.take(chosen), self.log_time[chosen])


def joined_held(parts: Sequence[Held]) -> Held:
    """All iterations of all parts, in order."""
    return Held(joined_tables([part.table for part in parts]), np.concatenate([p.log_time for p in parts]))


def configurations(table: AggregateTable) -> TextArray:
    """(r,) chip, mode, runtime, layout and framework version of each iteration."""
    return np.array(
        [
            f"{row.device_group} {row.mode} {row.runtime} {row.layout} {row.framework_version:.2f}"
            for row in table.rows
        ]
    )


def parts_of(groups: TextArray, least: int = 2) -> list[BoolArray]:
    """Masks (r,) of the groups with at least so many iterations."""
    return [groups == name for name in np.unique(groups) if (groups == name).sum() >= least]


def held_rows(
    identity: str, hold: str, group: str, held: Held, goals: tuple[float | None, float | None] = (None, None)
) -> list[EvaluationRow]:
    """Mean, median, 90th percentile and signed log error; `goals` of mean and median."""
    rows = error_rows(
        held.error, id=identity, suite=SUITE, hold=hold, group=group, goal_mean=goals[0], goal_median=goals[1]
    )
    if rows:
        bias = float(held.residual.mean())
        rows.append(EvaluationRow(identity, SUITE, hold, group, "log_bias", bias, None, len(held.error)))
    return rows
