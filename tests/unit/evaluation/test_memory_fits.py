"""Decisions from bounds whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.evaluation.memory_fits import _decisions
from predictor.models.memory.bounds_training import BoundRows, held_out_probabilities


def bounds(count: int = 160) -> BoundRows:
    """Peaks are 1.3 times what the allocator needs; each job meets a card with some room or too little."""
    generator = np.random.default_rng(5)
    room = generator.uniform(0.0, 0.6, count)
    features = generator.normal(size=(count, 3))
    ran = room > np.log(1.3)
    group = np.array([f"network{index // 2}" for index in range(count)])
    return BoundRows(features, room, ran, group)


def test_bounds_alone_tell_where_the_peak_is() -> None:
    rows = bounds(300)
    called = held_out_probabilities(rows, inner_folds=2) > 0.5
    # In doubt a job is called out of memory rather than fitting; with room to spare it is not.
    assert called[~rows.ran].mean() < 0.05
    assert called[rows.ran & (rows.log_room > np.log(1.3) + 0.25)].mean() > 0.8
    assert (called == rows.ran).mean() > 0.75


def test_decisions_count_what_failed_apart() -> None:
    ran = np.array([True, True, False, False])
    right, wrong = _decisions("all", np.array([True, False, True, False]), ran, goals=True)
    assert (right.metric, right.n) == ("hit_rate", 4)
    assert right.value == pytest.approx(0.5)
    assert (wrong.metric, wrong.n) == ("called_fits", 2)
    assert wrong.value == pytest.approx(0.5)
