"""Backward passes that users see: two products a layer where forward has one, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor import PredictionRequest, Predictor
from predictor.features.architectures import architecture
from predictor.features.programs.work import Family, Phase
from predictor.types import Mode, Precision

RESNET = Path(__file__).parents[2] / "examples" / "resnet50.onnx"
# Twice the arithmetic, more of the traffic, and weight gradients that sum over all samples.
LEAST, MOST = 1.5, 3.2
MOST_TIMES_ALONE = 1.6


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
    assert min(LEAST, 0.9 * floor_ratio(predictor, request)) < parts["backward"] / parts["forward"] < MOST


def floor_ratio(predictor: Predictor, request: PredictionRequest) -> float:
    """What rates and bytes alone make of both passes: 1.48 for ResNet-50 of 32 images in AMP on an H100."""
    program, costs = predictor.priced(request)
    floor_s, phase = costs.unique.floor_s[costs.index], [op.work.phase for op in program.ops]
    forward, backward = (np.array([p is name for p in phase]) for name in (Phase.FORWARD, Phase.BACKWARD))
    return float(floor_s[backward].sum() / floor_s[forward].sum())


@pytest.mark.parametrize("device", ["a100-sxm-80gb", "h100-sxm-80gb", "v100-sxm-16gb", "rtx-3090-24gb"])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
@pytest.mark.parametrize("model", ["gpt2", "resnet50"])
def test_kernels_that_stream_take_about_the_time_of_their_bytes(
    predictor: Predictor, model: str, precision: Precision, device: str
) -> None:
    # Sums over iterations once gave pointwise gradients four times their bytes' time, copies ten times.
    graph = RESNET if model == "resnet50" else architecture("gpt2", batch=64, sequence=512, training=True)
    request = PredictionRequest(graph, device, batch=64, mode=Mode.TRAIN, precision=precision)
    program, costs = predictor.priced(request)
    for family in (Family.ELEMENTWISE, Family.COPY, Family.SOFTMAX):
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            ops = [op.work.family is family and op.work.phase is phase for op in program.ops]
            # A softmax's gradient is two kernels: the product with what comes back, and the sums.
            kernels = 2 if family is Family.SOFTMAX and phase is Phase.BACKWARD else 1
            alone_s = kernels * costs.op_level_time_s[ops].sum()
            assert costs.time_s[ops].sum() <= MOST_TIMES_ALONE * alone_s
