"""The chance that a job runs, learned from bounds whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.models.memory.bounds import BoundsModel, bound_rows_of
from predictor.models.memory.bounds_training import BoundRows, train_bounds

NEEDED = 0.7
"""Share of the reserved bytes that no job of `rows` does without."""


def rows(count: int = 240) -> BoundRows:
    generator = np.random.default_rng(3)
    memory = generator.uniform(0.1, 0.9, size=(count, 2))
    version = generator.choice([1.10, 1.12], size=count)
    features = bound_rows_of(memory, np.full(count, 2.0), np.full(count, 10.0), version)
    room = generator.uniform(-0.6, 0.2, count)
    group = np.array([f"network{index // 2}" for index in range(count)])
    return BoundRows(features, room, room > np.log(NEEDED), group)


@pytest.fixture(scope="module")
def model() -> BoundsModel:
    return BoundsModel.from_trained(train_bounds(rows(), 10e9))


def row(version: float = 1.12, share: float = 0.5) -> np.ndarray:
    return bound_rows_of(np.array([[share, share]]), np.array([2.0]), np.array([10.0]), np.array([version]))[
        0
    ]


def test_a_job_runs_with_less_than_it_would_reserve(model: BoundsModel) -> None:
    chances = [model.chance(row(), 10e9, capacity) for capacity in (5e9, 6.5e9, 9.5e9, 11e9)]
    assert all(chance is not None for chance in chances)
    assert chances == sorted(chances)  # type: ignore[type-var]
    assert chances[0] < 0.05  # type: ignore[operator]
    # The peak with room to spare would be above this capacity.
    assert chances[2] > 0.5  # type: ignore[operator]


def test_jobs_unlike_those_of_training_have_no_chance_of_their_own(model: BoundsModel) -> None:
    assert model.chance(row(share=2.0), 10e9, 9e9) is None


def test_cards_of_other_sizes_are_not_known(model: BoundsModel) -> None:
    assert model.knows(10.2e9)
    assert not model.knows(16e9)


def test_newer_frameworks_count_as_the_newest_that_was_seen(model: BoundsModel) -> None:
    assert model.chance(row(version=2.09), 10e9, 9e9) == model.chance(row(version=1.12), 10e9, 9e9)
