"""How many replicas, and how many devices a replica, to reach a target accuracy soonest.

    hybrid_splits(predictor, request, devices=(1, 2, 4, 8), ways=(1, 2), samples=100_000, epochs=curve)

Replicas make the batch larger, and a larger batch needs more epochs; splitting each replica does not. For
every number of devices and ways the fastest split of a replica is taken, by tensors, stages or both
(predictor.search.time_to_target has the formulas).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from predictor.checks import whole_number
from predictor.errors import DoesNotFit, InvalidRequest, PerfcastError
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.space import divisors
from predictor.search.time_to_target import Epochs, Split, splits_by_target

if TYPE_CHECKING:
    from predictor.api.predictor import Predictor

_MOST_PARTS = 4
"""Microbatches of a pipeline, over its stages: more of them cost launches and save little bubble."""


@dataclass(frozen=True, slots=True)
class HybridSplit:
    """A split with the plan behind it."""

    split: Split
    plan: Plan


def hybrid_splits(
    predictor: Predictor,
    request: PredictionRequest,
    devices: Sequence[int],
    ways: Sequence[int],
    *,
    samples: int,
    epochs: Epochs,
) -> list[HybridSplit]:
    """Time to the target of every split, fewest devices first, the best of each number first.

    Args:
        request: its batch is that of one replica; its plan says how replicas share and what is recomputed.
        devices: numbers of devices. ways: devices of a replica; those that do not divide are left out.
        samples: of the data set. epochs: to the target by global batch.

    Raises InvalidRequest; DoesNotFit when no split fits in memory.
    """
    if request.batch is None:
        raise InvalidRequest("hybrid splits: no batch of a replica is given; add a batch", field="batch")
    whole_number(samples, "samples", "samples", "a whole number of at least 1")
    batch = request.batch
    plans: dict[tuple[int, int], Plan] = {}
    seconds: dict[tuple[int, int], float] = {}
    for count in devices:
        whole_number(count, "devices", "devices", "whole numbers of at least 1")
        for way in ways:
            whole_number(way, "ways", "ways", "whole numbers of at least 1")
            if count % way:
                continue
            key = (count // way, way)
            asked = [
                replace(request, plan=plan, batch=batch * key[0])
                for plan in _plans(request.plan, key[0], way, batch)
            ]
            for item, answer in zip(asked, predictor.predict_many(asked), strict=True):
                if isinstance(answer, PerfcastError) or not answer.fits:
                    continue
                if answer.iteration_time_s.value < seconds.get(key, float("inf")):
                    seconds[key], plans[key] = answer.iteration_time_s.value, item.plan
    if not seconds:
        raise DoesNotFit("hybrid splits: none fits in memory; allow more ways or a smaller batch a replica")
    found = splits_by_target(seconds, samples, batch, epochs)
    return [HybridSplit(split, plans[split.replicas, split.ways]) for split in found]


def _plans(base: Plan, replicas: int, ways: int, batch: int) -> Iterator[Plan]:
    """All ways to put a replica on `ways` devices by tensors and stages."""
    for tp in divisors(ways):
        pp = ways // tp
        for parts in divisors(batch):
            if (parts == 1 and pp == 1) or (pp > 1 and 1 < parts <= _MOST_PARTS * pp):
                yield replace(base, dp=replicas, tp=tp, pp=pp, microbatches=parts)
