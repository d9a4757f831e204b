"""Which plans to measure before `perfcast calibrate`: those that tell most about all others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from predictor.checks import whole_number
from predictor.compose.plan_cost import is_plain
from predictor.errors import DoesNotFit
from predictor.models.plans.plan_calibration import spread_out
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.bounds import bounds
from predictor.search.space import SearchSpace, candidates, default_space

if TYPE_CHECKING:
    from predictor.api.predictor import Predictor

_LOOKED_AT, _SEED = 200, 1


def worth_measuring(
    predictor: Predictor,
    request: PredictionRequest,
    count: int,
    *,
    max_devices: int | None = None,
    space: SearchSpace | None = None,
) -> list[Plan]:
    """`count` plans, the most telling first, among those that may fit in memory.

    They are chosen by what the calibration's prior expects to learn about 200 candidates, drawn at random but
    the same each time. Plans of whole replicas that run their batch at once are left out: jobs of one device
    and the links tell of those.

    Raises as `Predictor.search_plans`; DoesNotFit: fewer plans fit than are asked for.
    """
    whole_number(count, "count", "count", "a whole number of at least 1")
    source = predictor.plan_source(request, max_devices=max_devices)
    facts = source.facts()
    table = candidates(default_space(facts, max_devices) if space is None else space, facts)
    found = bounds(table, source.cuts)
    fits = np.flatnonzero(np.isfinite(found.time_s) & (found.peak_bytes <= source.capacity_bytes))
    plans = [plan for plan in (table.plan(int(row)) for row in fits) if not is_plain(plan)]
    if len(plans) < count:
        raise DoesNotFit(
            f"{len(plans)} plans may fit in memory; expected at least {count}: allow more devices"
        )
    if len(plans) > _LOOKED_AT:
        chosen = np.random.default_rng(_SEED).choice(len(plans), max(count, _LOOKED_AT), replace=False)
        plans = [plans[row] for row in sorted(chosen.tolist())]
    asked = [replace(source.whole.request, plan=plan) for plan in plans]
    points = [predictor._pricing.composed(predictor._resolve(each, needs_graph=True))[1] for each in asked]
    return [plans[row] for row in spread_out(points, count).tolist()]
