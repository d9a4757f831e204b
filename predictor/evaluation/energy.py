"""Average board power of training jobs, devices or workloads left out, through the public Predictor.

With a device left out, the power model and the op-time model under it are trained without it, under all its
names. With a workload left out, the op-time model is the bundle's: it knows ops, not networks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from predictor.api import Predictor
from predictor.evaluation.held_out import predictor_with
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows, scored_rows
from predictor.features.work import Family
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.calibration import Spread
from predictor.models.corpus.build import Progress, read_source, silent
from predictor.models.op_rows import OpTable, load_tables
from predictor.models.op_time import MODEL_NAME as OP_TIME
from predictor.models.op_time import OpTimeModel
from predictor.models.op_training import fit_op_time
from predictor.models.power import MODEL_NAME as POWER
from predictor.models.power_rows import OPTIMIZERS, job_graph, power_samples
from predictor.models.power_training import train_power
from predictor.models.train import OP_DEVICES, OP_SOURCE, POWER_SOURCES, SEED
from predictor.request import PredictionRequest
from predictor.types import Mode

SUITE = "energy"
DEVICE, WORKLOAD = "device", "workload"


@dataclass(frozen=True, slots=True)
class PowerCell:
    """One measured average power (repeats averaged) and our answer; watts.

    `hold` says what the models never saw, `group` which one of it.
    """

    hold: str
    device: str
    group: str
    subject: str
    limit_w: float
    measured_w: float
    predicted_w: float
    low_w: float
    high_w: float


def score_power(corpus: Path, bundle: Bundle, *, progress: Progress = silent) -> tuple[PowerCell, ...]:
    """Every power row predicted twice: by models that never saw its device, and never saw its workload."""
    import polars as pl

    rows = pl.concat([read_source(corpus, source) for source in POWER_SOURCES])
    chips, networks = sorted(set(rows["device_group"])), sorted(set(rows["model_group"]))
    devices = {name: find_device(name) for name in OP_DEVICES}
    tables = load_tables(corpus, OP_SOURCE, devices)
    seen = power_samples(rows, OpTimeModel.from_bundle(bundle), find_device)
    total, cells = len(chips) + len(networks), []
    for done, group in enumerate(chips):
        progress(SUITE, done, total)
        held = rows.filter(pl.col("device_group") == group)
        op_time = _op_time_without(tables, {_chip(name) for name in held["device"].unique()}, bundle)
        rest = rows.filter(pl.col("device_group") != group)
        samples = power_samples(rest, OpTimeModel.from_trained(op_time), find_device)
        cells += _score(DEVICE, group, held, bundle, {OP_TIME: op_time, POWER: train_power(samples)})
    for done, group in enumerate(networks, start=len(chips)):
        progress(SUITE, done, total)
        power = train_power([sample for sample in seen if sample.model_group != group])
        cells += _score(WORKLOAD, group, rows.filter(pl.col("model_group") == group), bundle, {POWER: power})
    progress(SUITE, total, total)
    return tuple(cells)


def _chip(device_id: str) -> str:
    """`v100-pcie-32gb` -> `v100`: the part of an id before form factor and memory."""
    return device_id.split("-")[0]


def _op_time_without(tables: Mapping[Family, OpTable], chips: set[str], bundle: Bundle) -> TrainedModel:
    kept = {name: find_device(name) for name in OP_DEVICES if _chip(name) not in chips}
    families: Mapping[str, Any] = bundle.params(OP_TIME)["families"]
    spreads = {Family(name): Spread.from_json(model["spread"]) for name, model in families.items()}
    smaller = {family: table.take(np.isin(table.device, list(kept))) for family, table in tables.items()}
    return fit_op_time(smaller, kept, spreads, SEED)


def _score(
    hold: str, group: str, rows: Any, bundle: Bundle, replaced: Mapping[str, TrainedModel]
) -> list[PowerCell]:
    with TemporaryDirectory() as folder:
        predictor = predictor_with(bundle, replaced, Path(folder) / "bundle")
        return _answers(hold, group, rows, predictor)


def _answers(hold: str, held: str, rows: Any, predictor: Predictor) -> list[PowerCell]:
    readings: dict[tuple[str, str, str], list[float]] = {}
    power = rows.filter(rows["quantity"] == "average_power")
    columns = ("subject", "device", "configuration", "value")
    for subject, device, text, value in power.select(columns).sort(columns).iter_rows():
        facts = {key: fact for key, fact in json.loads(text).items() if key not in ("run", "images")}
        readings.setdefault((subject, device, json.dumps(facts, sort_keys=True)), []).append(value)
    cells = []
    for (subject, device, text), values in sorted(readings.items()):
        facts = json.loads(text)
        limit_w = float(facts["power_limit_w"])
        answer = predictor.predict(
            PredictionRequest(
                graph=job_graph(subject, str(facts.get("dataset", "")), int(facts["batch"])),
                device=device,
                mode=Mode.TRAIN,
                precision=facts["precision"],
                optimizer=OPTIMIZERS[facts["optimizer"]],
                power_limit_w=limit_w,
            )
        ).average_power_w
        measured = float(np.mean(values))
        cells.append(
            PowerCell(hold, device, held, subject, limit_w, measured, answer.value, answer.low, answer.high)
        )
    return cells


def power_evaluation_rows(cells: Sequence[PowerCell]) -> list[EvaluationRow]:
    """Errors and interval coverage over all rows and per group left out, beside the usual guess.

    The guess of the baseline rows is that a job draws its power limit.
    """
    rows: list[EvaluationRow] = []
    for hold in (DEVICE, WORKLOAD):
        own = [cell for cell in cells if cell.hold == hold]
        rows += _rows(own, hold, "all" if hold == DEVICE else f"{hold}:all")
        for group in sorted({cell.group for cell in own}):
            rows += _rows([cell for cell in own if cell.group == group], hold, f"{hold}:{group}")
    guesses = [cell for cell in cells if cell.hold == DEVICE]
    errors = absolute_errors([cell.limit_w for cell in guesses], [cell.measured_w for cell in guesses])
    return rows + error_rows(errors, id="J4", suite=SUITE, hold="nothing", group="baseline: power limit")


def _rows(cells: Sequence[PowerCell], hold: str, group: str) -> list[EvaluationRow]:
    answers = [(c.predicted_w, c.low_w, c.high_w) for c in cells]
    return scored_rows([c.measured_w for c in cells], answers, id="J4", suite=SUITE, hold=hold, group=group)
