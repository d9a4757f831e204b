"""Devices without measured operators are priced by physics, and the answer says so."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

from predictor import PredictionRequest, Predictor
from predictor.types import Runtime

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.mark.parametrize(
    ("device", "spread"),
    [("pixel-3", 2.0), ("tpu-v4", 3.0), ("gaudi2-oam-96gb", 3.0)],
)
def test_nothing_is_called_learned(predictor: Predictor, device: str, spread: float) -> None:
    answer = predictor.predict(PredictionRequest(str(EXAMPLES / "resnet50.onnx"), device, batch=1))
    assert answer.coverage.learned == 0
    assert answer.out_of_range
    time = answer.iteration_time_s
    # Families are taken as independent, so the sum is somewhat surer than each of them.
    assert log(spread) * 0.6 < log(time.high / time.value) <= log(spread) * 1.001


def test_a_resnet50_on_a_desktop_cpu(predictor: Predictor) -> None:
    request = PredictionRequest(
        str(EXAMPLES / "resnet50.onnx"), "core-i9-10940x", batch=1, runtime=Runtime.COMPILED
    )
    time = predictor.predict(request).iteration_time_s
    # Measured there at 224 pixels: 15.39 ms (public timm table, FP32, torch.compile).
    assert time.low < 0.01539 < time.high


def test_gpu_modules_keep_the_learned_models(predictor: Predictor) -> None:
    answer = predictor.predict(
        PredictionRequest(str(EXAMPLES / "resnet50.onnx"), "jetson-agx-orin-64gb", batch=1)
    )
    assert answer.coverage.learned > 0.5
