"""Scaling of data-parallel jobs from one device to several, applications left out (D3).

Asked is the time of a step on N devices over that on one, equal cluster and local batch, when the steps on
one device are known. The exchange runs beside backward, two thirds of what the device works in a step:

    t_N = t_1 + sqrt(h^2 + C^2) - h,    h = 2/3 of the device's work,    C = gradient bytes * seconds per byte

(overlap in the form of Qiao et al. 2021, Pollux, OSDI; backward computes twice what forward does). How long
the device works is its seconds per sample where batches are large, times the batch: the rest of t_1 waits for
the host and hides nothing. Seconds per byte of a cluster and its ranks on nodes are the median of the other
applications': no number is fitted to the one that is asked. What the form can do at best is measured beside:
seconds per byte by application and place, with sight of the scored runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
_BACKWARD_SHARE = 2 / 3
_LARGE = 0.25
"""Batches of at least this share of the largest one show the device's own time per sample."""


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """n runs on several devices.

    Attributes:
        app, cluster: names. place: (n,) cluster, ranks on the fullest node and nodes as one number.
        single_s: step on one device of the same cluster with the same local batch. step_s: this one.
        hidden_s: what of the step on one device runs beside an exchange. size_bytes: gradients of a replica.
    """

    app: NDArray[np.str_]
    cluster: NDArray[np.str_]
    place: NDArray[np.intp]
    single_s: FloatArray
    hidden_s: FloatArray
    step_s: FloatArray
    size_bytes: FloatArray


def scaling_table(corpus: Path) -> ScalingTable:
    """Runs that have one on a single device to compare with."""
    frame = read_source(corpus, SOURCE)
    rows = []
    single: dict[tuple[str, str], dict[float, float]] = {}
    for app, text, seconds in frame.select("subject", "configuration", "value").iter_rows():
        facts = json.loads(text)
        ranks = tuple(facts["ranks_on_nodes"])
        if ranks == (1,):
            single.setdefault((app, facts["cluster"]), {})[facts["local_batch"]] = seconds
        else:
            rows.append((app, facts["cluster"], facts["local_batch"], ranks, seconds))
    kept = [row for row in rows if row[2] in single.get(row[:2], {})]
    per_sample = {job: _per_sample_s(steps) for job, steps in single.items()}
    places = [str((cluster, max(ranks), len(ranks))) for _, cluster, _, ranks, _ in kept]
    single_s = np.array([single[row[:2]][row[2]] for row in kept])
    work_s = np.array([per_sample[row[:2]] * row[2] for row in kept])
    return ScalingTable(
        app=np.array([row[0] for row in kept]),
        cluster=np.array([row[1] for row in kept]),
        place=np.unique(np.array(places), return_inverse=True)[1],
        single_s=single_s,
        hidden_s=_BACKWARD_SHARE * np.minimum(work_s, single_s),
        step_s=np.array([row[4] for row in kept]),
        size_bytes=np.array([GRADIENT_BYTES[row[0]] for row in kept]),
    )


def _per_sample_s(steps: Mapping[float, float]) -> float:
    """Seconds that a device works on a sample: the slope of steps by batch where batches are large."""
    largest = max(steps)
    small = min((batch for batch in steps if _LARGE * largest <= batch < largest), default=min(steps))
    if small == largest:
        return 0.0
    return max(steps[largest] - steps[small], 0.0) / (largest - small)


def left_out(table: ScalingTable) -> FloatArray:
    """(n,) log(predicted / measured step) of every run, its application unseen."""
    rate = _rates(table)
    found = np.zeros(len(table.app))
    for (name, place), mine in _cells(table).items():
        others = [rate[key] for key in rate if key[1] == place and key[0] != name]
        found[mine] = _log_ratio(table, mine, float(np.median(others)) if others else 0.0)
    return found


def with_sight(table: ScalingTable) -> FloatArray:
    """(n,) as `left_out`, seconds per byte from the application's own runs at the place."""
    rate = _rates(table)
    found = np.zeros(len(table.app))
    for key, mine in _cells(table).items():
        found[mine] = _log_ratio(table, mine, rate[key])
    return found


def _cells(table: ScalingTable) -> dict[tuple[str, int], NDArray[np.intp]]:
    """Runs of each application at each place."""
    return {
        (str(name), int(place)): np.flatnonzero((table.app == name) & (table.place == place))
        for name in np.unique(table.app)
        for place in np.unique(table.place[table.app == name])
    }


def _rates(table: ScalingTable) -> dict[tuple[str, int], float]:
    """Seconds per byte that explain how steps grew, by application and place: the median of its batches."""
    grown_s = np.maximum(table.step_s - table.single_s, 0.0)
    per_byte = np.sqrt((table.hidden_s + grown_s) ** 2 - table.hidden_s**2) / table.size_bytes
    return {key: float(np.median(per_byte[mine])) for key, mine in _cells(table).items()}


def _log_ratio(table: ScalingTable, mine: NDArray[np.intp], per_byte_s: float) -> FloatArray:
    """log(predicted / measured step) of the runs in `mine` whose exchanges take so long."""
    hidden_s = table.hidden_s[mine]
    wait_s = np.hypot(hidden_s, per_byte_s * table.size_bytes[mine]) - hidden_s
    return np.asarray(np.log((table.single_s[mine] + wait_s) / table.step_s[mine]))


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
