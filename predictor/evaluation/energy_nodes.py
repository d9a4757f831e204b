"""Node power (E4): eight predicted boards and the rest of the node, on MLPerf's metered systems.

The rest is bottom-up, with one factor fitted on the other benchmarks (hold `benchmark`) or none at all
(`nothing fitted`). Boards are predicted by the public Predictor from graphs, batch and plan.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictor.api import Predictor
from predictor.evaluation.energy_jobs import SUITE
from predictor.evaluation.mlperf_jobs import mlperf_job
from predictor.evaluation.rows import EvaluationRow, scored_rows
from predictor.features.reading.reader import read_graph
from predictor.models.corpus.build import read_source
from predictor.models.corpus.mlperf_power import SOURCE
from predictor.models.power.node_power import NODE_LOG_SPREAD, NodeRest, fit_scale, node_rest
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Runtime

FITTED_GOAL, BARE_GOAL = 0.05, 0.12


@dataclass(frozen=True, slots=True)
class NodePoint:
    """One system and benchmark: measured W per node, and the boards that we predict."""

    benchmark: str
    nodes: int
    measured_w: float
    boards_w: float


def node_points(corpus: Path, predictor: Predictor) -> tuple[NodePoint, ...]:
    """The ten points, runs averaged."""
    readings: dict[tuple[str, int, int], list[float]] = {}
    rows = read_source(corpus, SOURCE)
    for subject, text, value in rows.select("subject", "configuration", "value").iter_rows():
        facts = json.loads(text)
        readings.setdefault((subject, int(facts["nodes"]), int(facts["batch"])), []).append(value)
    return tuple(
        NodePoint(benchmark, nodes, float(np.mean(values)), _boards_w(predictor, benchmark, nodes, batch))
        for (benchmark, nodes, batch), values in sorted(readings.items())
    )


def _boards_w(predictor: Predictor, benchmark: str, nodes: int, batch: int) -> float:
    job = mlperf_job(benchmark, nodes, batch)
    answer = predictor.predict(
        PredictionRequest(
            graph=read_graph(job.graph(job.replica_batch)),
            device="h100-sxm-80gb",
            mode=Mode.TRAIN,
            precision=Precision.AMP,
            runtime=Runtime.COMPILED,
            optimizer=Optimizer.parse(job.optimizer),
            plan=job.plan,
            batch=job.replica_batch * job.plan.dp,
        )
    )
    return 8 * answer.average_power_w.value


def smc_node() -> NodeRest:
    """The metered node: two sockets, 2 TB of memory, immersed (no fans)."""
    return node_rest(8, memory_gb_per_device=256.0, air_cooled=False)


def node_rows(points: Sequence[NodePoint]) -> list[EvaluationRow]:
    """Errors with the other benchmarks' fit, and with no measured node at all."""
    bare = smc_node()
    fitted = [
        fit_scale(
            bare,
            [p.boards_w for p in points if p.benchmark != point.benchmark],
            [p.measured_w for p in points if p.benchmark != point.benchmark],
        ).node_w(point.boards_w)
        for point in points
    ]
    return [
        *_rows(points, fitted, "benchmark", "node:fitted on the other benchmarks", FITTED_GOAL),
        *_rows(
            points, [bare.node_w(p.boards_w) for p in points], "nothing fitted", "node:bottom-up", BARE_GOAL
        ),
    ]


def _rows(
    points: Sequence[NodePoint], ours: Sequence[float], hold: str, group: str, goal: float
) -> list[EvaluationRow]:
    factor = float(np.exp(NODE_LOG_SPREAD))
    return scored_rows(
        [point.measured_w for point in points],
        [(watts, watts / factor, watts * factor) for watts in ours],
        id="E4",
        suite=SUITE,
        hold=hold,
        group=group,
        goal_mean=goal,
    )
