"""Rows of throughput tables."""

from __future__ import annotations

import pytest

from predictor.errors import InvalidRequest
from predictor.parallel.plan import Plan
from predictor.search.search import FrontPoint, Goal
from predictor.search.tables import ThroughputRow, throughput_rows

FRONT = (FrontPoint(Plan(dp=2), 2.0), FrontPoint(Plan(dp=4), 1.0))


def test_the_fastest_plan_that_uses_no_more() -> None:
    rows = throughput_rows("chip", 8, (3, 1, 9), FRONT)
    assert rows == [
        ThroughputRow("chip", 3, Plan(dp=2), 2.0, 4.0),
        ThroughputRow("chip", 1, None, None, 0.0),
        ThroughputRow("chip", 9, Plan(dp=4), 1.0, 8.0),
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"top": 0}, {"top": 101}, {"pue": 0.5}, {"price_per_hour": float("nan")}, {"deadline_s": 0.0}],
)
def test_goals_outside_their_domain(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        Goal(**wrong)  # type: ignore[arg-type]
