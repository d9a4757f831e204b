"""Published distributed training against composed and corrected times, groups held out (D1, D2).

`composition` is what no published run taught: it is scored beside every hold. A source counts for the means
when it has at least LEAST rows; BigScience's V100 runs are apart (their authors state 40 % variation).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.features.tiles import FloatArray
from predictor.models.corpus.distributed import BIGSCIENCE_V100, VTRAIN
from predictor.models.step_correction_training import (
    CorrectionTable,
    fit_correction,
    source_quantile,
)

LEAST = 20
FOLDS = 6
CALIBRATION_ROWS, DRAWS = 20, 5
SEED = 7
_SUITE = "distributed"


def published_rows(table: CorrectionTable) -> tuple[list[EvaluationRow], list[Table]]:
    """All rows of D1 and D2, and the errors by source."""
    bare = -table.target
    source = _without(table, table.source)
    device = _without(table, table.device)
    model = _without(table, _model_folds(table))
    model[_single_model(table)] = np.nan
    rows = [*_vtrain_rows(table, bare, source, model)]
    for hold, residual, mean, median in (
        ("composition", bare, 0.15, 0.10),
        ("source", source, 0.15, 0.10),
        ("model within source", model, 0.08, None),
    ):
        rows += _macro(table.source, residual, hold, mean, median)
        rows += _errors(table, residual, hold)
    rows += _macro(table.device, device, "device", 0.15, None)
    rows += _coverage(table, source)
    return rows, [_table(table, {"composed": bare, "source": source, "model": model, "device": device})]


def _without(table: CorrectionTable, group: NDArray[np.str_]) -> FloatArray:
    """(n,) log(predicted / measured) of each row by a fit without its group."""
    found = np.full(len(table), np.nan)
    for name in np.unique(group):
        inside = group == name
        if not inside.all():
            part = table.take(inside)
            found[inside] = fit_correction(table.take(~inside), SEED).predict(part) - part.target
    return found


def _model_folds(table: CorrectionTable) -> NDArray[np.str_]:
    """(n,) fold: models of each source dealt out in turn, so that a source never leaves as a whole."""
    fold = np.zeros(len(table), dtype=np.intp)
    for name in np.unique(table.source):
        mine = table.source == name
        _, index = np.unique(table.model[mine], return_inverse=True)
        fold[mine] = index % FOLDS
    return fold.astype(np.str_)


def _single_model(table: CorrectionTable) -> NDArray[np.bool_]:
    """(n,) rows of sources with one model: none of it is left when that is held out."""
    lone = [name for name in np.unique(table.source) if len(set(table.model[table.source == name])) < 2]
    return np.isin(table.source, lone)


def _vtrain_rows(
    table: CorrectionTable, bare: FloatArray, source: FloatArray, model: FloatArray
) -> list[EvaluationRow]:
    mine = table.source == VTRAIN
    if not mine.any():
        return []
    calibrated = np.concatenate([_calibrated(table, mine, draw) for draw in range(DRAWS)])
    found: list[EvaluationRow] = []
    for hold, residual, goal in (
        ("zero-shot (composition)", bare[mine], 0.15),
        ("zero-shot (corrected)", source[mine], 0.15),
        ("model shape", model[mine], 0.08),
        (f"all but {CALIBRATION_ROWS} rows", calibrated, 0.05),
    ):
        found += error_rows(
            np.abs(np.expm1(residual)),
            id="D1",
            suite=_SUITE,
            hold=hold,
            group=f"vTrain, {hold}",
            goal_mean=goal,
        )
    return found


def _calibrated(table: CorrectionTable, mine: NDArray[np.bool_], draw: int) -> FloatArray:
    """Residuals of vTrain's rows after CALIBRATION_ROWS random ones of them taught their mean and slopes.

    A Gaussian process on standard columns, on top of the composition.
    """
    index = np.flatnonzero(mine)
    picked = np.random.default_rng(draw).choice(len(index), CALIBRATION_ROWS, replace=False)
    features = table.features[index]
    spread = features.std(axis=0)
    columns = (features - features.mean(axis=0))[:, spread > 1e-6] / spread[spread > 1e-6]
    target = table.target[index]
    rest = np.setdiff1d(np.arange(len(index)), picked)
    near = _kernel(columns[picked], columns[picked]) + 0.05 * np.eye(CALIBRATION_ROWS)
    mean = float(target[picked].mean())
    weight = np.linalg.solve(near, target[picked] - mean)
    return np.asarray(mean + _kernel(columns[rest], columns[picked]) @ weight - target[rest])


def _kernel(left: FloatArray, right: FloatArray) -> FloatArray:
    square = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-square / (2 * 4.0**2)))


def _groups(names: NDArray[np.str_], residual: FloatArray) -> Iterable[tuple[str, FloatArray]]:
    """(group, errors) of each large enough group but the one that stands apart."""
    for name in np.unique(names):
        errors = np.abs(np.expm1(residual[(names == name) & np.isfinite(residual)]))
        if errors.size >= LEAST and name != BIGSCIENCE_V100:
            yield str(name), errors


def _macro(
    names: NDArray[np.str_], residual: FloatArray, hold: str, mean: float, median: float | None
) -> list[EvaluationRow]:
    errors = [found for _, found in _groups(names, residual)]
    if not errors:
        return []
    count = sum(found.size for found in errors)
    numbers = (
        ("mape", np.mean([e.mean() for e in errors]), mean),
        ("median_ape", np.mean([np.median(e) for e in errors]), median),
    )
    return [
        EvaluationRow("D2", _SUITE, hold, f"macro, {hold}", metric, float(value), goal, count)
        for metric, value, goal in numbers
    ]


def _errors(table: CorrectionTable, residual: FloatArray, hold: str) -> list[EvaluationRow]:
    found: list[EvaluationRow] = []
    for name in np.unique(table.source):
        errors = np.abs(np.expm1(residual[(table.source == name) & np.isfinite(residual)]))
        if errors.size >= LEAST:
            found += error_rows(errors, id="D2", suite=_SUITE, hold=hold, group=f"{name}, {hold}")[:2]
    return found


def _coverage(table: CorrectionTable, residual: FloatArray) -> list[EvaluationRow]:
    """Share inside the 90 % interval, each source's half-width from the others' held-out errors."""
    shares, count = [], 0
    for name in np.unique(table.source):
        mine = (table.source == name) & np.isfinite(residual)
        others = (table.source != name) & np.isfinite(residual)
        if mine.sum() < LEAST or name == BIGSCIENCE_V100 or not others.any():
            continue
        width = source_quantile(residual[others], table.source[others])
        shares.append(float((np.abs(residual[mine]) <= width).mean()))
        count += int(mine.sum())
    if not shares:
        return []
    return [
        EvaluationRow(
            "D2", _SUITE, "source", "macro, interval", "coverage", float(np.mean(shares)), 0.9, count
        )
    ]


def _table(table: CorrectionTable, residuals: dict[str, FloatArray]) -> Table:
    cells = []
    for name in np.unique(table.source):
        mine = table.source == name
        texts = []
        for residual in residuals.values():
            errors = np.abs(np.expm1(residual[mine & np.isfinite(residual)]))
            texts.append(f"{errors.mean():.1%} / {np.median(errors):.1%}" if errors.size else "-")
        cells.append((str(name), str(int(mine.sum())), *texts))
    return Table(
        "Published distributed training: mean / median error by what was held out",
        ("source", "rows", "composition alone", "its source", "its model", "its device"),
        tuple(cells),
    )
