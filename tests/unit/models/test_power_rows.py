"""Rows of watts as samples: validation counts as forward steps, metered durations replace predicted ones."""

from __future__ import annotations

import json

import polars as pl
import pytest

from predictor.features.programs.work import Phase
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle
from predictor.models.corpus.gaissa import TRAINING_STEPS, VALIDATION_STEPS
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.power.profile import mixed
from predictor.models.power.rows import PowerSample, as_measured, job_program, power_samples

FACTS = {"batch": 4, "mode": "train", "optimizer": "adam", "power_limit_w": 350.0, "precision": "tf32"}
IMAGES, WATTS, JOULES, BUSY = 33_952.0, 150.0, 4_000.0, 0.25


def rows(zeus: bool) -> pl.DataFrame:
    own = {**FACTS, "dataset": "cifar100"} if zeus else {**FACTS, "images": IMAGES, "run": 0}
    quantities = {"average_power": WATTS}
    quantities |= {"epoch_time": 60.0} if zeus else {"energy": JOULES, "device_busy_share": BUSY}
    return pl.DataFrame(
        [
            {
                "subject": "shufflenetv2" if zeus else "mobilenet_v2",
                "device": "rtx-3090-24gb",
                "device_group": "rtx3090",
                "model_group": "network",
                "quantity": quantity,
                "configuration": json.dumps(own),
                "value": value,
            }
            for quantity, value in quantities.items()
        ]
    )


def sample(zeus: bool) -> PowerSample:
    (found,) = power_samples(rows(zeus), OpTimeModel.from_bundle(Bundle.load()), find_device)
    return found


def test_epochs_that_count_validation_mix_both_kinds_of_steps() -> None:
    found = sample(zeus=False)
    steps = TRAINING_STEPS + VALIDATION_STEPS
    assert [phase.share for phase in found.phases] == pytest.approx(
        [TRAINING_STEPS / steps, VALIDATION_STEPS / steps]
    )
    train, check = (phase.profile for phase in found.phases)
    assert check.launch_count < train.launch_count / 2
    assert check.busy_s < found.profile.busy_s < train.busy_s
    assert found.profile == mixed(found.phases)
    assert found.iteration_s == pytest.approx(4 * JOULES / IMAGES / WATTS)


def test_metered_durations_replace_predicted_ones() -> None:
    found = sample(zeus=False)
    known = as_measured(found).profile
    assert known.busy_s / known.iteration_s == pytest.approx(BUSY)
    assert known.launch_s == 0.0
    assert known.signature == found.profile.signature


def test_rows_without_a_monitor_stay_as_predicted() -> None:
    found = sample(zeus=True)
    assert found.phases == ()
    assert found.time_s == 60.0
    assert as_measured(found) is found


def test_adam_of_keras_is_one_kernel_a_variable() -> None:
    program = job_program("mobilenet_v2", FACTS)
    (step,) = [op.work for op in program.ops if op.work.phase is Phase.OPTIMIZER]
    assert step.launch_count == len(program.gradients) > 150
    # Weights, gradients and two moments are read, all but the gradients written.
    assert step.read_bytes + step.write_bytes == 7 * 4 * program.parameter_count
    assert step.vector_flops == pytest.approx(13 * program.parameter_count)


def test_networks_of_zeus_run_the_passes_of_torch() -> None:
    program = job_program("shufflenetv2", {**FACTS, "dataset": "cifar100"})
    assert sum(op.work.phase is Phase.OPTIMIZER for op in program.ops) > 1
