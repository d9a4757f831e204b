"""Cells, requests and scores of the whole-model sources T7 and T8, and calibration by a few known rows."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.evaluation.few_rows import KnownCell, known_rows
from predictor.evaluation.rows import EvaluationRow
from predictor.evaluation.whole_model_sources import (
    ScoredCell,
    cells_of,
    lambda_rows,
    request_of,
    torchvision_rows,
    worst_cells,
)
from predictor.models.corpus.built_graphs import built_graph
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.device_calibration import CLASSES, Sample
from predictor.types import Mode, Precision


def _row(**changes: object) -> WholeModelRow:
    facts: dict[str, object] = {
        "graph": "resnet50",
        "model": "resnet50",
        "family": "resnet",
        "device": "titan-v-12gb",
        "device_group": "v100",
        "batch": 12,
        "measured_s": 1.0,
        "mode": Mode.TRAIN,
        "precision": Precision.FP32,
        "framework_version": 1.04,
    }
    return WholeModelRow(**{**facts, **changes})  # type: ignore[arg-type]


def _scored(predicted_s: float, **changes: object) -> ScoredCell:
    return ScoredCell(_row(**changes), 1.0, (predicted_s, predicted_s, predicted_s))


def _value(rows: list[EvaluationRow], group: str, metric: str = "mape") -> float:
    return next(row.value for row in rows if row.group == group and row.metric == metric)


def test_equal_rows_are_one_cell_with_the_median_of_their_times() -> None:
    rows = [_row(measured_s=seconds) for seconds in (1.0, 2.0, 9.0)] + [_row(batch=6, measured_s=4.0)]
    assert [(row.batch, seconds) for row, seconds in cells_of(rows)] == [(12, 2.0), (6, 4.0)]


def test_request_of_several_gpus_is_data_parallel_with_the_batch_of_all() -> None:
    graph = built_graph("resnet18", 3, Mode.TRAIN)
    request = request_of(_row(batch=3, devices=4, framework_version=1.1), graph)
    assert (request.batch, request.plan.dp, request.framework_version) == (12, 4, "1.10")
    assert request_of(_row(framework_version=0.0), graph).framework_version == ""


def test_lambda_error_is_the_mean_over_gpus_not_over_rows() -> None:
    cells = [_scored(1.1), _scored(1.1), _scored(1.1), _scored(1.5, device="rtx-3090-24gb")]
    cells += [_scored(2.0, devices=2), ScoredCell(_row(), 1.0, None, "out of memory")]
    rows = lambda_rows(cells, "device", 0.12)
    assert _value(rows, "T7 device: all") == pytest.approx(0.3)
    assert next(row for row in rows if row.goal is not None).n == 4
    assert _value(rows, "T7 device: several GPUs") == pytest.approx(1.0)


def test_torchvision_scores_both_harnesses_apart_and_leaves_double_precision_out() -> None:
    cells = [
        _scored(1.1, framework_version=1.01),
        _scored(1.3),
        _scored(3.0, precision=Precision.FP64),
        _scored(2.0, devices=2),
    ]
    rows = torchvision_rows(cells, "device", 0.12)
    assert _value(rows, "T8 device: harness 2019") == pytest.approx(0.1)
    assert _value(rows, "T8 device: harness 2020+") == pytest.approx(0.3)
    assert _value(rows, "T8 device: double precision") == pytest.approx(2.0)
    assert _value(rows, "T8 device: DataParallel") == pytest.approx(1.0)
    assert {row.group for row in rows if row.goal == 0.12} == {
        "T8 device: harness 2019",
        "T8 device: harness 2020+",
    }


def test_worst_cells_are_ordered_by_ratio_either_way() -> None:
    table = worst_cells("worst", [_scored(1.2, model="a"), _scored(0.25, model="b"), _scored(2.0, model="c")])
    assert [line[0] for line in table.lines] == ["b", "c", "a"]


@pytest.mark.parametrize("known", [1, 4])
def test_known_rows_remove_what_is_common_to_a_machine(known: int) -> None:
    random = np.random.default_rng(0)
    chips = {"titan-v-12gb": "v100", "rtx-3090-24gb": "ga102", "t4": "tu104", "a100-sxm-40gb": "ga100"}
    cells = []
    for (device, chip), factor in zip(chips.items(), (0.5, 0.7, 1.5, 2.0), strict=True):
        for _ in range(30):
            kernel_s = random.uniform(0.2, 1.0, len(CLASSES))
            measured_s = float(kernel_s.sum() * factor * np.exp(random.normal(0.0, 0.02)))
            row = _row(device=device, device_group=chip)
            cells.append(KnownCell(row, Sample(kernel_s, 1e-4, measured_s)))
    (found,) = known_rows(cells, "T7", "time", lambda row: row.device, known=known)
    assert found.value < 0.06
    assert found.n == 120
