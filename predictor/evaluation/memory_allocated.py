"""Peaks of Megatron-LM's golden runs against the corrected timeline, configurations and kinds left out (M2).

A configuration is all that decides a job (models.corpus.megatron_golden.STRUCTURE), so that twins which
differ in logging options leave together; branch and date of the software stay inputs.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.models.memory.allocated import FACTOR_RANGE
from predictor.models.memory.allocated_training import AllocatedRows, config_folds, held_out_errors

FloatArray = NDArray[np.float64]

SUITE, ID = "memory", "M2"
KINDS_WITH_GOAL = ("moe", "t5", "hybrid")
GOAL_MEAN, GOAL_MEDIAN, GOAL_KIND, GOAL_FACTOR = 0.03, 0.01, 0.06, 0.95


def allocated_suite(rows: AllocatedRows) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows of M2, and the table of kinds with the uncorrected error beside."""
    uncorrected = np.log(rows.measured_bytes / rows.floor_bytes)
    by_config = np.zeros(len(rows))
    for held in config_folds(rows):
        by_config[held] = held_out_errors(rows, held)
    by_kind = np.zeros(len(rows))
    for kind in np.unique(rows.kind):
        held = rows.kind == kind
        by_kind[held] = held_out_errors(rows, held)
    found = [
        *_rows(by_config, "golden runs", "configuration", GOAL_MEAN, GOAL_MEDIAN),
        *_rows(uncorrected, "golden runs, uncorrected", "none"),
    ]
    factors = uncorrected - by_config
    inside = (factors > log(FACTOR_RANGE[0])) & (factors < log(FACTOR_RANGE[1]))
    found.append(
        EvaluationRow(
            ID,
            SUITE,
            "configuration",
            "factors in x0.7-1.5",
            "hit_rate",
            float(inside.mean()),
            GOAL_FACTOR,
            len(rows),
        )
    )
    lines = []
    for kind in np.unique(rows.kind):
        held = rows.kind == kind
        goal = GOAL_KIND if kind in KINDS_WITH_GOAL else None
        found += _rows(by_kind[held], f"kind:{kind}", "model kind", goal)
        parts = (uncorrected[held], by_config[held], by_kind[held])
        texts = (f"{100 * np.abs(np.expm1(-part)).mean():.2f} %" for part in parts)
        lines.append((str(kind), str(int(held.sum())), *texts))
    header = ("kind", "runs", "uncorrected", "configuration left out", "kind left out")
    return found, [Table("Megatron-LM's golden runs: mean error (M2)", header, tuple(lines))]


def _rows(
    errors: FloatArray, group: str, hold: str, goal: float | None = None, median: float | None = None
) -> list[EvaluationRow]:
    """Scores of log(measured / predicted)."""
    return error_rows(
        np.abs(np.expm1(-errors)),
        id=ID,
        suite=SUITE,
        hold=hold,
        group=group,
        goal_mean=goal,
        goal_median=median,
    )
