"""Costs of a program moved by what measured jobs say about its device."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
from numpy.typing import NDArray

from predictor.compose.time import LAUNCH_S, ProgramCosts, compose_time
from predictor.features.programs.work import Program
from predictor.features.programs.work_table import work_table
from predictor.models.device_calibration import CLASSES, DeviceCalibration, Sample, kernel_classes
from predictor.models.steps.features import classes
from predictor.models.steps.step_time import StepCosts
from predictor.parallel.plan import Plan
from predictor.types import Runtime


def calibrated_costs(
    program: Program, costs: ProgramCosts, calibration: DeviceCalibration, runtime: Runtime
) -> ProgramCosts:
    """`costs` with the kernel times, launches and interval of the calibrated device.

    The interval is never wider than it was; the device counts as measured.
    """
    sample = calibration_sample(program, costs, runtime, measured_s=1.0)
    alone = compose_time(program, costs, runtime=runtime, plan=Plan(), cluster=None).iteration
    factor = calibration.class_factor[_class_of_unique(program, costs)]
    time_s = costs.unique.time_s * factor
    step = StepCosts(
        time_s=time_s,
        launch_s=_launch_s(costs, runtime) * calibration.host_factor,
        log_spread=min(calibration.log_spread(sample.kernel_s, sample.host_s), log(alone.high / alone.value)),
        known_device=True,
    )
    unique = replace(
        costs.unique,
        time_s=time_s,
        out_of_range=costs.unique.out_of_range & ~costs.unique.unmeasured,
        unmeasured=np.zeros_like(costs.unique.unmeasured),
    )
    return replace(costs, unique=unique, step=step)


def calibration_sample(program: Program, costs: ProgramCosts, runtime: Runtime, measured_s: float) -> Sample:
    """What a measured job tells: its predicted seconds by class beside the measured ones."""
    code = _class_of_unique(program, costs)[costs.index]
    kernel_s = np.bincount(code, weights=costs.time_s, minlength=len(CLASSES))
    host_s = costs.launches * _launch_s(costs, runtime)
    return Sample(np.asarray(kernel_s, dtype=np.float64), host_s, measured_s)


def _launch_s(costs: ProgramCosts, runtime: Runtime) -> float:
    return LAUNCH_S[runtime] if costs.step is None else costs.step.launch_s


def _class_of_unique(program: Program, costs: ProgramCosts) -> NDArray[np.intp]:
    """(n,) index into predictor.models.device_calibration.CLASSES of each distinct work."""
    works = {place: op.kernel for place, op in zip(costs.index, program.ops, strict=True)}
    table = work_table([works[place] for place in range(len(works))])
    return kernel_classes(classes(table), table.phase)
