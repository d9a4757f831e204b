"""What one publisher's runs say of its other runs: a Gaussian process and trees on log(measured / composed).

Both see the columns of the step correction. The process carries over to sizes between those measured, the
trees find thresholds; their mean errs less than either on models left out. Models (or what else is left out
together) weigh alike, however many of their rows are known: asked is another model. How far it is believed is
found by leaving groups of the known rows out: few, uneven rows teach nothing that holds for the next model. A
publisher that nobody has seen gets neither: runs of others make its composed times worse (docs/adr/0012).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.features.tables.tiles import FloatArray

LEAST_ROWS = 6
_LENGTH = 3.0
"""Length scale in standard deviations of a column."""
_AMPLITUDE, _NOISE = 0.15, 0.05
_LIMIT_LOG = 0.5
"""Rows further off than this teach no more than this: their configuration, not the machine, is in doubt."""
_DEPTH, _ROUNDS, _RATE, _RIDGE = 4, 150, 0.06, 5.0
_FORESTS = 4
"""Boosters of other random shares of rows and columns, whose mean is taken."""


_SHARES = np.linspace(0.0, 1.0, 5)
_SHARE_UNTESTED = 0.5


def believed_share(features: FloatArray, target: FloatArray, group: NDArray[np.str_], seed: int) -> float:
    """Share of the correction, 0 to 1, that errs least on each group of the rows when it is left out.

    Args:
        features, target: as `source_log_factors` takes. group: (n,) what is left out together.
    """
    found, truth = [], []
    for name in np.unique(group):
        inside = group == name
        if (~inside).sum() >= LEAST_ROWS:
            known = features[~inside], target[~inside], group[~inside]
            found.append(source_log_factors(*known, features[inside], seed, forests=1))
            truth.append(target[inside])
    if not found:
        return _SHARE_UNTESTED
    factors, wanted = np.concatenate(found), np.concatenate(truth)
    errors = [float(np.abs(np.expm1(share * factors - wanted)).mean()) for share in _SHARES.tolist()]
    return float(_SHARES[int(np.argmin(errors))])


def source_log_factors(
    features: FloatArray,
    target: FloatArray,
    group: NDArray[np.str_],
    asked: FloatArray,
    seed: int,
    *,
    forests: int = _FORESTS,
) -> FloatArray:
    """(m,) log(expected / composed) of `asked` rows.

    Args:
        features: (n, COLUMNS) of the publisher's measured rows, n at least LEAST_ROWS. target: (n,)
            log(measured / composed). group: (n,) as `believed_share` takes. asked: (m, COLUMNS).
    """
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    weight = len(group) / len(counts) / counts[index]
    middle = _weighted_median(target, weight)
    left = np.clip(target - middle, -_LIMIT_LOG, _LIMIT_LOG)
    smooth = _process(features, left, asked)
    return np.asarray(middle + (smooth + _trees(features, left, weight, asked, seed, forests)) / 2)


def _weighted_median(values: FloatArray, weight: FloatArray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _process(features: FloatArray, target: FloatArray, asked: FloatArray) -> FloatArray:
    everything = np.concatenate([features, asked])
    spread = everything.std(axis=0)
    used = spread > 1e-6
    scale = _LENGTH * spread[used]
    known, new = features[:, used] / scale, asked[:, used] / scale
    matrix = _kernel(known, known) + _NOISE**2 * np.eye(len(known))
    return np.asarray(_kernel(new, known) @ np.linalg.solve(matrix, target))


def _kernel(left: FloatArray, right: FloatArray) -> FloatArray:
    square = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    return np.asarray(_AMPLITUDE**2 * np.exp(-np.maximum(square, 0.0) / 2))


def _trees(
    features: FloatArray,
    target: FloatArray,
    weight: FloatArray,
    asked: FloatArray,
    seed: int,
    forests: int,
) -> FloatArray:
    import xgboost

    chosen = {
        "objective": "reg:pseudohubererror",
        "huber_slope": 0.2,
        "max_depth": _DEPTH,
        "eta": _RATE,
        "lambda": _RIDGE,
        "subsample": 0.8,
        "colsample_bytree": 0.6,
        "base_score": 0.0,
        "nthread": 1,
        "verbosity": 0,
    }
    matrix = xgboost.DMatrix(features, target, weight=weight)
    grown = [xgboost.train({**chosen, "seed": seed + n}, matrix, _ROUNDS) for n in range(forests)]
    return np.asarray(np.mean([forest.inplace_predict(asked) for forest in grown], axis=0), dtype=np.float64)
