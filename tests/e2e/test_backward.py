"""Backward passes that users see: two products a layer where forward has one, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor import PredictionRequest, Predictor
from predictor.features.architectures import architecture
from predictor.features.programs.work import Family
from predictor.types import Mode, Precision

RESNET = Path(__file__).parents[2] / "examples" / "resnet50.onnx"
# Twice the arithmetic, more of the traffic, and weight gradients that sum over all samples.
LEAST, MOST = 1.5, 3.2


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
@pytest.mark.parametrize("device", ["v100-sxm-16gb", "t4-pcie-16gb", "a100-sxm-80gb", "h100-sxm-80gb"])
@pytest.mark.parametrize(("model", "batch"), [("gpt2", 2), ("gpt2", 64), ("resnet50", 32), ("resnet50", 256)])
def test_backward_takes_about_twice_the_forward_pass(
    predictor: Predictor, model: str, batch: int, device: str, precision: Precision
) -> None:
    graph = RESNET if model == "resnet50" else architecture("gpt2", batch=batch, sequence=512, training=True)
    request = PredictionRequest(graph, device, batch=batch, mode=Mode.TRAIN, precision=precision)
    parts = predictor.predict(request).time_breakdown_s
    assert LEAST < parts["backward"] / parts["forward"] < MOST


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb"])
def test_kernels_that_stream_run_nearly_as_alone_beside_timed_products(
    predictor: Predictor, device: str
) -> None:
    # Sums over iterations once gave pointwise gradients four times their bytes' time, copies ten times.
    graph = architecture("gpt2", batch=16, sequence=1024, training=True)
    request = PredictionRequest(graph, device, batch=16, mode=Mode.TRAIN, precision=Precision.BF16)
    program, costs = predictor.priced(request)
    streams = [op.work.family in {Family.ELEMENTWISE, Family.COPY, Family.SOFTMAX} for op in program.ops]
    assert (costs.time_s <= 2.5 * costs.op_level_time_s * (1 + 1e-9))[streams].all()
