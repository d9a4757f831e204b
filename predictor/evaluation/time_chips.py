"""Whole-model timings of a chip by fits without a row of the chip, in any source (T2, T4, T6-T8).

One table of all sources (timm's rows and kernels thinned, never scored ones), priced by the bundle's op
level; rows of a chip that was measured there are priced by one that never saw its operators and kernels. A
chip leaves under every name, memory size and form factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from predictor.evaluation.few_rows import KnownCell, job_samples
from predictor.evaluation.time_held import Held, joined_held
from predictor.evaluation.whole_model_sources import ScoredCell, is_asked, sampled_cells
from predictor.features.programs.work import Family
from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.calibration import Spread
from predictor.models.corpus import lambda_pytorch, neusight_cells, pytorch_gpu_benchmark, timm
from predictor.models.corpus.build import Progress, missing_sources, silent
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import WholeModelRow, whole_model_rows
from predictor.models.device_calibration import Sample
from predictor.models.ops.kernel_tables import TWINS, load_kernel_tables
from predictor.models.ops.kernel_training import general_kernels
from predictor.models.ops.op_rows import OpTable, load_tables
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.ops.op_training import fit_op_time
from predictor.models.steps.boosting import Fitted
from predictor.models.steps.kernels import kernel_table
from predictor.models.steps.rows import AggregateTable, aggregate_table, joined_tables
from predictor.models.steps.step_time import UNSEEN
from predictor.models.steps.training import SETTINGS, TRAINED, Refits, thinned
from predictor.models.train import KERNEL_DEVICES, KERNEL_SOURCES, OP_DEVICES, OP_SOURCE, SEED

LAMBDA, TORCHVISION, CELLS = lambda_pytorch.SOURCE, pytorch_gpu_benchmark.SOURCE, neusight_cells.SOURCE
ADA, ANCHOR = "rtx4090", "rtx3090"
ADA_DEVICE = "rtx-4090-24gb"
_THINNING, _KERNEL_THINNING = 8, 3


@dataclass(frozen=True, slots=True)
class ChipsHeld:
    """What fits without a chip say of its rows.

    Attributes:
        cells: NeuSight's cells. known: those on NVIDIA's chips, for calibration by a few of them.
        micro: single FP32 operators on those chips.
        ada, anchor: timm's inference on the RTX 4090, left out, and by the same fit on the RTX 3090.
        ada_samples: those on the RTX 4090, for calibration by a few of them.
        plain: source -> cells as a user is answered. as_timed: with what its source's harness adds, as other
            chips show it. timed: all rows of `as_timed`.
    """

    cells: Held
    known: Sequence[KnownCell]
    micro: Sequence[KnownCell]
    ada: Held
    anchor: Held
    ada_samples: Sequence[Sample]
    plain: Mapping[str, list[ScoredCell]]
    as_timed: Mapping[str, list[ScoredCell]]
    timed: Held


def chips_left_out(corpus: Path, pricing: OpTimeModel, progress: Progress = silent) -> ChipsHeld:
    """Every chip that is scored, left out in turn; `pricing`: the op level of the bundle.

    Raises InvalidData: corpus incomplete.
    """
    vectors = load_tables(corpus, OP_SOURCE, {name: find_device(name) for name in OP_DEVICES})
    kernels = _Kernels(corpus)
    measured = set(map(chip_of, (*OP_DEVICES, *KERNEL_DEVICES)))
    everything, cards = _tables(corpus, pricing, progress)
    chips = everything.text("device_group")
    kinds = np.array([_kind(name) for name in chips])
    refits = Refits(everything, find_device, SETTINGS[UNSEEN], SEED)
    scored = np.isin(everything.source, (LAMBDA, TORCHVISION, CELLS))
    found: dict[str, list[Held]] = {"cells": [], "timed": []}
    known: list[KnownCell] = []
    micro: list[KnownCell] = []
    plain: dict[str, list[ScoredCell]] = {LAMBDA: [], TORCHVISION: []}
    as_timed: dict[str, list[ScoredCell]] = {LAMBDA: [], TORCHVISION: []}
    holds = sorted({*chips[scored], ADA})
    for done, chip in enumerate(holds):
        progress("chips left out", done, len(holds))
        fitted = refits.without(kinds == _kind(chip))
        blind = _op_time(vectors, kernels, without=chip) if chip in measured else None
        for source in sorted(set(everything.source[scored & (chips == chip)])):
            inside = (everything.source == source) & (chips == chip)
            own = everything.take(inside) if blind is None else _priced_by(blind, source, corpus, chip)
            held = Held(own, fitted.log_times(own, find_device, harness=True))
            samples = job_samples(fitted, own)
            if source == CELLS:
                found["cells"].append(held)
                pairs = zip(own.rows, samples, strict=True)
                known += [KnownCell(row, sample) for row, sample in pairs if not row.device.startswith("mi")]
                micro += _operators(corpus, fitted, blind or pricing, chip)
                continue
            found["timed"].append(held)
            plain[source] += sampled_cells(own, samples)
            timed = sampled_cells(own, job_samples(fitted, own, harness=True))
            as_timed[source] += [_told(cell, held) for cell in timed]
        if chip == ADA:
            ada, anchor = (_cards(fitted, cards, name) for name in (ADA, ANCHOR))
            ada_samples = job_samples(fitted, ada.table)
    progress("chips left out", len(holds), len(holds))
    cells, all_timed = (joined_held(found[name]) for name in ("cells", "timed"))
    return ChipsHeld(cells, known, micro, ada, anchor, ada_samples, plain, as_timed, all_timed)


def _told(cell: ScoredCell, held: Held) -> ScoredCell:
    """A cell with the answer that knows its source's harness."""
    place = next(i for i, row in enumerate(held.table.rows) if row is cell.row)
    return replace(cell, answer=(float(np.exp(held.log_time[place])),) * 3)


def _operators(corpus: Path, fitted: Fitted, op_time: OpTimeModel, chip: str) -> list[KnownCell]:
    """NeuSight's operators on a chip, as a fit without it sees them."""
    table = kernel_table(corpus, op_time, find_device, SEED, keep=lambda device: chip_of(device) == chip)
    if table is None:
        return []
    own = table.take(table.source == OP_SOURCE)
    pairs = zip(own.rows, job_samples(fitted, own), strict=True)
    return [KnownCell(row, sample) for row, sample in pairs]


def _cards(fitted: Fitted, table: AggregateTable, chip: str) -> Held:
    own = table.take(table.text("device_group") == chip)
    return Held(own, fitted.log_times(own, find_device))


def _tables(corpus: Path, pricing: OpTimeModel, progress: Progress) -> tuple[AggregateTable, AggregateTable]:
    """All sources, thinned; and all of timm's inference on both cards, scored or anchor."""
    parts, cards = [], None
    for name in TRAINED:
        if missing_sources(corpus, [name]) or not any(map(is_asked, whole_model_rows(corpus, name))):
            continue
        table = aggregate_table(name, corpus, pricing, find_device, keep=is_asked, progress=progress)
        if name == timm.SOURCE:
            cards = table.take(np.array([row.mode == "infer" for row in table.rows]))
        parts.append(table.take(thinned(table, _THINNING)))
    kernels = kernel_table(corpus, pricing, find_device, SEED, progress=progress)
    if kernels is not None:
        parts.append(kernels.take(np.arange(len(kernels)) % _KERNEL_THINNING == 0))
    assert cards is not None
    return joined_tables(parts), cards


class _Kernels:
    """Boosters of kernels on unmeasured devices, fitted once for all chips that are not among theirs."""

    def __init__(self, corpus: Path) -> None:
        self._devices = {name: find_device(name) for name in KERNEL_DEVICES}
        self._tables = load_kernel_tables(corpus, KERNEL_SOURCES, self._devices)
        self._kinds = {_kind(chip_of(name)) for name in self._devices}
        self._fitted: dict[str, TrainedModel] = {}

    def without(self, chip: str) -> TrainedModel:
        gone = _kind(chip) if _kind(chip) in self._kinds else ""
        if gone not in self._fitted:
            rest = {model: own.take(own.chip != gone) for model, own in self._tables.items()}
            self._fitted[gone] = general_kernels(rest, self._devices, SEED)
        return self._fitted[gone]


def _kind(chip: str) -> str:
    """What leaves together: chips that differ in memory or clock alone are one."""
    return TWINS.get(chip, chip)


def _op_time(tables: Mapping[Family, OpTable], kernels: _Kernels, without: str) -> OpTimeModel:
    """An op-level model that never saw a chip."""
    kept = [name for name in OP_DEVICES if chip_of(name) != without]
    spreads = {family: Spread(1.0, 1.0) for family in tables}
    smaller = {family: table.take(np.isin(table.device, kept)) for family, table in tables.items()}
    devices = {name: find_device(name) for name in kept}
    trained = fit_op_time(smaller, devices, spreads, SEED, kernels.without(without))
    return OpTimeModel.from_trained(trained)


def _priced_by(op_time: OpTimeModel, name: str, corpus: Path, chip: str) -> AggregateTable:
    return aggregate_table(name, corpus, op_time, find_device, keep=partial(_is_of, chip))


def _is_of(chip: str, row: WholeModelRow) -> bool:
    return row.device_group == chip and is_asked(row)
