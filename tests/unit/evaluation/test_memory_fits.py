"""Decisions from bounds whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.evaluation.memory_fits import _decisions
from predictor.models.memory_bounds import BoundRows, held_out_probabilities


def bounds(count: int = 160) -> BoundRows:
    """Peaks are 1.3 times what the allocator holds; each job meets a card with some room or too little."""
    generator = np.random.default_rng(5)
    room = generator.uniform(0.0, 0.6, count)
    features = generator.normal(size=(count, 3))
    ran = room > np.log(1.3)
    group = np.array([f"network{index // 2}" for index in range(count)])
    return BoundRows(features, room, ran, group)


def test_bounds_alone_tell_where_the_peak_is() -> None:
    rows = bounds(400)
    called = held_out_probabilities(rows) > 0.5
    far = np.abs(rows.log_room - np.log(1.3)) > 0.15
    assert (called == rows.ran)[far].mean() > 0.95
    # Where members disagree a job is called out of memory rather than fitting.
    assert (called & ~rows.ran).mean() < (~called & rows.ran).mean()
    assert called[~rows.ran].mean() < 0.05


def test_decisions_count_what_failed_apart() -> None:
    ran = np.array([True, True, False, False])
    right, wrong = _decisions("all", np.array([True, False, True, False]), ran, goals=True)
    assert (right.metric, right.n) == ("hit_rate", 4)
    assert right.value == pytest.approx(0.5)
    assert (wrong.metric, wrong.n) == ("called_fits", 2)
    assert wrong.value == pytest.approx(0.5)
