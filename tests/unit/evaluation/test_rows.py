from __future__ import annotations

import numpy as np
import pytest

from predictor.evaluation.rows import EvaluationRow, absolute_errors, coverage_row, error_rows


def test_errors_are_relative_to_the_measurement() -> None:
    np.testing.assert_allclose(absolute_errors([110.0, 50.0], [100.0, 100.0]), [0.1, 0.5])


def test_summaries_by_hand() -> None:
    rows = error_rows(
        np.array([0.1, 0.2, 0.6]), id="J3", suite="s", hold="h", group="g", goal_mean=0.5, goal_median=0.1
    )
    assert [(row.metric, round(row.value, 9), row.goal, row.n) for row in rows] == [
        ("mape", 0.3, 0.5, 3),
        ("median_ape", 0.2, 0.1, 3),
        ("p90_ape", 0.52, None, 3),
    ]


def test_coverage_is_a_share() -> None:
    (row,) = coverage_row([True, True, True, False], id="J4", suite="s", hold="h", group="g")
    assert (row.value, row.goal, row.n) == (0.75, 0.9, 4)


def test_an_empty_group_has_no_rows() -> None:
    assert error_rows(np.array([]), id="J3", suite="s", hold="h", group="g") == []
    assert coverage_row([], id="J3", suite="s", hold="h", group="g") == []


def test_json_has_the_documented_fields() -> None:
    row = EvaluationRow("J3", "neusight", "end-to-end", "all", "mape", 0.09, 0.104, 48)
    assert row.to_json() == {
        "id": "J3",
        "suite": "neusight",
        "hold": "end-to-end",
        "group": "all",
        "metric": "mape",
        "value": pytest.approx(0.09),
        "goal": 0.104,
        "n": 48,
    }
