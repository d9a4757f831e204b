"""Plans calibrated by a few measured iterations: what is learned, and what is worth measuring."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.errors import InvalidData
from predictor.models.plans.plan_calibration import (
    ClusterPlans,
    PlanPoint,
    fit_plan_calibration,
    plan_point,
    spread_out,
)
from tests.unit.models.test_step_correction import FACTS


def grid() -> list[tuple[PlanPoint, float]]:
    """Plans of one model, and how much slower than composed each is: 5 % a doubling of tp, and the head."""
    found = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4):
            for samples in (1, 2, 4):
                facts = replace(
                    FACTS, tp=tp, pp=pp, microbatches=8, samples=samples, kernel_s=1e-4 * samples / tp
                )
                point = plan_point(facts, 16)
                found.append((point, 0.05 * np.log2(tp) + 0.1 * point.share))
    return found


def test_a_few_plans_teach_the_rest() -> None:
    points, truth = zip(*grid(), strict=True)
    picked = spread_out(points, 14)
    fitted = fit_plan_calibration([points[row] for row in picked], [truth[row] for row in picked])
    rest = np.setdiff1d(np.arange(len(points)), picked)
    left = fitted.log_factors([points[row] for row in rest]) - np.array(truth)[rest]
    assert np.abs(left).mean() < 0.2 * np.abs(np.array(truth)[rest]).mean()


def test_rows_as_composed_change_nothing() -> None:
    points = [point for point, _ in grid()]
    fitted = fit_plan_calibration(points[:5], [0.0] * 5)
    assert np.abs(fitted.log_factors(points)).max() < 1e-12


def test_head_shows_in_pipelines_only() -> None:
    flat = plan_point(replace(FACTS, pp=1), 16)
    few = plan_point(replace(FACTS, pp=4, microbatches=1), 16)
    many = plan_point(replace(FACTS, pp=4, microbatches=61), 16)
    assert flat.share == 0 < few.share < many.share
    assert few.share == pytest.approx(0.25 * 8 * 4 / 16)


def test_chosen_plans_differ_and_are_among_those_offered() -> None:
    points = [point for point, _ in grid()]
    picked = spread_out(points, 6, range(0, len(points), 2))
    assert len(set(picked.tolist())) == 6
    assert all(row % 2 == 0 for row in picked.tolist())
    assert len({points[row].stage[0] for row in picked.tolist()}) == 4


def test_too_few_rows() -> None:
    points = [point for point, _ in grid()]
    with pytest.raises(InvalidData, match="expected at least 3"):
        fit_plan_calibration(points[:2], [0.1, 0.1])
    with pytest.raises(InvalidData, match="expected at least 9"):
        spread_out(points, 9, [1, 2])


def test_rows_that_were_measured_often_agree_on_their_mean() -> None:
    """Equal rows, with equal and with other times, leave the equations solvable."""
    point = grid()[0][0]
    for times in ([0.2] * 40, [0.1, 0.3] * 20):
        fitted = fit_plan_calibration([point] * 40, times)
        assert fitted.log_factors([point])[0] == pytest.approx(0.2, abs=0.02)
        assert 0 < fitted.log_spreads([point])[0] < 0.3
        assert np.abs(fitted.left_out(times) - 0.2).max() < 0.03


def test_exchange_and_bubble_count_in_tenths_of_the_iteration() -> None:
    parts = {"forward": 0.5, "communication": 0.2, "pipeline_bubble": 0.3}
    point = plan_point(replace(FACTS, composed_s=1.0, breakdown_s=parts), 16)
    assert point.stage[-2:] == pytest.approx([2.0, 3.0])


def test_plans_of_another_version_ask_for_a_new_calibration() -> None:
    points = [point for point, _ in grid()][:4]
    plans = ClusterPlans((1.0,), (2.0,), fit_plan_calibration(points, [0.1, 0.2, 0.1, 0.0]))
    data = plans.to_json()
    assert np.allclose(
        ClusterPlans.from_json(data).calibration.log_factors(points), plans.calibration.log_factors(points)
    )
    with pytest.raises(InvalidData, match="calibrate anew"):
        ClusterPlans.from_json(data | {"chosen": data["chosen"][:-2]})
