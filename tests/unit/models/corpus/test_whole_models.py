"""Whole-model rows survive the measurement schema, and stored programs give any batch size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from predictor.errors import InvalidData
from predictor.features.architectures import architecture
from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.models.corpus import programs, timm
from predictor.models.corpus.build import write_table
from predictor.models.corpus.schema import conform
from predictor.models.corpus.whole_model import (
    WholeModelRow,
    measurements,
    reader,
    whole_model_rows,
)
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime

ROW = WholeModelRow(
    graph="resnet50-224",
    model="resnet50",
    family="resnet",
    device="rtx-3090-24gb",
    device_group="rtx3090",
    batch=256,
    measured_s=0.25,
    mode=Mode.TRAIN,
    precision=Precision.AMP,
    layout=Layout.NHWC,
    optimizer=Optimizer.MOMENTUM,
    framework_version=1.12,
    cuda=11.3,
    parameters=25_557_032,
)


def resnet(_source: str, _root: Path, _key: str, batch: int, _mode: Mode) -> Graph:
    return read_graph(architecture("resnet50", batch=batch), batch=batch)


def test_rows_survive_the_schema(tmp_path: Path) -> None:
    write_table(conform(measurements([ROW], "made"), "made"), tmp_path, "made")
    assert whole_model_rows(tmp_path, "made") == [ROW]


def test_a_source_without_models_is_refused() -> None:
    with pytest.raises(InvalidData, match="no whole-model rows"):
        reader("neusight")


def test_two_stored_batches_give_all_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "source_graph", resnet)
    assert programs.build_programs("made", [ROW], tmp_path, tmp_path) == {}
    stored = programs.load_programs("made", tmp_path).get(ROW.job, 48)
    assert stored is not None
    assert stored.parameters == 25_557_032
    program = build_program(
        resnet("", tmp_path, "", 48, Mode.TRAIN),
        mode=ROW.mode,
        precision=ROW.precision,
        optimizer=ROW.optimizer,
        runtime=Runtime.EAGER,
        layout=ROW.layout,
    )
    found: Counter[object] = Counter()
    for work, count in zip(stored.works.works(), stored.count, strict=True):
        found[work] += int(count)
    assert found == Counter(op.work for op in program.ops)
    assert programs.load_programs("made", tmp_path).get(ROW.job, 4) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("tf_efficientnetv2_s", "efficientnetv"),
        ("seresnext50_32x4d", "seresnext"),
        ("vit_base_patch16_224", "vit"),
        ("convnextv2_atto", "convnextv"),
        ("resnet50", "resnet"),
    ],
)
def test_families_are_the_letters_of_a_name(name: str, family: str) -> None:
    assert timm.family(name) == family


def timm_row(model: str, torch: str) -> WholeModelRow | str:
    record = {
        "model": model,
        "torch": torch,
        "samples_per_sec": 1000.0,
        "batch_size": 256,
        "img_size": 224,
        "device": "rtx3090",
        "mode": "infer",
        "cuda": "cu117",
        "precision": "amp",
        "layout": "nhwc",
        "compile": None,
        "param_count": 31.4,
    }
    return timm._row(record, frozenset({("tresnet_m", 224), ("vit_base_patch16_224", 224)}))


def test_networks_that_ran_other_norms_than_their_export_are_left_out() -> None:
    assert "in-place norms" in str(timm_row("tresnet_m", "1.13"))
    assert isinstance(timm_row("tresnet_m.miil_in21k", "2.1.0"), WholeModelRow)


@pytest.mark.parametrize(
    ("torch", "narrow", "release"), [("1.12", False, 1.0), ("1.13", True, 1.0), ("2.4.0", True, 0.0)]
)
def test_a_row_says_what_its_release_ran(torch: str, narrow: bool, release: float) -> None:
    row = timm_row("vit_base_patch16_224", torch)
    assert isinstance(row, WholeModelRow)
    assert (row.job.narrow_norms, row.job.release) == (narrow, release)
