from __future__ import annotations

import numpy as np
import pytest

from predictor.models.calibration import Spread, conformal_quantile, grouped_quantile


def test_the_quantile_is_the_conformal_rank() -> None:
    # ceil(10 * 0.9) = 9th smallest of nine.
    assert conformal_quantile(np.arange(1, 10), 0.9) == 9
    # ceil(20 * 0.9) = 18th of nineteen, signs do not matter.
    assert conformal_quantile(-np.arange(1.0, 20.0), 0.9) == 18


def test_new_draws_are_covered_as_promised() -> None:
    rng = np.random.default_rng(1)
    hits = [abs(rng.normal()) <= conformal_quantile(rng.normal(size=50), 0.9) for _ in range(4000)]
    # Binomial: 0.9 +- 3 standard errors; the conformal promise itself is >= 0.9 (0.9 to 0.92 for 50).
    assert 0.886 <= np.mean(hits) <= 0.934


def test_every_group_counts_alike() -> None:
    residuals = np.concatenate([np.full(1000, 0.1), np.full(10, 1.0)])
    groups = np.array(["many"] * 1000 + ["few"] * 10)
    assert conformal_quantile(residuals) == pytest.approx(0.1)
    assert grouped_quantile(residuals, groups) == pytest.approx(1.0)


def test_one_group_agrees_with_the_plain_quantile() -> None:
    residuals = np.random.default_rng(2).normal(size=999)
    assert grouped_quantile(residuals, np.full(999, "g")) == pytest.approx(conformal_quantile(residuals))


def test_no_residuals_is_an_error() -> None:
    with pytest.raises(ValueError, match="no residuals"):
        conformal_quantile([])
    with pytest.raises(ValueError, match="no residuals"):
        grouped_quantile(np.array([]), np.array([], dtype=np.str_))


def test_spreads_survive_json() -> None:
    spread = Spread(known=0.1, new=0.4)
    assert Spread.from_json(spread.to_json()) == spread
