"""Where a job stops to fit in memory, and ways to make it fit: what `fit` and `changes_to_fit` answer."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from predictor.errors import InvalidRequest
from predictor.request import PredictionRequest
from predictor.types import Interval

PROBABILITY = 0.9
"""How sure a fit has to be where nothing else is said."""


@dataclass(frozen=True, slots=True)
class FitPoint:
    """One size: the peak of the device that needs the most, and the chance that it fits."""

    value: int
    peak: Interval
    probability: float


@dataclass(frozen=True, slots=True)
class FitAnswer:
    """Where a job stops to fit.

    Attributes:
        axis, step: what grows, and by how much at least. wanted: probability asked for.
        largest: the last size that fits; None where none does. beyond: one step more; None where nothing
            larger was looked at, `stopped` says why.
        asked: the request's own size. smallest: one step, looked at where the request's size does not fit.
        capacity_bytes: of the device, as far as usable.
    """

    axis: str
    step: int
    wanted: float
    largest: FitPoint | None
    beyond: FitPoint | None
    smallest: FitPoint | None
    asked: FitPoint | None
    capacity_bytes: float
    device: str
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One way to need less memory.

    Attributes:
        what: in words. request: the changed job; None where no request says it (adapters).
        probability: that it fits. slowdown: iteration time over the unchanged job's.
    """

    what: str
    request: PredictionRequest | None
    peak: Interval
    probability: float
    slowdown: float
    fits: bool


def check_probability(probability: float) -> None:
    """Raises InvalidRequest unless it lies between 0 and 1."""
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not isfinite(probability):
        raise InvalidRequest(f"fit: probability is {probability!r}; expected 0 to 1", field="probability")
    if not 0 < probability < 1:
        raise InvalidRequest(
            f"fit: probability is {probability:g}; expected more than 0 and less than 1", field="probability"
        )
