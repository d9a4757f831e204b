"""What a publisher's runs say of its other runs."""

from __future__ import annotations

import numpy as np

from predictor.models.plans.source_correction import believed_share, source_log_factors
from tests.unit.models.test_step_correction import table


def test_learns_offset_and_slope_of_a_source() -> None:
    found = table()
    mine = found.source == "one"
    features, target, model = found.features[mine], found.target[mine], found.model[mine]
    factors = source_log_factors(features[:40], target[:40], model[:40], features[40:], 1)
    assert np.abs(factors - target[40:]).mean() < 0.02
    assert np.abs(target[40:]).mean() > 0.2


def test_runs_that_are_far_off_teach_little() -> None:
    found = table()
    mine = found.source == "two"
    features, target, model = found.features[mine], found.target[mine].copy(), found.model[mine]
    target[0] = 3.0
    factors = source_log_factors(features[:60], target[:60], model[:60], features[60:], 1)
    assert np.abs(factors - target[60:]).mean() < 0.03


def test_what_holds_for_groups_left_out_is_believed() -> None:
    found = table()
    mine = found.source == "one"
    features, target, model = found.features[mine], found.target[mine], found.model[mine]
    assert believed_share(features, target, model, 1) == 1.0


def test_what_does_not_is_not() -> None:
    """Groups that err in opposite directions teach nothing of one another."""
    found = table()
    mine = found.source == "one"
    features, model = found.features[mine], found.model[mine]
    side = np.where(np.isin(model, ["m0", "m1"]), 0.3, -0.3)
    assert believed_share(features, side, np.where(side > 0, "a", "b"), 1) == 0.0
    assert believed_share(features[:8], side[:8], np.full(8, "a"), 1) == 0.5


def test_a_model_of_many_runs_weighs_like_one_of_few() -> None:
    features = np.zeros((30, table().features.shape[1]))
    target = np.array([0.4] * 28 + [0.1, 0.0])
    model = np.array(["often"] * 28 + ["rare", "rarer"])
    alike = source_log_factors(features, target, model, features[:1], 1)
    by_rows = source_log_factors(features, target, np.arange(30).astype(str), features[:1], 1)
    assert alike[0] < by_rows[0] - 0.1
