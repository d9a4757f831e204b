"""Trains op corrections from iteration times: one booster whose loss is on the sum over an iteration's ops.

    t_i = floor_i * exp(prior_i + f(x_i)),  T = Total(t),  r = log T - log y,  s_i = d log T / d log t_i

Pseudo-Huber loss on r: gradient q r s_i, hessian q s_i with q = 1 / sqrt(1 + (r / 0.3)^2). The share itself,
not its square, bounds the curvature: moving every f by d_i moves log T by sum(s_i d_i), and by Jensen
(sum s_i d_i)^2 <= sum s_i d_i^2. Squares diverge, as all ops of an iteration move at once. `min_child_weight`
and `lambda` thereby count in iterations whose whole time lies in a leaf. Measured kernels are iterations of
one op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.steps.features import FEATURES, hidden
from predictor.models.steps.harness import Harness, harness_keys
from predictor.models.steps.host_prior import HostPrior, fit_host_prior
from predictor.models.steps.prior import PricedOps, Prior, groups, levels, slope_column
from predictor.models.steps.prior_fit import PriorRows, fit_prior
from predictor.models.steps.rows import AggregateTable, job_context
from predictor.models.steps.total import Total, launch_s

HUBER = 0.3
_PHASE = FEATURES.index("phase")


@dataclass(frozen=True, slots=True)
class BoostSettings:
    """XGBoost settings; weights of leaves count iterations.

    `hidden`: columns that trees do not see. `parallel`: trees of one round, averaged.
    """

    rounds: int = 300
    depth: int = 8
    eta: float = 0.2
    min_child_weight: float = 4.0
    ridge: float = 3.0
    subsample: float = 0.8
    columns: float = 0.7
    bins: int = 64
    hidden: tuple[str, ...] = ()
    parallel: int = 1

    def parameters(self, seed: int) -> dict[str, Any]:
        """For `xgboost.train`; one thread, so that equal seeds give equal trees."""
        return {
            "tree_method": "hist",
            "max_depth": self.depth,
            "eta": self.eta,
            "min_child_weight": self.min_child_weight,
            "lambda": self.ridge,
            "subsample": self.subsample,
            "colsample_bytree": self.columns,
            "max_bin": self.bins,
            "num_parallel_tree": self.parallel,
            "base_score": 0.0,
            "nthread": 1,
            "seed": seed,
        }


AnyPrior: TypeAlias = Prior | HostPrior


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prior and the booster on top of it; `prior_weights` let another fit of the same table start there."""

    prior: AnyPrior
    booster: Any
    prior_weights: FloatArray | None = None
    hidden: tuple[str, ...] = ()

    def op_seconds(self, table: AggregateTable, find_device: Callable[[str], DeviceSpec]) -> FloatArray:
        """(n,) time of all runs of each op."""
        import xgboost

        base = prior_log(self.prior, table, find_device)
        matrix = xgboost.DMatrix(hidden(table.features, self.hidden), base_margin=base, nthread=1)
        log_m = np.asarray(self.booster.predict(matrix), dtype=np.float64)
        return table.floor_s * np.exp(np.where(table.timed, table.log_learned, log_m))

    def log_times(
        self, table: AggregateTable, find_device: Callable[[str], DeviceSpec], *, harness: bool = False
    ) -> FloatArray:
        """(r,) log of the predicted iteration times, as answered or with what each source's harness adds."""
        op_s = self.op_seconds(table, find_device)
        total = total_of(table, find_device, self.prior.harness)
        if harness:
            added = self.prior.harness
            keys = harness_keys(table.rows, table.source)
            op_s *= np.exp(added.work_log(keys))[table.row]
            total = timed_total(table, find_device, added)
        return total.log_total(op_s)


def total_of(
    table: AggregateTable, find_device: Callable[[str], DeviceSpec], harness: Harness | None = None
) -> Total:
    """How ops make up the iterations of a table; `harness` knows the usual host's time per launch."""
    usual = harness or Harness.none()
    per_launch = np.array(
        [
            0.0
            if row.launch == "graph" or find_device(row.device).kind.is_host
            else launch_s(row.runtime, row.mode) * np.exp(usual.launch_log(row.runtime, row.mode))
            for row in table.rows
        ]
    )
    return Total(table.row, table.rest_s, per_launch * table.launches)


def prior_log(
    prior: AnyPrior,
    table: AggregateTable,
    find_device: Callable[[str], DeviceSpec],
) -> FloatArray:
    """(n,) log multipliers of the prior."""
    group = groups(table.class_code, table.features[:, _PHASE])
    ops_of_all = PricedOps(group, table.floor_s, table.log_learned, table.parts)
    ends = np.searchsorted(table.row, np.arange(len(table) + 1))
    found = np.zeros(len(table.row))
    for i, row in enumerate(table.rows):
        ops = slice(ends[i], ends[i + 1])
        found[ops] = prior.log_multiplier(ops_of_all.take(ops), job_context(row), find_device(row.device))
    return np.where(table.timed, table.log_learned, found)


def fit_aggregate(
    table: AggregateTable,
    find_device: Callable[[str], DeviceSpec],
    settings: BoostSettings,
    seed: int,
    *,
    weight: FloatArray | None = None,
    start: Fitted | None = None,
) -> Fitted:
    """Prior and booster of a table.

    Args:
        table: iterations. find_device: catalogue. settings, seed: of the booster.
        weight: (r,) of the iterations, default 1; those of weight 0 teach nothing.
        start: a fit of the same table with other weights, from which the prior's fit takes few steps.
    """
    weights = np.ones(len(table)) if weight is None else weight
    total = total_of(table, find_device)
    rows = prior_rows(table, find_device, weights)
    prior: AnyPrior
    found: FloatArray | None = None
    if all(device.kind.is_host for device in rows.devices):
        prior = fit_host_prior(rows, table.parts, table.rest_s)
    else:
        fit = fit_prior(rows, total, None if start is None else start.prior_weights)
        prior, found = fit.prior, fit.weights
    return boosted(prior, table, find_device, settings, seed, weights, found)


def boosted(
    prior: AnyPrior,
    table: AggregateTable,
    find_device: Callable[[str], DeviceSpec],
    settings: BoostSettings,
    seed: int,
    weight: FloatArray,
    prior_weights: FloatArray | None = None,
) -> Fitted:
    """A booster on top of a prior that is known; `weight` (r,) as `fit_aggregate` takes it."""
    keys = harness_keys(table.rows, table.source)
    base = prior_log(prior, table, find_device) + prior.harness.work_log(keys)[table.row]
    taught = weight > 0
    if not taught.all():
        base, table, weight = base[taught[table.row]], table.take(taught), weight[taught]
    total = timed_total(table, find_device, prior.harness)
    booster = fit_booster(table, base, total, weight, settings, seed)
    return Fitted(prior, booster, prior_weights, settings.hidden)


def timed_total(table: AggregateTable, find_device: Callable[[str], DeviceSpec], harness: Harness) -> Total:
    """How ops make up the iterations as they were timed: with each source's own host and copies."""
    keys = harness_keys(table.rows, table.source)
    return total_of(table, find_device).added(harness.host_log(keys), harness.fixed_s(keys))


def prior_rows(
    table: AggregateTable, find_device: Callable[[str], DeviceSpec], weight: FloatArray
) -> PriorRows:
    """The part of a table that the prior's fit reads."""
    contexts = [job_context(row) for row in table.rows]
    names = sorted({row.device for row in table.rows})
    place = {name: i for i, name in enumerate(names)}
    sources, source = np.unique(table.source, return_inverse=True)
    return PriorRows(
        row=table.row,
        group=groups(table.class_code, table.features[:, _PHASE]),
        floor_s=table.floor_s,
        log_learned=table.log_learned,
        timed=table.timed,
        log_time=table.log_time,
        weight=weight,
        level=np.array([levels(context) for context in contexts], dtype=np.intp),
        slope=np.array([slope_column(context) for context in contexts], dtype=np.intp),
        device=np.array([place[row.device] for row in table.rows], dtype=np.intp),
        devices=tuple(find_device(name) for name in names),
        source=source.astype(np.intp),
        sources=tuple(map(str, sources)),
        harness=harness_keys(table.rows, table.source),
    )


def fit_booster(
    table: AggregateTable,
    base: FloatArray,
    total: Total,
    weight: FloatArray,
    settings: BoostSettings,
    seed: int,
) -> Any:
    """The booster on top of log multipliers `base` (n,)."""
    import xgboost

    features = hidden(table.features, settings.hidden)
    matrix = xgboost.QuantileDMatrix(features, max_bin=settings.bins, nthread=1)
    matrix.set_base_margin(base)

    def objective(margin: NDArray[np.float32], _: object) -> tuple[FloatArray, FloatArray]:
        log_m = np.where(table.timed, base, np.asarray(margin, dtype=np.float64))
        shares, log_total = total.shares(table.floor_s * np.exp(log_m))
        shares = np.where(table.timed, 0.0, shares)
        residual = log_total - table.log_time
        robust = weight / np.sqrt(1 + (residual / HUBER) ** 2)
        gradient = (robust * residual)[table.row] * shares
        return gradient, np.maximum(robust[table.row] * shares, 1e-9)

    return xgboost.train(settings.parameters(seed), matrix, settings.rounds, obj=objective)
