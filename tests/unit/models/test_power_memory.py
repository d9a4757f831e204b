from __future__ import annotations

import json

import numpy as np
import pytest

from predictor.models.power.residuals import FIRM, SHY, JobMemory

SEEN = JobMemory.of(np.array([[0.0, 0.0], [3.0, 0.0]]), np.array([0.4, -0.2]), SHY)


def test_the_same_job_gets_nearly_all_and_a_stranger_nothing() -> None:
    assert SEEN.recall((0.0, 0.0)) == pytest.approx(0.4, abs=0.06)
    assert SEEN.recall((50.0, 50.0)) == 0.0
    assert SEEN.nearness((0.0, 0.0)) == 1.0
    assert SEEN.nearness((50.0, 0.0)) == 0.0
    assert 0.0 < SEEN.nearness((1.5, 0.0)) < 0.5


def test_jobs_without_a_signature_have_no_memory() -> None:
    assert SEEN.recall(()) == JobMemory.empty().recall((1.0, 2.0)) == 0.0


def test_a_memory_survives_json() -> None:
    again = JobMemory.from_json(json.loads(json.dumps(SEEN.to_json())))
    assert again.recall((1.0, 0.5)) == pytest.approx(SEEN.recall((1.0, 0.5)))


def test_jobs_close_to_each_other_keep_their_own() -> None:
    near = JobMemory.of(np.array([[0.0], [1.0]]), np.array([0.3, -0.3]), FIRM)
    assert near.recall((0.0,)) == pytest.approx(0.3, abs=0.03)
    assert near.recall((1.0,)) == pytest.approx(-0.3, abs=0.03)
