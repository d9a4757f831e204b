"""Scaling of data-parallel jobs from one device to several, applications left out (D3).

Asked is the time of a step on N devices over that on one, equal cluster and local batch, when the step on one
device is known. An exchange runs beside a share of it:

    t_N = ((share t_1)^sharpness + C^sharpness)^(1 / sharpness) + (1 - share) t_1
    C   = a + b * gradient bytes, by cluster, ranks on the fullest node, and nodes

(the form of Qiao et al. 2021, Pollux, OSDI). a and b are fitted on the other five applications alone, share
and sharpness by leaving each of those out in turn. What the form can do at best is measured beside: C free by
application and place, share and sharpness by application and cluster, all with sight of the scored runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.models.corpus.build import Progress, read_source
from predictor.models.corpus.sia_pollux import GRADIENT_BYTES, SOURCE

FloatArray = NDArray[np.float64]

GOAL_MEAN = 0.08
_OVERLAPS = tuple((share, sharpness) for share in (0.3, 0.5, 0.7) for sharpness in (1.5, 2.0, 3.0))
_LEAST_S = 3e-3
_WEIGHT_POWER = 0.7


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """n runs on several devices.

    Attributes:
        app, cluster: names. place: (n,) cluster, ranks on the fullest node and nodes as one number.
        single_s: step on one device of the same cluster with the same local batch. step_s: this one.
        size_bytes: gradients of a replica.
    """

    app: NDArray[np.str_]
    cluster: NDArray[np.str_]
    place: NDArray[np.intp]
    single_s: FloatArray
    step_s: FloatArray
    size_bytes: FloatArray


def scaling_table(corpus: Path) -> ScalingTable:
    """Runs that have one on a single device to compare with."""
    frame = read_source(corpus, SOURCE)
    rows = []
    for app, text, seconds in frame.select("subject", "configuration", "value").iter_rows():
        facts = json.loads(text)
        rows.append((app, facts["cluster"], facts["local_batch"], tuple(facts["ranks_on_nodes"]), seconds))
    single = {(app, cluster, batch): s for app, cluster, batch, ranks, s in rows if ranks == (1,)}
    kept = [row for row in rows if row[3] != (1,) and row[:3] in single]
    places = [(cluster, max(ranks), len(ranks)) for _, cluster, _, ranks, _ in kept]
    return ScalingTable(
        np.array([row[0] for row in kept]),
        np.array([row[1] for row in kept]),
        np.unique(np.array([str(place) for place in places]), return_inverse=True)[1],
        np.array([single[row[:3]] for row in kept]),
        np.array([row[4] for row in kept]),
        np.array([GRADIENT_BYTES[row[0]] for row in kept]),
    )


def left_out(table: ScalingTable) -> FloatArray:
    """(n,) log(predicted / measured step) of every run, its application unseen."""
    exchange = {overlap: _exchange_s(table, *overlap) for overlap in _OVERLAPS}
    names = np.unique(table.app)
    found = np.zeros(len(table.app))
    for name in names:
        others = [other for other in names if other != name]
        best = min(_OVERLAPS, key=lambda overlap: _inner_error(table, exchange[overlap], overlap, others))
        mine = table.app == name
        found[mine] = _residual(table, exchange[best], best, others, name)
    return found


def with_sight(table: ScalingTable) -> FloatArray:
    """(n,) as `left_out`, every exchange and overlap fitted to the application's own runs on the cluster."""
    exchange = {overlap: _exchange_s(table, *overlap) for overlap in _OVERLAPS}
    found = np.zeros(len(table.app))
    for name in np.unique(table.app):
        for cluster in np.unique(table.cluster[table.app == name]):
            mine = np.flatnonzero((table.app == name) & (table.cluster == cluster))
            tried = [_at_medians(table, exchange[overlap], overlap, mine) for overlap in _OVERLAPS]
            found[mine] = min(tried, key=lambda residual: float(np.abs(np.expm1(-residual)).mean()))
    return found


def _at_medians(
    table: ScalingTable, exchange_s: FloatArray, overlap: tuple[float, float], mine: NDArray[np.intp]
) -> FloatArray:
    """Residuals of the runs in `mine` with the median of their exchanges by place."""
    wait_s = np.zeros(len(mine))
    for place in np.unique(table.place[mine]):
        here = table.place[mine] == place
        wait_s[here] = np.median(exchange_s[mine[here]])
    return _log_ratio(table, mine, wait_s, overlap)


def _inner_error(
    table: ScalingTable, exchange_s: FloatArray, overlap: tuple[float, float], names: Sequence[str]
) -> float:
    """Mean error over training applications, each left out of the others."""
    errors = []
    for name in names:
        others = [other for other in names if other != name]
        residual = _residual(table, exchange_s, overlap, others, name)
        errors.append(np.abs(np.expm1(-residual)).mean())
    return float(np.mean(errors))


def _residual(
    table: ScalingTable,
    exchange_s: FloatArray,
    overlap: tuple[float, float],
    train: Sequence[str],
    name: str,
) -> FloatArray:
    """Of the runs of application `name`."""
    mine = np.flatnonzero(table.app == name)
    wait_s = np.zeros(len(mine))
    for place in np.unique(table.place[mine]):
        start, per_byte = _line(table, exchange_s, place, train)
        here = table.place[mine] == place
        wait_s[here] = start + per_byte * table.size_bytes[mine[here]]
    return _log_ratio(table, mine, wait_s, overlap)


def _log_ratio(
    table: ScalingTable, mine: NDArray[np.intp], wait_s: FloatArray, overlap: tuple[float, float]
) -> FloatArray:
    """log(predicted / measured step) of the runs in `mine` whose exchanges take `wait_s`."""
    share, sharpness = overlap
    single = table.single_s[mine]
    beside = ((share * single) ** sharpness + wait_s**sharpness) ** (1 / sharpness)
    return np.asarray(np.log((beside + (1 - share) * single) / table.step_s[mine]))


def _exchange_s(table: ScalingTable, share: float, sharpness: float) -> FloatArray:
    """(n,) what the exchange took, had it run beside `share` of the step on one device."""
    hidden = share * table.single_s
    beside = np.maximum(table.step_s - (1 - share) * table.single_s, hidden)
    return np.asarray(np.maximum(beside**sharpness - hidden**sharpness, 0.0) ** (1 / sharpness))


def _line(
    table: ScalingTable, exchange_s: FloatArray, place: int, train: Sequence[str]
) -> tuple[float, float]:
    """Seconds, and seconds per byte, neither below 0, through the medians of the training applications."""
    at = table.place == place
    points = [
        (GRADIENT_BYTES[name], float(np.median(exchange_s[rows])))
        for name in train
        if (rows := at & (table.app == name)).any()
    ]
    if not points:
        return 0.0, 0.0
    size, seconds = np.array(points).T
    weight = np.maximum(seconds, _LEAST_S) ** (-2 * _WEIGHT_POWER)
    lines = [
        (float(np.average(seconds, weights=weight)), 0.0),
        (0.0, float((weight * size * seconds).sum() / (weight * size**2).sum())),
    ]
    middle = np.average(size, weights=weight)
    spread = float((weight * (size - middle) ** 2).sum())
    if spread > 0:
        mean = lines[0][0]
        slope = float((weight * (size - middle) * (seconds - mean)).sum()) / spread
        lines.append((mean - slope * float(middle), slope))
    fit = [line for line in lines if min(line) >= 0]
    return min(fit, key=lambda line: float((weight * (line[0] + line[1] * size - seconds) ** 2).sum()))


def scaling_suite(corpus: Path, progress: Progress) -> tuple[list[EvaluationRow], list[Table]]:
    """Rows and the table of D3."""
    progress("scaling without each application", 0, 1)
    table = scaling_table(corpus)
    errors = np.abs(np.expm1(-left_out(table)))
    rows = _rows(errors, "all", GOAL_MEAN)
    rows += _rows(np.abs(np.expm1(-with_sight(table))), "all, fitted with sight of the runs", None)
    for name in np.unique(table.app):
        rows += _rows(errors[table.app == name], str(name), None)
    clusters = np.unique(table.cluster)
    lines = [
        (
            str(name),
            *(_cell(errors[(table.app == name) & (table.cluster == cluster)]) for cluster in clusters),
        )
        for name in np.unique(table.app)
    ]
    title = "Scaling from one device to several: mean / median error, application left out"
    return rows, [Table(title, ("application", *map(str, clusters)), tuple(lines))]


def _rows(errors: FloatArray, group: str, goal: float | None) -> list[EvaluationRow]:
    return error_rows(
        errors,
        id="D3",
        suite="distributed",
        hold="application",
        group=f"scaling, {group}",
        goal_mean=goal,
    )


def _cell(errors: FloatArray) -> str:
    return f"{errors.mean():.1%} / {np.median(errors):.1%}" if errors.size else "-"
