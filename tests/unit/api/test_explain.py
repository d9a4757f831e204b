"""What an explanation lists: conversions of images where a device runs them, and under their own name."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from predictor import PredictionRequest, Predictor
from predictor.cli.main import app
from predictor.features.programs.work import IMAGE_CONVERSION
from predictor.types import Layout, Precision


@pytest.mark.parametrize(
    ("device", "layout", "converts"),
    [
        ("t4-pcie-16gb", Layout.NCHW, True),
        ("t4-pcie-16gb", Layout.NHWC, False),
        ("gtx-1080-ti-11gb", Layout.NCHW, False),
    ],
)
def test_conversions_are_listed_where_they_run(device: str, layout: Layout, converts: bool) -> None:
    request = PredictionRequest(
        "examples/resnet50.onnx", device, batch=8, precision=Precision.FP16, layout=layout
    )
    rows = Predictor.load().explain(request).rows
    assert any(row.kind == IMAGE_CONVERSION for row in rows) == converts
    assert all(row.time_s for row in rows)


def test_the_table_names_conversions() -> None:
    job = ("examples/resnet50.onnx", "--device", "a100-sxm-80gb", "--batch", "8", "--precision", "fp16")
    assert IMAGE_CONVERSION in CliRunner().invoke(app, ["explain", *job]).stdout
