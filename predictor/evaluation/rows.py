"""One scored number with its goal: what `perfcast evaluate` prints and the gate compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One number.

    Attributes:
        id: the acceptance line it answers, e.g. `J3`; several rows may share it.
        suite: neusight, memory, energy.
        hold: what the models never saw: `end-to-end`, `model family`, `device`.
        group: `all`, or the part of the suite the number is about.
        metric: `mape` (mean absolute percentage error, as a fraction), `median_ape`, `p90_ape`, `coverage`,
            `hit_rate` (share of cases that are right).
        value: the number. goal: what it should reach (at most; at least for coverage and hits); None:
            reported only.
        n: scored cells.
    """

    id: str
    suite: str
    hold: str
    group: str
    metric: str
    value: float
    goal: float | None
    n: int

    def to_json(self) -> dict[str, str | float | int | None]:
        """Plain fields."""
        return asdict(self)


def absolute_errors(
    predicted: Sequence[float] | FloatArray, measured: Sequence[float] | FloatArray
) -> FloatArray:
    """(n,) |predicted / measured - 1|."""
    ratio = np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64)
    errors: FloatArray = np.abs(ratio - 1.0)
    return errors


def error_rows(
    errors: FloatArray,
    *,
    id: str,
    suite: str,
    hold: str,
    group: str,
    goal_mean: float | None = None,
    goal_median: float | None = None,
) -> list[EvaluationRow]:
    """Mean, median and 90th percentile of `errors`; none for an empty group."""
    if not errors.size:
        return []
    numbers = (
        ("mape", float(errors.mean()), goal_mean),
        ("median_ape", float(np.median(errors)), goal_median),
        ("p90_ape", float(np.quantile(errors, 0.9)), None),
    )
    return [
        EvaluationRow(id, suite, hold, group, name, value, goal, errors.size) for name, value, goal in numbers
    ]


def coverage_row(
    inside: Sequence[bool] | NDArray[np.bool_], *, id: str, suite: str, hold: str, group: str
) -> list[EvaluationRow]:
    """Share of measured values inside their 90 % interval; none for an empty group."""
    hits = np.asarray(inside, dtype=np.bool_)
    if not hits.size:
        return []
    return [EvaluationRow(id, suite, hold, group, "coverage", float(hits.mean()), 0.9, hits.size)]


def scored_rows(
    measured: Sequence[float],
    answers: Sequence[tuple[float, float, float]],
    *,
    id: str,
    suite: str,
    hold: str,
    group: str,
    goal_mean: float | None = None,
    goal_median: float | None = None,
) -> list[EvaluationRow]:
    """Errors and interval coverage of `answers`, each (value, low, high); none for an empty group."""
    errors = absolute_errors([value for value, _, _ in answers], measured)
    inside = [low <= seen <= high for seen, (_, low, high) in zip(measured, answers, strict=True)]
    return [
        *error_rows(
            errors,
            id=id,
            suite=suite,
            hold=hold,
            group=group,
            goal_mean=goal_mean,
            goal_median=goal_median,
        ),
        *coverage_row(inside, id=id, suite=suite, hold=hold, group=group),
    ]
