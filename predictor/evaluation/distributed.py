"""Iteration times of distributed training that their authors published, predicted from graphs and plans.

D6: the eight rows of Korthikanti et al. 2022 (arXiv:2205.05198): GPT of 22 billion to a trillion parameters
on A100 nodes, with full and with selective recomputation. No row of that paper is trained on.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from predictor.api import Predictor
from predictor.errors import InvalidData
from predictor.evaluation.report import Table
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.models.corpus.build import Progress
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode, Optimizer, Precision, Prediction, Recompute, Schedule

FILE = "distributed_training.csv.gz"
_PAPER = "Korthikanti"
CLUSTER = "dgx-a100-80gb"
GOAL_MEAN = 0.04


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One published iteration time with its configuration."""

    row_id: str
    model: str
    config: MegatronConfig
    sequence: int
    batch: int
    plan: Plan
    devices: int
    measured_s: float


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row with its prediction."""

    row: TrainingRow
    answer: Prediction

    @property
    def error(self) -> float:
        """predicted / measured - 1"""
        return self.answer.iteration_time_s.value / self.row.measured_s - 1


def read_korthikanti(folder: Path) -> tuple[TrainingRow, ...]:
    """The rows of the paper in `folder`/distributed_training.csv.gz. Raises InvalidData."""
    path = folder / FILE
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if _PAPER in row["source_repo"]]
    except (OSError, KeyError, UnicodeDecodeError) as error:
        raise InvalidData(f"{path}: {error}; expected the curated table of distributed training") from None
    return tuple(_training_row(row) for row in rows)


def _training_row(row: Mapping[str, str]) -> TrainingRow:
    def whole(name: str, default: int = 1) -> int:
        return int(float(row[name])) if row[name] else default

    chunks, pp, dp = whole("vpp"), whole("pp"), whole("dp")
    batch, micro = whole("global_batch"), whole("micro_batch")
    kind = row["recompute"].split()[0]
    return TrainingRow(
        row_id=row["row_id"],
        model=row["model"],
        config=MegatronConfig(
            whole("layers"), whole("hidden"), whole("heads"), whole("vocab"), whole("ffn_hidden")
        ),
        sequence=whole("seq_len"),
        batch=batch,
        plan=Plan(
            dp=dp,
            tp=whole("tp"),
            pp=pp,
            sequence_parallel=row["sequence_parallel"] == "1",
            microbatches=batch // (dp * micro),
            schedule=Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B,
            virtual_stages=chunks,
            recompute=Recompute.parse(kind),
        ),
        devices=whole("n_devices"),
        measured_s=float(row["step_time_s"]),
    )


def score(rows: tuple[TrainingRow, ...], predictor: Predictor, progress: Progress) -> list[ScoredRow]:
    """Predictions of all rows."""
    found = []
    for number, row in enumerate(rows):
        progress(f"{row.model} on {row.devices} devices", number, len(rows))
        found.append(ScoredRow(row, predictor.predict(request_of(row))))
    return found


def request_of(row: TrainingRow) -> PredictionRequest:
    """The question that a row answers."""
    nodes = -(-row.devices // 8)
    return PredictionRequest(
        megatron_gpt(row.config, sequence=row.sequence),
        "a100-sxm-80gb",
        batch=row.batch,
        mode=Mode.TRAIN,
        precision=Precision.FP16,
        optimizer=Optimizer.ADAM,
        cluster=f"{CLUSTER}:{nodes}",
        plan=row.plan,
    )


def distributed_rows(scored: list[ScoredRow]) -> list[EvaluationRow]:
    """Errors of all rows, and by recomputation."""
    found: list[EvaluationRow] = []
    groups = {"all": scored} | {
        kind.value: [item for item in scored if item.row.plan.recompute is kind]
        for kind in (Recompute.FULL, Recompute.SELECTIVE)
    }
    for group, items in groups.items():
        found += error_rows(
            np.abs(np.array([item.error for item in items])),
            id="D6",
            suite="distributed",
            hold="source",
            group=group if group == "all" else f"recompute {group}",
            goal_mean=GOAL_MEAN if group == "all" else None,
        )
    return found


def distributed_table(scored: list[ScoredRow]) -> Table:
    """Row by row."""
    cells = []
    for item in scored:
        plan, parts = item.row.plan, item.answer.time_breakdown_s
        total = item.answer.iteration_time_s.value
        cells.append(
            (
                item.row.model,
                str(item.row.devices),
                f"tp {plan.tp}, pp {plan.pp} x {plan.virtual_stages}, {plan.microbatches} microbatches",
                plan.recompute.value,
                f"{item.row.measured_s:.2f}",
                f"{total:.2f}",
                f"{item.error:+.1%}",
                f"{sum(v for k, v in parts.items() if k.endswith('communication')) / total:.0%}",
                f"{parts.get('pipeline_bubble', 0.0) / total:.0%}",
            )
        )
    return Table(
        "Korthikanti et al. 2022",
        (
            *("model", "devices", "plan", "recompute", "measured s", "predicted s", "error"),
            *("exchanges", "bubble"),
        ),
        tuple(cells),
    )
