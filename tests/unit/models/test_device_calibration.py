"""Factors of a device from a few measured jobs: moved by what these tell, else held by the prior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from predictor.errors import InvalidBundle, InvalidData
from predictor.hardware.catalog import find_device
from predictor.models.bundle import Bundle, TrainedModel, write_bundle, write_overlay
from predictor.models.device_calibration import (
    CLASSES,
    FACTORS,
    MODEL_NAME,
    DeviceCalibration,
    Prior,
    Sample,
    fit_calibration,
    kernel_classes,
    learn_prior,
    predicted_s,
    stored_calibrations,
)
from predictor.models.steps.features import CLASSES as STEP_CLASSES

FloatArray = NDArray[np.float64]

DEVICE = find_device("t4")
PRIOR = Prior(tuple({"backward": 0.1, "host": 0.5}.get(name, 0.3) for name in FACTORS), 0.1)
TRUE = {"product": 1.5, "copy": 0.8, "host": 2.0}
PLACES = [
    CLASSES.index(f"{phase} {kind}") for phase in ("forward", "backward") for kind in ("product", "copy")
]


def kernels(product: float, copy: float, product_back: float = 0.0, copy_back: float = 0.0) -> FloatArray:
    """Seconds by class of a job of products and copies."""
    found = np.zeros(len(CLASSES))
    found[PLACES] = product, copy, product_back, copy_back
    return found


def jobs(count: int, seed: int = 0, noise: float = 0.0) -> list[Sample]:
    """Jobs of a device whose products take half longer, whose copies are faster and whose host is slow."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        kernel_s = kernels(*random.dirichlet([1, 1, 1, 1]) * 0.1)
        host_s = float(random.choice([0.001, 0.3]))
        moved = kernel_s * (1 + kernels(*[TRUE["product"] - 1, TRUE["copy"] - 1] * 2))
        measured = predicted_s(Sample(moved, host_s * TRUE["host"], 1.0)) * np.exp(random.normal(0, noise))
        found.append(Sample(kernel_s, host_s, float(measured)))
    return found


def error(samples: list[Sample], calibration: DeviceCalibration | None) -> float:
    return float(np.mean([abs(predicted_s(s, calibration) / s.measured_s - 1) for s in samples]))


def test_five_jobs_explain_the_next_twenty() -> None:
    found = fit_calibration(jobs(5), DEVICE, PRIOR)
    unseen = jobs(20, seed=1)
    assert error(unseen, None) > 0.3
    assert error(unseen, found) < 0.08


def test_more_jobs_leave_less_unknown() -> None:
    wide, narrow = (fit_calibration(jobs(count, noise=0.1), DEVICE, PRIOR) for count in (2, 20))
    kernel_s = kernels(*[0.025] * 4)
    assert narrow.log_spread(kernel_s, 0.0) < wide.log_spread(kernel_s, 0.0)
    # Never below what separates two jobs of one device.
    assert narrow.log_spread(kernel_s, 0.0) > 1.64 * PRIOR.noise


def test_one_job_moves_the_answer_part_of_the_way() -> None:
    job = Sample(kernels(0.1, 0.0), 0.0, 0.2)
    found = fit_calibration([job], DEVICE, PRIOR)
    assert 0.15 < predicted_s(job, found) < 0.2
    # Nothing was said about the host, nor about copies beyond what all kernels share.
    assert found.host_factor == pytest.approx(1.0)
    product, copy = found.class_factor[PLACES[:2]]
    assert product > copy > 1.0


def test_a_tight_prior_holds() -> None:
    tight = Prior((0.001,) * len(FACTORS), 0.1)
    found = fit_calibration(jobs(5), DEVICE, tight)
    assert np.allclose(found.class_factor, 1.0, atol=0.01)


def test_widths_and_noise_are_learned_from_held_out_devices() -> None:
    random = np.random.default_rng(3)
    groups = []
    for _ in range(60):
        product, copy = np.exp(random.normal(0, (0.4, 0.05)))
        group = []
        for seconds in random.dirichlet([1, 1, 1, 1], size=12):
            kernel_s = kernels(*seconds)
            moved = kernel_s * (1 + kernels(*[product - 1, copy - 1] * 2))
            group.append(Sample(kernel_s, 0.0, float(moved.sum() * np.exp(random.normal(0, 0.1)))))
        groups.append(group)
    prior = learn_prior(groups)
    widths = dict(zip(FACTORS, prior.widths, strict=True))
    assert widths["product"] == pytest.approx(0.4, rel=0.3)
    assert widths["copy"] < 0.15
    assert prior.noise == pytest.approx(0.1, rel=0.15)


def test_gradients_of_a_convolution_are_of_its_kind() -> None:
    steps = [
        "depthwise_conv",
        "depthwise_conv_weight_gradient",
        "conv_data_gradient",
        "bmm",
        "bias",
        "softmax",
    ]
    codes = np.array([STEP_CLASSES.index(name) for name in steps])
    found = [CLASSES[code] for code in kernel_classes(codes, np.array([0, 1, 1, 0, 2, 0]))]
    assert found == [
        "forward depthwise_conv",
        "backward depthwise_conv",
        "backward conv",
        "forward product",
        "backward elementwise",
        "forward rows",
    ]


def test_numbers_survive_json_and_name_the_device() -> None:
    found = fit_calibration(jobs(3), DEVICE, PRIOR)
    again = DeviceCalibration.from_json(found.to_json())
    assert np.array_equal(again.mean, found.mean)
    assert np.array_equal(again.covariance, found.covariance)
    assert again.is_of(DEVICE)
    assert not again.is_of(find_device("v100"))
    assert Prior.from_json(PRIOR.to_json()) == PRIOR


def test_calibrations_with_other_factors_are_refused(tmp_path: Path) -> None:
    old = fit_calibration(jobs(3), DEVICE, PRIOR).to_json() | {"mean": [0.1] * 5}
    write_bundle(tmp_path / "base", {"m": TrainedModel()}, {})
    base = Bundle.load(tmp_path / "base")
    write_overlay(tmp_path / "old", base, {MODEL_NAME: TrainedModel(params={"devices": [old]})})
    with pytest.raises(InvalidBundle, match="calibrate"):
        stored_calibrations(Bundle.load(tmp_path / "old"))


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(InvalidData, match="no measured jobs"):
        fit_calibration([], DEVICE, PRIOR)
    with pytest.raises(InvalidData, match="at least 2"):
        learn_prior([jobs(5)])
