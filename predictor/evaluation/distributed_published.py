"""Published distributed training against composed and corrected times, groups held out (D1, D2).

What answers give for a publisher that nobody has seen is the composition, which no published run taught: that
is the hold `source`. Beside it stands what trees of the other publishers would make of it. Models and devices
are held out within their source, all of one at a time; a device is a chip under every name and memory size,
with its near-twin. A source counts for the means when it has at least LEAST rows; BigScience's V100 runs are
apart (their authors state 40 % variation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.features.tables.tiles import FloatArray
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.distributed import BIGSCIENCE_V100, VTRAIN
from predictor.models.ops.kernel_tables import TWINS
from predictor.models.plans.plan_calibration import PlanPoint, fit_plan_calibration, spread_out
from predictor.models.plans.source_correction import LEAST_ROWS, believed_share, source_log_factors
from predictor.models.plans.step_correction_training import (
    CorrectionTable,
    fit_correction,
    source_quantile,
)

LEAST = 20
CALIBRATION_ROWS, DRAWS, OFFERED = 20, 20, 200
SEED = 7
_SUITE = "distributed"


def published_rows(
    table: CorrectionTable, points: Sequence[PlanPoint]
) -> tuple[list[EvaluationRow], list[Table]]:
    """All rows of D1 and D2, and the errors by source. `points`: of the rows of `table`."""
    bare = -table.target
    shared = _without(table, table.source)
    model = _by_group(table, table.model)
    model[_single_model(table)] = np.nan
    chip = chips(table.device)
    device = _by_group(table, chip)
    device = np.where(np.isfinite(device), device, bare)
    rows = [*_vtrain_rows(table, points, bare, shared, model)]
    for hold, residual, mean, median in (
        ("source", bare, 0.15, 0.10),
        ("source, trees of the others", shared, None, None),
        ("model within source", model, 0.08, None),
    ):
        rows += _macro(table.source, residual, hold, mean, median)
        rows += _errors(table, residual, hold)
    apart = np.where(table.source == BIGSCIENCE_V100, np.nan, device)
    rows += _macro(chip, apart, "device", 0.15, None)
    rows += _coverage(table, bare)
    shown = {"source": bare, "trees of the others": shared, "model": model, "device": device}
    return rows, [_table(table, shown)]


def chips(device: NDArray[np.str_]) -> NDArray[np.str_]:
    """(n,) what leaves together when the device of a row is held out."""
    return np.array([TWINS.get(chip, chip) for chip in map(chip_of, device.tolist())])


def _without(table: CorrectionTable, group: NDArray[np.str_]) -> FloatArray:
    """(n,) log(predicted / measured) of each row by trees of all sources, without its group."""
    found = np.full(len(table), np.nan)
    for name in np.unique(group):
        inside = group == name
        if not inside.all():
            part = table.take(inside)
            found[inside] = fit_correction(table.take(~inside), SEED).predict(part) - part.target
    return found


def _by_group(table: CorrectionTable, group: NDArray[np.str_]) -> FloatArray:
    """(n,) log(predicted / measured) from the other groups of a row's own source; nan where too few are."""
    found = np.full(len(table), np.nan)
    for source in np.unique(table.source):
        mine = table.source == source
        for name in np.unique(group[mine]):
            asked, known = mine & (group == name), mine & (group != name)
            if known.sum() >= LEAST_ROWS:
                features, target = table.features[known], table.target[known]
                share = believed_share(features, target, group[known], SEED)
                factors = source_log_factors(features, target, group[known], table.features[asked], SEED)
                found[asked] = share * factors - table.target[asked]
    return found


def _single_model(table: CorrectionTable) -> NDArray[np.bool_]:
    """(n,) rows of sources with one model: none of it is left when that is held out."""
    lone = [name for name in np.unique(table.source) if len(set(table.model[table.source == name])) < 2]
    return np.isin(table.source, lone)


def _vtrain_rows(
    table: CorrectionTable,
    points: Sequence[PlanPoint],
    bare: FloatArray,
    shared: FloatArray,
    model: FloatArray,
) -> list[EvaluationRow]:
    mine = table.source == VTRAIN
    if not mine.any():
        return []
    chosen, drawn = (
        np.concatenate([_calibrated(table, points, mine, draw, spread=spread) for draw in range(DRAWS)])
        for spread in (True, False)
    )
    found: list[EvaluationRow] = []
    for hold, residual, goal in (
        ("zero-shot", bare[mine], 0.15),
        ("zero-shot (trees of other sources)", shared[mine], None),
        ("model shape", model[mine], 0.08),
        (f"all but {CALIBRATION_ROWS} chosen rows", chosen, 0.05),
        (f"all but {CALIBRATION_ROWS} random rows", drawn, 0.05),
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


def _calibrated(
    table: CorrectionTable, points: Sequence[PlanPoint], mine: NDArray[np.bool_], draw: int, *, spread: bool
) -> FloatArray:
    """Residuals of a source's rows after CALIBRATION_ROWS of them calibrated its plans.

    Args:
        spread: rows are picked for what they teach (`spread_out`, which sees no time) out of OFFERED random
            ones; else at random.
    """
    index = np.flatnonzero(mine)
    seen = [points[row] for row in index.tolist()]
    rng = np.random.default_rng(draw)
    if spread:
        offered = rng.choice(len(index), min(OFFERED, len(index)), replace=False)
        picked = spread_out(seen, CALIBRATION_ROWS, offered.tolist())
    else:
        picked = rng.choice(len(index), CALIBRATION_ROWS, replace=False)
    target = table.target[index]
    fitted = fit_plan_calibration([seen[row] for row in picked], target[picked].tolist())
    rest = np.setdiff1d(np.arange(len(index)), picked)
    return np.asarray(fitted.log_factors([seen[row] for row in rest]) - target[rest])


def _groups(names: NDArray[np.str_], residual: FloatArray) -> Iterable[tuple[str, FloatArray]]:
    """(group, errors) of each large enough group but the one that stands apart."""
    for name in np.unique(names):
        errors = np.abs(np.expm1(residual[(names == name) & np.isfinite(residual)]))
        if errors.size >= LEAST and name != BIGSCIENCE_V100:
            yield str(name), errors


def _macro(
    names: NDArray[np.str_], residual: FloatArray, hold: str, mean: float | None, median: float | None
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
        others = (table.source != name) & (table.source != BIGSCIENCE_V100) & np.isfinite(residual)
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
        ("source", "rows", "composed", "trees of other sources", "its model", "its device"),
        tuple(cells),
    )
