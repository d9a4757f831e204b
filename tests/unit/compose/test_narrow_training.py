"""Training with products in FP8 keeps op-level times; all other jobs take what timed iterations teach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.requested import job_context
from predictor.compose.time import ProgramCosts, price_program
from predictor.features.lowering.narrow_products import with_narrow_products
from predictor.hardware.catalog import find_device
from predictor.request import PredictionRequest

GPT2 = str(Path(__file__).resolve().parents[3] / "examples" / "gpt2.onnx")


def costs(mode: str, narrow: str, *, stepped: bool) -> ProgramCosts:
    predictor = Predictor.load()
    request = PredictionRequest(GPT2, "h100-sxm-80gb", batch=8, mode=mode, precision="bf16")  # type: ignore[arg-type]
    program = with_narrow_products(predictor.priced(request)[0], narrow)
    step = predictor._step_time if stepped else None
    device = find_device("h100-sxm-80gb")
    return price_program(program, device, predictor._op_time, step, job_context(request, program))


@pytest.mark.parametrize(("mode", "narrow", "corrected"), [("train", "fp8", False), ("train", "", True)])
def test_what_was_never_timed_is_not_corrected(mode: str, narrow: str, corrected: bool) -> None:
    with_step, without = costs(mode, narrow, stepped=True), costs(mode, narrow, stepped=False)
    assert np.array_equal(with_step.time_s, without.time_s) != corrected
    assert (with_step.step is not None) == corrected
