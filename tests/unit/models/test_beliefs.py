"""Pulls on the prior: streams to their bytes, gradients to their forward kernels, compilers to libraries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.hardware.catalog import find_device
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.steps.beliefs import first_log, kin, strength
from predictor.models.steps.features import CLASSES
from predictor.models.steps.harness import harness_keys
from predictor.models.steps.prior import PHASE_COUNT, PricedOps, levels
from predictor.models.steps.prior_fit import PriorRows, fit_prior
from predictor.models.steps.rows import job_context
from predictor.models.steps.total import Total
from predictor.types import Mode, Precision

FORWARD, BACKWARD, OPTIMIZER = 0, 1, 2


def group(name: str, phase: int) -> int:
    return CLASSES.index(name) * PHASE_COUNT + phase


def test_gradients_have_forward_kernels_that_occur() -> None:
    names = ("conv_weight_gradient", "conv_data_gradient", "add", "depthwise_conv_data_gradient")
    groups = np.array([group("conv", FORWARD), group("add", FORWARD), *(group(n, BACKWARD) for n in names)])
    pairs = {(i, j): pull for i, j, pull in kin(groups)}
    assert set(pairs) == {(2, 0), (3, 0), (4, 1)}
    assert pairs[4, 1] == pairs[2, 0] == pairs[3, 0] > 0


def test_an_optimizer_has_one_effect() -> None:
    groups = np.array([group("optimizer", OPTIMIZER)])
    for effect in ("precision", "compiled", "training", "layout"):
        assert strength(effect, groups)[0] > strength("base", groups)[0] == 0


def test_a_softmax_gradient_is_two_kernels_unless_compiled() -> None:
    groups = np.array([group("softmax", BACKWARD), group("softmax", FORWARD), group("bias", FORWARD)])
    base, compiled = first_log("base", 0, groups), first_log("compiled", 1, groups)
    assert np.exp(base[0] - base[1]) == pytest.approx(2.0, rel=0.02)
    assert (base + compiled)[0] == pytest.approx(base[1])
    assert compiled[2] < -1.5
    assert not first_log("compiled", 0, groups).any()


def test_streams_are_held_in_every_type_and_mode_and_products_in_compiled_runs() -> None:
    groups = np.array([group("activation", BACKWARD), group("linear", FORWARD)])
    for effect in ("precision", "training"):
        assert (strength(effect, groups) > 0).tolist() == [True, False]
    assert (strength("compiled", groups) > 0).tolist() == [False, True]


def test_sums_put_what_is_missing_on_gradients_of_products() -> None:
    # Training takes thrice the inference, of which the floors of its kernels explain two thirds.
    row = WholeModelRow("g", "m", "f", "v100-pcie-32gb", "v100", 8, 1.0, Mode.INFER, Precision.FP32)
    inference = [group("linear", FORWARD), group("add", FORWARD)]
    gradients = [group("linear", BACKWARD), group("add", BACKWARD)]
    count = 1000
    rows = (*[row] * count, *[replace(row, mode=Mode.TRAIN)] * count)
    ops = np.repeat(np.arange(2 * count), np.repeat([2, 4], count))
    groups = np.array(inference * count + (inference + gradients) * count)
    nothing = np.zeros(len(rows))
    none = np.zeros(len(rows), dtype=np.intp)
    prior = fit_prior(
        PriorRows(
            row=ops,
            group=groups,
            floor_s=np.full(len(groups), 1e-3),
            log_learned=np.zeros(len(groups)),
            timed=np.zeros(len(groups), dtype=np.bool_),
            log_time=np.log(np.repeat([2e-3, 6e-3], count)),
            weight=np.ones(len(rows)),
            level=np.array([levels(job_context(item)) for item in rows], dtype=np.intp),
            slope=none,
            device=none,
            devices=(find_device(row.device),),
            source=none,
            sources=("profiles",),
            harness=harness_keys(rows, np.full(len(rows), "profiles")),
        ),
        Total(ops, nothing, nothing),
    ).prior
    asked = PricedOps(np.array(gradients), np.ones(2), np.zeros(2), np.ones((2, 4)))
    product, stream = np.exp(prior.log_multiplier(asked, job_context(rows[-1]), find_device(row.device)))
    assert product > 1.3 * stream
    assert product + stream > 3.2
