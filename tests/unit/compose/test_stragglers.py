"""The slowest of many ranks against known values of the normal distribution."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.compose.stragglers import slowest
from predictor.errors import InvalidRequest
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.search import Goal
from predictor.search.space import SearchSpace
from predictor.types import Recompute

GPT2 = str(Path(__file__).resolve().parents[3] / "examples" / "gpt2.onnx")


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5, 2.0])
def test_mean_of_one_and_of_two(sigma: float) -> None:
    assert slowest(1, sigma).mean == 1.0
    assert slowest(2, sigma).mean == pytest.approx(2 * NormalDist().cdf(sigma / sqrt(2)), rel=1e-9)


@pytest.mark.parametrize(
    ("ranks", "expected"), [(2, 0.564190), (3, 0.846284), (10, 1.538753), (100, 2.507594), (1000, 3.241436)]
)
def test_small_spreads_give_the_expected_largest_normal(ranks: int, expected: float) -> None:
    """Harter 1961, expected values of normal order statistics."""
    sigma = 1e-5
    assert (slowest(ranks, sigma).mean - 1) / sigma == pytest.approx(expected, abs=2e-4)


def test_quantiles_are_those_of_samples() -> None:
    z = np.random.default_rng(0).standard_normal((40_000, 16)).max(axis=1)
    drawn = np.exp(0.2 * z - 0.02)
    found = slowest(16, 0.2)
    assert found.mean == pytest.approx(drawn.mean(), rel=2e-3)
    assert found.low == pytest.approx(np.quantile(drawn, 0.05), rel=4e-3)
    assert found.high == pytest.approx(np.quantile(drawn, 0.95), rel=4e-3)


def test_more_ranks_and_more_spread_take_longer() -> None:
    means = [slowest(ranks, 0.05).mean for ranks in (1, 2, 8, 64, 4096, 65536)]
    assert means == sorted(means)
    assert [slowest(64, s).mean for s in (0.0, 0.01, 0.1, 1.0)] == sorted(
        slowest(64, s).mean for s in (0.0, 0.01, 0.1, 1.0)
    )
    assert slowest(64, 0.0) == slowest(1, 0.0)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def asked(**options: object) -> PredictionRequest:
    fields = {"batch": 8, "mode": "train", "cluster": "dgx-a100-80gb:1", **options}
    return PredictionRequest(GPT2, "a100-sxm-80gb", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [Plan(dp=8), Plan(dp=2, pp=4, microbatches=4)])
def test_answers_wait_for_the_slowest(predictor: Predictor, plan: Plan) -> None:
    calm = predictor.predict(asked(plan=plan))
    noisy = predictor.predict(asked(plan=plan, rank_jitter=0.1))
    factor = slowest(8, 0.1).mean
    time = noisy.iteration_time_s
    assert time.value == pytest.approx(calm.iteration_time_s.value * factor)
    assert noisy.time_breakdown_s["stragglers"] == pytest.approx(calm.iteration_time_s.value * (factor - 1))
    assert sum(noisy.time_breakdown_s.values()) == pytest.approx(time.value)
    assert time.high / time.value > calm.iteration_time_s.high / calm.iteration_time_s.value
    assert noisy.energy_j.value > calm.energy_j.value
    assert "stragglers" not in calm.time_breakdown_s


def test_search_prices_the_wait(predictor: Predictor) -> None:
    space = SearchSpace(
        max_devices=8, dp=(1, 2, 4, 8), pp=(1, 2), samples=(1,), zero=(0,), recompute=(Recompute.NONE,)
    )
    request = asked(rank_jitter=0.3)
    found = predictor.search_plans(request, Goal(top=2), space=space)
    for item in found.best:
        answer = predictor.predict(replace(request, plan=item.plan))
        assert item.outcome.time_s == answer.iteration_time_s.value
    # The front is priced on graphs of few layers.
    for point in found.front:
        answer = predictor.predict(replace(request, plan=point.plan))
        assert point.time_s == pytest.approx(answer.iteration_time_s.value, rel=1e-2)


def test_spreads_outside_their_domain() -> None:
    with pytest.raises(InvalidRequest, match="rank_jitter"):
        asked(rank_jitter=-0.1)
