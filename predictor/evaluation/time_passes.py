"""Forward and backward passes that NeuSight timed apart: are the parts of an answer right, not its sum alone.

No fit sees these times; what trains is their sum, of other models.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from predictor.evaluation.neusight import Cell, read_cells
from predictor.evaluation.rows import EvaluationRow, error_rows
from predictor.evaluation.time_held import SUITE, BoolArray
from predictor.features.programs.work import Phase
from predictor.features.programs.work_table import PHASES
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.catalog import find_device
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.steps.boosting import Fitted
from predictor.models.steps.features import FEATURES
from predictor.models.steps.rows import AggregateTable
from predictor.types import Runtime

PASSES = (Phase.FORWARD, Phase.BACKWARD)
_PHASE = FEATURES.index("phase")


def pass_seconds(fitted: Fitted, table: AggregateTable) -> FloatArray:
    """(r, 2) device seconds of each iteration's forward and backward pass."""
    op_s = fitted.op_seconds(table, find_device)
    phase = table.features[:, _PHASE]
    sums = [
        np.bincount(table.row, weights=op_s * (phase == PHASES.index(name)), minlength=len(table))
        for name in PASSES
    ]
    return np.stack(sums, axis=1).astype(np.float64)


def pass_rows(table: AggregateTable, seconds: FloatArray, root: Path) -> list[EvaluationRow]:
    """Errors on training cells; `seconds` (r, 2) by fits without the model of each iteration."""
    parts_s: dict[tuple[str, str, int] | None, tuple[float, float]] = {
        _key(cell): cell.passes_s for cell in read_cells(root / "neusight") if cell.passes_s[1] > 0
    }
    measured_s = np.array([parts_s.get(_row_key(row), (np.nan, np.nan)) for row in table.rows])
    timed: BoolArray = np.isfinite(measured_s[:, 0])
    rows = []
    for j, name in enumerate(PASSES):
        errors = np.abs(seconds[timed, j] / measured_s[timed, j] - 1)
        rows += error_rows(errors, id="T1", suite=SUITE, hold="model", group=f"training, {name.value} pass")
    return rows


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.device_id, f"{cell.model}-{cell.sequence}", cell.batch


def _row_key(row: WholeModelRow) -> tuple[str, str, int] | None:
    is_training = row.mode == "train" and row.runtime is Runtime.EAGER
    return (row.device, row.graph, row.batch) if is_training else None
