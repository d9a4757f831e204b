"""Energy and power with groups left out, by the acceptance line that each number answers.

With a device left out, the power model and the op-time model under it are trained without it, under all its
names. With a workload or network left out, the op-time model is the bundle's: it knows ops, not networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.api import Predictor
from predictor.evaluation.energy_caps import cap_cells, cap_rows
from predictor.evaluation.energy_drawn import drawn_cells, drawn_rows
from predictor.evaluation.energy_images import GAISSA, image_cells, image_runs, with_step_times
from predictor.evaluation.energy_jobs import (
    SUITE,
    JobCell,
    is_zeus,
    job_rows,
    power_answers,
    power_cells,
)
from predictor.evaluation.energy_kernels import kernel_power_rows
from predictor.evaluation.energy_known import interval_rows, known_rows
from predictor.evaluation.energy_nodes import node_points, node_rows
from predictor.evaluation.energy_serving import serving_rows
from predictor.evaluation.energy_targets import learning_curves, target_rows
from predictor.evaluation.rows import EvaluationRow, absolute_errors, error_rows
from predictor.features.programs.work import Family
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.calibration import Spread
from predictor.models.corpus.build import Progress, read_source, silent
from predictor.models.corpus.ml_energy_diffusion import SOURCE as DRAWN_SOURCE
from predictor.models.corpus.zeus_targets import SOURCE as TARGETS_SOURCE
from predictor.models.ops.op_rows import OpTable, load_tables
from predictor.models.ops.op_time import MODEL_NAME as OP_TIME
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.ops.op_training import fit_op_time
from predictor.models.power.board_power import PowerModel
from predictor.models.power.rows import PowerSample, as_measured, power_samples
from predictor.models.power.training import train_power
from predictor.models.steps.step_time import StepTimeModel
from predictor.models.train import OP_DEVICES, OP_SOURCE, POWER_SOURCES, SEED


def energy_rows(corpus: Path, bundle: Bundle, *, progress: Progress = silent) -> list[EvaluationRow]:
    """All rows of the suite, part by part."""
    import polars as pl

    rows = pl.concat([read_source(corpus, source) for source in POWER_SOURCES])
    op_time, step = OpTimeModel.from_bundle(bundle), StepTimeModel.from_bundle(bundle)
    raw = power_samples(rows, op_time, find_device)
    samples = [as_measured(sample) for sample in raw]
    progress(SUITE, 0, _PARTS)
    capped = list(cap_cells(samples))
    found = [*cap_rows(capped), *target_rows(capped, learning_curves(read_source(corpus, TARGETS_SOURCE)))]
    progress(SUITE, 1, _PARTS)
    cells = list(power_cells(samples))
    progress(SUITE, 2, _PARTS)
    cells += _device_cells(corpus, rows, bundle)
    progress(SUITE, 3, _PARTS)
    timed = [sample if is_zeus(sample) else with_step_times(sample, op_time, step) for sample in raw]
    runs = image_runs(read_source(corpus, GAISSA), timed)
    cells += image_cells(runs, timed)
    progress(SUITE, 4, _PARTS)
    kernels = kernel_power_rows(corpus)
    progress(SUITE, 5, _PARTS)
    served = serving_rows(corpus)
    served += drawn_rows(list(drawn_cells(read_source(corpus, DRAWN_SOURCE), Predictor.load(bundle.path))))
    progress(SUITE, 6, _PARTS)
    nodes = node_rows(node_points(corpus, Predictor.load(bundle.path)))
    progress(SUITE, _PARTS, _PARTS)
    scored = [*kernels, *found, *job_rows(cells), *served, *nodes]
    return [*scored, *known_rows(cells, runs), *interval_rows(scored), *_limit_guess(samples)]


_PARTS = 7


def _device_cells(corpus: Path, rows: Any, bundle: Bundle) -> Iterator[JobCell]:
    """Zeus readings by models that never saw their device, op times included."""
    import polars as pl

    devices = {name: find_device(name) for name in OP_DEVICES}
    tables = load_tables(corpus, OP_SOURCE, devices)
    for chip in sorted(set(rows.filter(pl.col("quantity") == "epoch_time")["device_group"])):
        held = rows.filter(pl.col("device_group") == chip)
        op_time = op_time_without(tables, {_chip(name) for name in held["device"].unique()}, bundle)
        blind = OpTimeModel.from_trained(op_time)
        samples = [as_measured(sample) for sample in power_samples(rows, blind, find_device)]
        trained = train_power([sample for sample in samples if sample.device_group != chip])
        answered = [sample for sample in samples if sample.device_group == chip and is_zeus(sample)]
        yield from power_answers("device", chip, answered, PowerModel.from_trained(trained))


def _chip(device_id: str) -> str:
    """`v100-pcie-32gb` -> `v100`: the part of an id before form factor and memory."""
    return device_id.split("-")[0]


def op_time_without(tables: Mapping[Family, OpTable], chips: set[str], bundle: Bundle) -> TrainedModel:
    """The op-time model as training makes it, without the rows of some chips."""
    kept = {name: find_device(name) for name in OP_DEVICES if _chip(name) not in chips}
    families: Mapping[str, Any] = bundle.params(OP_TIME)["families"]
    spreads = {Family(name): Spread.from_json(model["spread"]) for name, model in families.items()}
    smaller = {family: table.take(np.isin(table.device, list(kept))) for family, table in tables.items()}
    return fit_op_time(smaller, kept, spreads, SEED)


def _limit_guess(samples: Sequence[PowerSample]) -> list[EvaluationRow]:
    """The usual guess beside ours: a job draws its power limit."""
    zeus = [sample for sample in samples if is_zeus(sample)]
    errors = absolute_errors([s.limit_w for s in zeus], [s.power_w for s in zeus])
    return error_rows(errors, id="E2", suite=SUITE, hold="nothing", group="baseline: power limit")
