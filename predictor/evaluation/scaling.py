"""Scaling of data-parallel jobs from one device to several, applications left out (D3).

Asked is the time of a step on N devices over that on one, equal cluster and local batch, when the steps on
one device are known:

    t_N = t_1 + max(C - t_1 / 2, C * last / bytes) + contention,    C = gradient bytes * seconds per byte

Buckets of gradients are averaged beside backward, half of a step; the last is ready when backward ends and
hides behind nothing (Li et al. 2020). Ranks whose samples vary in size disturb one another: they wait for the
largest and compete for the host; taken is that this costs the same seconds at any batch. Seconds per byte at
a place, a cluster with its ranks on nodes, are those that explain the other steady applications best,
contention is what the other varying one takes beyond: no number is fitted to the one that is asked. What the
form can do at best is measured beside: both numbers by application and place, with sight of the scored runs.
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
LAST_BUCKET_SHARE: Mapping[str, float] = {
    "bert": 0.262,
    "cifar10": 0.196,
    "deepspeech2": 0.098,
    "imagenet": 0.095,
    "ncf": 0.97,
    "yolov3": 0.004,
}
"""Share of the gradients that travels after backward: torch's last bucket of 25 MiB, from the graphs. NCF's
is what its embeddings hold (sizes of GRADIENT_BYTES): they are looked up first, so all are ready last."""
VARYING = ("deepspeech2", "yolov3")
"""Utterances are padded to the longest of a batch, images are scaled to another size every few batches."""
_BACKWARD_SHARE = 0.5
_PER_BYTE_S = np.concatenate([[0.0], np.geomspace(1e-11, 1e-7, 100)])
"""Candidates, ten percent apart: from several NVLinks to an Ethernet that many ranks share."""


@dataclass(frozen=True, slots=True)
class ScalingTable:
    """n runs on several devices.

    Attributes:
        app, cluster: names. place: (n,) cluster, ranks on the fullest node and nodes as one number.
        single_s: step on one device of the same cluster with the same local batch. step_s: this one.
    """

    app: NDArray[np.str_]
    cluster: NDArray[np.str_]
    place: NDArray[np.intp]
    single_s: FloatArray
    step_s: FloatArray


@dataclass(frozen=True, slots=True)
class _Cell:
    """Runs of one application at one place, by candidate of `_PER_BYTE_S`.

    Attributes:
        runs: (m,) their indices. expected_s: (m, candidates) steps without contention. contention_s:
            (candidates,) what they take beyond, zero for steady applications. error: (candidates,) mean log
            error with it.
    """

    runs: NDArray[np.intp]
    expected_s: FloatArray
    contention_s: FloatArray
    error: FloatArray


_Cells = Mapping[tuple[str, int], _Cell]


def scaling_table(corpus: Path) -> ScalingTable:
    """Runs that have one on a single device to compare with."""
    frame = read_source(corpus, SOURCE)
    rows = []
    single: dict[tuple[str, str, float], float] = {}
    for app, text, seconds in frame.select("subject", "configuration", "value").iter_rows():
        facts = json.loads(text)
        ranks = tuple(facts["ranks_on_nodes"])
        if ranks == (1,):
            single[app, facts["cluster"], facts["local_batch"]] = seconds
        else:
            rows.append((app, facts["cluster"], facts["local_batch"], ranks, seconds))
    kept = [row for row in rows if row[:3] in single]
    places = [str((cluster, max(ranks), len(ranks))) for _, cluster, _, ranks, _ in kept]
    return ScalingTable(
        app=np.array([row[0] for row in kept]),
        cluster=np.array([row[1] for row in kept]),
        place=np.unique(np.array(places), return_inverse=True)[1],
        single_s=np.array([single[row[:3]] for row in kept]),
        step_s=np.array([row[4] for row in kept]),
    )


def left_out(table: ScalingTable) -> FloatArray:
    """(n,) log(predicted / measured step) of every run, its application unseen."""
    cells = _cells(table)
    found = np.zeros(len(table.app))
    for (name, place), cell in cells.items():
        others = {app: other for (app, at), other in cells.items() if at == place and app != name}
        steady = [other.error for app, other in others.items() if app not in VARYING]
        best = int(np.sum(steady, axis=0).argmin()) if steady else 0
        like = [other.contention_s[best] for app, other in others.items() if app in VARYING]
        contention_s = float(np.mean(like)) if like and name in VARYING else 0.0
        found[cell.runs] = np.log((cell.expected_s[:, best] + contention_s) / table.step_s[cell.runs])
    return found


def with_sight(table: ScalingTable) -> FloatArray:
    """(n,) as `left_out`, both numbers from the application's own runs at the place."""
    found = np.zeros(len(table.app))
    for cell in _cells(table).values():
        best = int(cell.error.argmin())
        expected_s = cell.expected_s[:, best] + cell.contention_s[best]
        found[cell.runs] = np.log(expected_s / table.step_s[cell.runs])
    return found


def _cells(table: ScalingTable) -> _Cells:
    """Runs of each application at each place."""
    return {
        (str(name), int(place)): _cell(table, str(name), (table.app == name) & (table.place == place))
        for name in np.unique(table.app)
        for place in np.unique(table.place[table.app == name])
    }


def _cell(table: ScalingTable, name: str, chosen: NDArray[np.bool_]) -> _Cell:
    runs = np.flatnonzero(chosen)
    single_s, step_s = table.single_s[runs, None], table.step_s[runs, None]
    exchange_s = _PER_BYTE_S * GRADIENT_BYTES[name]
    exposed_s = np.maximum(exchange_s - _BACKWARD_SHARE * single_s, exchange_s * LAST_BUCKET_SHARE[name])
    expected_s = single_s + exposed_s
    contention_s = np.zeros(len(_PER_BYTE_S))
    if name in VARYING:
        contention_s = np.maximum(np.median(step_s - expected_s, axis=0), 0.0)
    error = np.abs(np.log((expected_s + contention_s) / step_s)).mean(axis=0)
    return _Cell(runs, expected_s, contention_s, error)


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
            *(_text(errors[(table.app == name) & (table.cluster == cluster)]) for cluster in clusters),
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


def _text(errors: FloatArray) -> str:
    return f"{errors.mean():.1%} / {np.median(errors):.1%}" if errors.size else "-"
