"""Kernel watts (E1) against the cleaned envelope: shapes left out per table, and each chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from predictor.evaluation.energy_jobs import SUITE
from predictor.evaluation.rows import EvaluationRow, coverage_row, error_rows
from predictor.models.calibration import conformal_quantile
from predictor.models.corpus.aiconfigurator_power import SOURCE
from predictor.models.corpus.build import read_source
from predictor.models.power.kernel_power_training import (
    FloatArray,
    KernelTable,
    fit_kernel_power,
    kernel_table,
    predicted_w,
    shape_folds,
)

_FOLDS = 5
SHAPE_GOAL, CHIP_GOAL = 0.04, 0.15


def kernel_power_rows(corpus: Path) -> list[EvaluationRow]:
    """Rows of held-out shapes per table and of held-out chips."""
    table = kernel_table(read_source(corpus, SOURCE))
    return [*_shape_rows(table), *_chip_rows(table)]


def _shape_rows(table: KernelTable) -> list[EvaluationRow]:
    fold, watts = shape_folds(table, _FOLDS), np.empty(len(table))
    for part in range(_FOLDS):
        index = np.flatnonzero(fold == part)
        watts[index] = predicted_w(fit_kernel_power(table.take(fold != part)), table.take(index))
    errors = np.abs(watts / table.envelope_w - 1.0)
    rows = _errors(errors, "shape", "shape:all", SHAPE_GOAL)
    rows += coverage_row(_inside(watts, table, fold), id="E1", suite=SUITE, hold="shape", group="shape:all")
    for name in np.unique(table.table):
        index = table.table == name
        goal = max(SHAPE_GOAL, float(table.roughness[index][0]))
        rows += _errors(errors[index], "shape", f"shape:{name}", goal)
    return rows


def _inside(watts: FloatArray, table: KernelTable, fold: np.ndarray) -> np.ndarray:
    """Whether readings lie in intervals calibrated on the other folds, family by family."""
    left = np.abs(np.log(table.envelope_w / watts))
    inside = np.zeros(len(table), dtype=np.bool_)
    for family in np.unique(table.family):
        for part in range(_FOLDS):
            own = (fold == part) & (table.family == family)
            others = (fold != part) & (table.family == family)
            if own.any() and others.any():
                inside[own] = left[own] <= conformal_quantile(left[others])
    return inside


def _chip_rows(table: KernelTable) -> list[EvaluationRow]:
    rows: list[EvaluationRow] = []
    left: dict[str, FloatArray] = {}
    for chip in np.unique(table.chip):
        held = table.take(table.chip == chip)
        over = predicted_w(fit_kernel_power(table.take(table.chip != chip)), held) / held.envelope_w
        errors = np.abs(over - 1)
        left[str(chip)] = np.abs(np.log(over[held.rows.reads_low == 0]))
        # The H200 has vLLM's tables only, so that it cannot teach how TensorRT-LLM's read.
        like = held.rows.reads_low == 0
        rows += _errors(errors, "device", f"chip:{chip}", CHIP_GOAL if like.all() else None)
        if not like.all():
            rows += _errors(errors[like], "device", f"chip:{chip} (vLLM tables)", CHIP_GOAL)
        for subject in np.unique([name.split(" ")[0] for name in held.table]):
            index = np.char.startswith(held.table, f"{subject} ") & like
            if index.any():
                rows += _errors(errors[index], "device", f"chip:{chip} {subject} (vLLM)", None)
    # The only other chips to calibrate on are those that were left out as well.
    inside = [
        left[chip] <= conformal_quantile(np.concatenate([left[other] for other in left if other != chip]))
        for chip in left
        if len(left) > 1
    ]
    found = np.concatenate(inside) if inside else np.zeros(0, dtype=np.bool_)
    return rows + coverage_row(found, id="E1", suite=SUITE, hold="device", group="chip:all")


def _errors(errors: FloatArray, hold: str, group: str, goal: float | None) -> list[EvaluationRow]:
    return error_rows(errors, id="E1", suite=SUITE, hold=hold, group=group, goal_median=goal)
