"""The slowest of many ranks: an iteration ends when all have ended, and no two are equally fast.

A rank's iteration takes T exp(sigma z - sigma^2 / 2), z standard normal and independent of other ranks': T is
the mean, sigma the spread of its logarithm (chips that clock apart, noisy hosts, shared networks). The
iteration of N ranks is the maximum of N such times:

    mean      T * integral of exp(sigma z - sigma^2 / 2) N phi(z) Phi(z)^(N-1) dz
    quantile  T * exp(sigma Phi^-1(q^(1/N)) - sigma^2 / 2)

Of two ranks the mean is T * 2 Phi(sigma / sqrt 2), of one it is T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erfc, exp, hypot, log, sqrt
from statistics import NormalDist

import numpy as np

from predictor.compose.time import TimeCost
from predictor.types import Interval

STRAGGLERS = "stragglers"
"""Part of the breakdown: waiting for the slowest rank."""
_REACH, _POINTS = 12.0, 4801
_LOW, _HIGH = 0.05, 0.95
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Slowest:
    """Factors on a mean rank's time: the expected slowest, and 5 % and 95 % of its distribution."""

    mean: float
    low: float
    high: float


@lru_cache(maxsize=4096)
def slowest(ranks: int, sigma: float) -> Slowest:
    """The slowest of `ranks` whose times spread by `sigma` (of the logarithm, 0 or more)."""
    if sigma == 0 or ranks == 1:
        mean = 1.0
    else:
        # The maximum's density is largest where ranks * (1 - Phi) is about 1; both tails are far inside.
        z = np.linspace(-_REACH, _REACH + sigma, _POINTS)
        above = np.array([erfc(x / sqrt(2)) / 2 for x in z.tolist()])
        log_density = -(z**2) / 2 - log(sqrt(2 * np.pi)) + log(ranks)
        log_density += (ranks - 1) * np.log1p(-np.minimum(above, 1 - 1e-16))
        mean = float(np.exp(log_density + sigma * z - sigma**2 / 2).sum() * (z[1] - z[0]))
    low, high = (_quantile(ranks, sigma, share) for share in (_LOW, _HIGH))
    return Slowest(mean, min(low, mean), max(high, mean))


def _quantile(ranks: int, sigma: float, share: float) -> float:
    return exp(sigma * _NORMAL.inv_cdf(share ** (1 / ranks)) - sigma**2 / 2) if sigma else 1.0


def with_stragglers(time: TimeCost, ranks: int, sigma: float) -> TimeCost:
    """`time` of a mean rank as that of the slowest of `ranks`; unchanged where `sigma` is 0.

    The interval is widened by the slowest rank's own spread, independent of what the prediction is off by.
    """
    if not sigma:
        return time
    found, mean = slowest(ranks, sigma), time.iteration
    value = mean.value * found.mean
    below = hypot(log(mean.value / mean.low), log(found.mean / found.low))
    over = hypot(log(mean.high / mean.value), log(found.high / found.mean))
    return replace(
        time,
        iteration=Interval(value, value * exp(-below), value * exp(over), mean.coverage),
        breakdown_s={**time.breakdown_s, STRAGGLERS: value - mean.value},
    )
