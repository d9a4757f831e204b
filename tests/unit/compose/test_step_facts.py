"""Facts of an iteration that the correction of plans reads: of kernels that the device runs."""

from __future__ import annotations

from math import isclose

import numpy as np
import pytest

from predictor.compose.step_facts import step_facts
from predictor.compose.time import compose_time, price_program
from predictor.features.programs.program import program_of
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.ops.op_time import OpTimeModel
from predictor.parallel.plan import Plan
from predictor.types import Mode, Runtime
from tests.unit.features.graphs import convolution_in_fp16


@pytest.mark.parametrize(("name", "kernels"), [("gtx-1080-ti-11gb", 1), ("rtx-3090-24gb", 4)])
def test_kernels_are_those_that_the_device_runs(name: str, kernels: int) -> None:
    program, device = program_of(convolution_in_fp16(), mode=Mode.INFER), find_device(name)
    costs = price_program(program, device, OpTimeModel.from_bundle(Bundle.load(None)))
    time = compose_time(program, costs, runtime=Runtime.EAGER, plan=Plan(), cluster=None)
    facts = step_facts(program, costs, np.ones(len(program.ops)), time, Plan(), device, None)
    assert isclose(facts.kernel_s, float(costs.time_s.sum()) / kernels)
