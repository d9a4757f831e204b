"""Average board power of training jobs, devices left out, through the public Predictor.

The power model and the op-time model under it are trained without the device that is scored, under all its
names.
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
from predictor.evaluation.rows import EvaluationRow, absolute_errors, coverage_row, error_rows
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
HOLD = "device"


@dataclass(frozen=True, slots=True)
class PowerCell:
    """One measured average power (repeats averaged) and our answer; watts."""

    device: str
    group: str
    subject: str
    limit_w: float
    measured_w: float
    predicted_w: float
    low_w: float
    high_w: float


def score_power(corpus: Path, bundle: Bundle, *, progress: Progress = silent) -> tuple[PowerCell, ...]:
    """Every power row of the corpus predicted by models that never saw its device."""
    import polars as pl

    rows = pl.concat([read_source(corpus, source) for source in POWER_SOURCES])
    devices = {name: find_device(name) for name in OP_DEVICES}
    tables = load_tables(corpus, OP_SOURCE, devices)
    groups = sorted(set(rows["device_group"]))
    cells: list[PowerCell] = []
    for done, group in enumerate(groups):
        progress(SUITE, done, len(groups))
        held, rest = (
            rows.filter(pl.col("device_group") == group),
            rows.filter(pl.col("device_group") != group),
        )
        chips = {_chip(name) for name in held["device"].unique()}
        op_time = _op_time_without(tables, chips, bundle)
        samples = power_samples(rest, OpTimeModel.from_trained(op_time), find_device)
        with TemporaryDirectory() as folder:
            replaced = {OP_TIME: op_time, POWER: train_power(samples)}
            cells += _score(held, predictor_with(bundle, replaced, Path(folder) / "bundle"))
    progress(SUITE, len(groups), len(groups))
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


def _score(rows: Any, predictor: Predictor) -> list[PowerCell]:
    readings: dict[tuple[str, str, str, str], list[float]] = {}
    power = rows.filter(rows["quantity"] == "average_power")
    columns = ("subject", "device", "device_group", "configuration", "value")
    for subject, device, group, text, value in power.select(columns).sort(columns).iter_rows():
        facts = {key: fact for key, fact in json.loads(text).items() if key not in ("run", "images")}
        readings.setdefault((subject, device, group, json.dumps(facts, sort_keys=True)), []).append(value)
    cells = []
    for (subject, device, group, text), values in sorted(readings.items()):
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
        cells.append(
            PowerCell(
                device, group, subject, limit_w, float(np.mean(values)), answer.value, answer.low, answer.high
            )
        )
    return cells


def power_evaluation_rows(cells: Sequence[PowerCell]) -> list[EvaluationRow]:
    """Errors and interval coverage over all rows, and per device left out."""
    rows = _rows(cells, "all")
    for group in sorted({cell.group for cell in cells}):
        rows += _rows([cell for cell in cells if cell.group == group], f"device:{group}")
    return rows


def _rows(cells: Sequence[PowerCell], group: str) -> list[EvaluationRow]:
    errors = absolute_errors([c.predicted_w for c in cells], [c.measured_w for c in cells])
    inside = [c.low_w <= c.measured_w <= c.high_w for c in cells]
    return [
        *error_rows(errors, id="J4", suite=SUITE, hold=HOLD, group=group),
        *coverage_row(inside, id="J4", suite=SUITE, hold=HOLD, group=group),
    ]
