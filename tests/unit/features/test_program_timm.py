"""Multiply-adds and parameters of public exports against the published tables; no op may fall back."""

from __future__ import annotations

import csv
import gzip
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime
from tests.public_data import public_data

pytestmark = pytest.mark.data


@cache
def published(table: Path) -> dict[tuple[str, int], tuple[float, float]]:
    """(giga multiply-adds, million parameters) by model and image size: medians over files."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with gzip.open(table, "rt") as lines:
        for row in csv.DictReader(lines):
            if row["gmacs"] and row["param_count"] and row["img_size"]:
                key = row["model"].split(".")[0], int(float(row["img_size"]))
                found.setdefault(key, []).append((float(row["gmacs"]), float(row["param_count"])))
    return {key: (median(a for a, _ in rows), median(b for _, b in rows)) for key, rows in found.items()}


@pytest.mark.parametrize(
    ("model", "size", "tolerance"),
    [
        ("resnet50", 224, 0.01),
        ("vit_base_patch16_224", 224, 0.01),
        ("convnext_base", 224, 0.01),
        ("swin_base_patch4_window7_224", 224, 0.02),
        ("regnety_032", 224, 0.02),
        ("densenet121", 224, 0.02),
        ("gmixer_24_224", 224, 0.02),
        ("deit3_base_patch16_224", 224, 0.02),
        # Light models: the table rounds to 0.01 G, and its counter includes more than products.
        ("efficientnet_b0", 224, 0.06),
        ("mobilenetv3_large_100", 224, 0.06),
    ],
)
def test_multiply_adds_and_parameters(model: str, size: int, tolerance: float) -> None:
    table = published(public_data("timm_benchmarks", "timm_benchmarks_all.csv.gz"))
    path = public_data("timm_onnx", f"{model}-{size}.onnx.gz")
    program = build_program(
        read_graph(gzip.decompress(path.read_bytes()), batch=1),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.MOMENTUM,
        runtime=Runtime.EAGER,
        strict=True,
    )
    flops = sum(op.work.matrix_flops for op in program.ops if op.work.phase is Phase.FORWARD)
    macs, parameters = table[model, size]
    assert flops / 2e9 == pytest.approx(macs, rel=tolerance)
    assert program.parameter_count / 1e6 == pytest.approx(parameters, rel=0.01)
