"""Environments: the slowest stage sets the pace, metered shares pin kernels, jobs are remembered alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.errors import InvalidData
from predictor.models.power.profile import JobProfile, Phase, mixed, timed
from predictor.models.steps.job_time import Environment, MeasuredJob, fit_environment

TRUTH = Environment(0.7, 2e-5, 7e-4, {}, {}, {})


def phases(busy_s: float, launches: int, kind: float = 0.0) -> tuple[Phase, ...]:
    step = JobProfile(busy_s, busy_s, 0.3 * busy_s, 0.2 * busy_s, 0.5 * busy_s, launches, (kind, 1.0))
    check = replace(step, iteration_s=busy_s / 3, busy_s=busy_s / 3, launch_count=launches // 3)
    return (Phase(0.7, step), Phase(0.3, check))


JOBS = {
    "kernels": phases(0.08, 300, 1.0),
    "launches": phases(0.02, 3000, 2.0),
    "input": phases(0.008, 300, 3.0),
    "between": phases(0.03, 400, 4.0),
}


def measured(name: str) -> MeasuredJob:
    job = JOBS[name]
    iteration_s = TRUTH.trend_s(job, "card", 32)
    return MeasuredJob(job, "card", 32, iteration_s, TRUTH.busy_s(mixed(job), "card") / iteration_s)


def test_the_slowest_stage_sets_the_pace() -> None:
    assert TRUTH.trend_s(JOBS["kernels"], "card", 32) > 0.7 * 0.08 * 0.7
    assert TRUTH.trend_s(JOBS["input"], "card", 32) == pytest.approx(32 * 7e-4, rel=0.01)
    assert TRUTH.trend_s(JOBS["input"], "card", 64) == pytest.approx(64 * 7e-4, rel=0.01)


def test_jobs_left_out_are_predicted_from_the_others() -> None:
    for name in JOBS:
        found = fit_environment([measured(other) for other in JOBS if other != name])
        if name in ("kernels", "between"):
            assert found.iteration_s(JOBS[name], "card", 32) == pytest.approx(
                measured(name).iteration_s, rel=0.1
            )
        assert found.busy_s(mixed(JOBS[name]), "card") == pytest.approx(
            TRUTH.busy_s(mixed(JOBS[name]), "card"), rel=0.1
        )


def test_what_a_job_leaves_is_its_own() -> None:
    odd = measured("between")
    odd = replace(odd, iteration_s=1.5 * odd.iteration_s, busy_share=odd.busy_share / 1.5)
    found = fit_environment([odd, *(measured(name) for name in ("kernels", "launches", "input"))])
    assert found.iteration_s(odd.phases, "card", 32) == pytest.approx(odd.iteration_s, rel=0.05)
    profile = found.profile(odd.phases, "card", 32)
    assert profile.busy_s / profile.iteration_s == pytest.approx(odd.busy_share, rel=0.1)
    stranger = phases(0.03, 400, 9.0)
    alone = replace(found, memory={}, busy_memory={})
    assert found.iteration_s(stranger, "card", 32) == pytest.approx(alone.iteration_s(stranger, "card", 32))


def test_no_jobs_are_an_error() -> None:
    with pytest.raises(InvalidData, match="no measured jobs"):
        fit_environment([])


def test_mixed_and_timed_profiles() -> None:
    mean = mixed(JOBS["kernels"])
    assert mean.busy_s == pytest.approx(0.7 * 0.08 + 0.3 * 0.08 / 3)
    assert mean.launch_count == round(0.7 * 300 + 0.3 * 100)
    known = timed(mean, 0.1, 0.04)
    assert (known.iteration_s, known.busy_s, known.launch_s) == (0.1, 0.04, 0.0)
    assert known.compute_s == mean.compute_s
    # Nobody is busy for longer than a step takes.
    assert timed(mean, 0.01, 0.04).iteration_s == 0.04
