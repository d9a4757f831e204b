from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from predictor.errors import InvalidData, PerfcastError
from predictor.evaluation.neusight import (
    PUBLISHED,
    Cell,
    Scored,
    neusight_rows,
    read_cells,
    request_of,
    score_cells,
)
from predictor.evaluation.report import cells_table, scores_table, write_report
from predictor.features.reading.reader import read_graph
from predictor.hardware.catalog import find_device
from predictor.request import PredictionRequest
from predictor.types import Interval, Mode, Optimizer, Runtime

FULL = dict.fromkeys(PUBLISHED, 1.2)


def cell(**changes: object) -> Cell:
    facts: dict[str, object] = {
        "device": "Tesla_T4",
        "model": "bert_base",
        "mode": "inf",
        "sequence": 128,
        "batch": 2,
        "option": "",
        "measured_s": 1.0,
        "published_s": FULL,
    }
    return Cell(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    labels = [
        {
            "device": "Tesla_T4",
            "model": "bert_large",
            "mode": "inf",
            "seqlen": 512,
            "batch": 8,
            "option": None,
        },
        {
            "device": "NVIDIA_L4",
            "model": "bert_large",
            "mode": "inf",
            "seqlen": 512,
            "batch": 8,
            "option": "fusion",
        },
    ]
    passes = {"e2e_latency_ms": 500.0, "fw_latency_ms": 200.0, "bwall_latency_ms": 300.0}
    pl.DataFrame([{**row, **passes} for row in labels]).write_csv(tmp_path / "e2e_labels.csv")
    pl.DataFrame([{**labels[0], "predictor": name, "e2e_latency_ms": 600.0} for name in PUBLISHED]).write_csv(
        tmp_path / "e2e_predictions_of_published_predictors.csv"
    )
    return tmp_path


def test_cells_carry_the_published_predictions(folder: Path) -> None:
    first, second = read_cells(folder)
    assert first.measured_s == 0.5
    assert first.passes_s == (0.2, 0.3)
    assert first.published_s == dict.fromkeys(PUBLISHED, 0.6)
    assert first.is_compared
    assert (second.group, second.published_s, second.is_compared) == ("fused", {}, False)


def test_absent_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"e2e_labels\.csv"):
        read_cells(tmp_path)


@pytest.mark.parametrize(
    ("changes", "group"),
    [
        ({}, "unfused"),
        ({"option": "fusion"}, "fused"),
        ({"device": "AMD_Instinct_MI100"}, "amd"),
        ({"device": "NVIDIA_A100-SXM4-40GB", "option": "dp4"}, "four_devices"),
    ],
)
def test_groups(changes: dict[str, object], group: str) -> None:
    assert cell(**changes).group == group
    assert find_device(cell(**changes).device_id)


def test_requests_say_how_the_cell_ran() -> None:
    training = request_of(cell(mode="train"))
    assert (training.mode, training.optimizer, training.runtime) == (
        Mode.TRAIN,
        Optimizer.NONE,
        Runtime.EAGER,
    )
    assert isinstance(training.graph, bytes)
    ops = {node.op_type for node in read_graph(training.graph).nodes}
    assert {"SoftmaxCrossEntropyLoss", "Dropout"} <= ops
    fused = request_of(cell(option="fusion"))
    assert (fused.mode, fused.runtime) == (Mode.INFER, Runtime.COMPILED)
    shared = request_of(cell(option="dp4", batch=8))
    assert (shared.plan.dp, shared.batch) == (4, 8)
    assert isinstance(shared.graph, bytes)
    assert read_graph(shared.graph).batch == 2


class _Fixed:
    """Answers every request alike, or not at all."""

    def __init__(self, answer: Interval | PerfcastError) -> None:
        self.answer = answer

    def predict(self, request: PredictionRequest) -> object:
        if isinstance(self.answer, PerfcastError):
            raise self.answer

        class Answer:
            iteration_time_s = self.answer

        return Answer


def test_cells_are_scored_and_failures_say_why() -> None:
    answer = Interval(1.1, 0.9, 1.3)
    scored = score_cells([cell(), cell(option="tp4")], _Fixed(answer))  # type: ignore[arg-type]
    assert scored[0].time == answer
    assert scored[1].time is None
    assert "tp4" in scored[1].reason
    (failed,) = score_cells([cell()], _Fixed(InvalidData("no way")))  # type: ignore[arg-type]
    assert failed.reason == "no way"


def test_rows_by_hand() -> None:
    scored = [
        Scored(cell(), Interval(1.1, 0.9, 1.3)),
        Scored(cell(device="NVIDIA_L4"), Interval(0.7, 0.6, 0.8)),
        Scored(cell(option="fusion", published_s={}), Interval(1.0, 0.9, 1.1)),
        Scored(cell(option="tp4", device="NVIDIA_A100-SXM4-40GB", published_s={}), None, "no"),
    ]
    rows = {(row.group, row.metric): row for row in neusight_rows(scored)}
    assert rows["all", "mape"].value == pytest.approx(0.2)
    assert rows["all", "mape"].n == 2
    assert rows["all", "coverage"].value == 0.5
    assert rows["published:neusight", "mape"].value == pytest.approx(0.2)
    assert rows["fused", "mape"].value == 0.0
    assert rows["device:NVIDIA_L4", "mape"].value == pytest.approx(0.3)
    assert ("four_devices", "mape") not in rows


def test_the_report_shows_scores_and_cells(tmp_path: Path) -> None:
    scored = [Scored(cell(), Interval(1.1, 0.9, 1.3)), Scored(cell(option="tp4"), None, "not priced")]
    rows = neusight_rows(scored)
    write_report(tmp_path / "docs" / "neusight.md", "neusight", "sha256:1", rows, [cells_table(scored)])
    text = (tmp_path / "docs" / "neusight.md").read_text()
    assert "bundle `sha256:1`" in text
    assert "| all | 1 | 10.0 % (goal 10.4 %) |" in text
    assert (
        "| Tesla_T4 | bert_base inf 128x2 | unfused | 1000.0 | 1100.0 | 900-1300 | +10.0 % | +20.0 % |"
        in text
    )
    assert "not priced" in text
    assert scores_table(rows).lines[0][0] == "all"
