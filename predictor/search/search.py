"""Finds the best plans: candidates in the order of their bounds, exact costs until no bound is below.

Memory goes first: a candidate whose weights and activations in flight exceed the device is dropped unpriced.
The rest is priced exactly in the order of its bound, and the search ends when the next bound lies above the
worst plan that is kept: the result is that of pricing every candidate. What the front holds, plans that no
other beats in both time and devices, is found the same way, one number of devices after the other.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from predictor.checks import positive_number, real_number, whole_number
from predictor.compose.averaging import StageBuckets
from predictor.compose.plan_time import plan_buckets, plan_total_s
from predictor.compose.stragglers import slowest
from predictor.errors import DoesNotFit, InvalidPlan, InvalidRequest
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.plan import Plan
from predictor.search.bounds import Bounds, Cuts, bounds
from predictor.search.source import CostSource, Outcome
from predictor.search.space import Facts, PlanTable, SearchSpace, candidates
from predictor.units import format_bytes

FloatArray = NDArray[np.float64]

_SECONDS_PER_HOUR = 3600.0
_LARGE = 1e15
MOST_PLANS = 100
"""Plans that one search may be asked to keep."""
_JOULES_PER_KWH = 3.6e6


class Objective(StrEnum):
    """What of one iteration is made small."""

    TIME = "time"
    COST = "cost"
    ENERGY = "energy"
    CARBON = "carbon"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted.

    Attributes:
        price_per_hour: of one device; with 1, cost is in device-hours.
        carbon_g_per_kwh: of the grid's electricity; pue: facility over devices.
        deadline_s: no iteration may be longer.
        top: plans to find.
    """

    objective: Objective = Objective.TIME
    price_per_hour: float = 1.0
    carbon_g_per_kwh: float = 400.0
    pue: float = 1.0
    deadline_s: float | None = None
    top: int = 5

    def __post_init__(self) -> None:
        """Raises InvalidRequest for numbers outside their domain."""
        for name in ("price_per_hour", "carbon_g_per_kwh"):
            real_number(getattr(self, name), name, name, "a number of at least 0", 0.0, _LARGE)
        real_number(self.pue, "pue", "pue", "a number of at least 1", 1.0, _LARGE)
        if self.deadline_s is not None:
            positive_number(self.deadline_s, "deadline_s", "deadline_s", "seconds above 0")
        expected = f"a whole number from 1 to {MOST_PLANS}"
        if whole_number(self.top, "top", "top", expected) > MOST_PLANS:
            raise InvalidRequest(f"top is {self.top}; expected {expected}", field="top")

    @property
    def needs_energy(self) -> bool:
        """True when joules decide."""
        return self.objective in (Objective.ENERGY, Objective.CARBON)

    def value(self, time_s: float, devices: int, energy_j: float) -> float:
        """The objective of one iteration: seconds, money, joules or grams."""
        if self.objective is Objective.TIME:
            return time_s
        if self.objective is Objective.COST:
            return time_s * devices / _SECONDS_PER_HOUR * self.price_per_hour
        if self.objective is Objective.ENERGY:
            return energy_j * self.pue
        return energy_j * self.pue / _JOULES_PER_KWH * self.carbon_g_per_kwh

    def bound(self, time_s: FloatArray, devices: FloatArray, energy_j: FloatArray) -> FloatArray:
        """(n,) the objective at the bounds of time and energy: no candidate is below its own."""
        unit = self.value(1.0, 1, 1.0)
        if self.objective is Objective.TIME:
            return time_s
        return unit * (time_s * devices if self.objective is Objective.COST else energy_j)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its exact answer and its objective."""

    plan: Plan
    outcome: Outcome
    value: float

    @property
    def devices(self) -> int:
        """Devices that it uses."""
        return self.plan.device_count


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """The fastest plan of a number of devices, faster than any of fewer."""

    plan: Plan
    time_s: float

    @property
    def devices(self) -> int:
        """Devices that it uses."""
        return self.plan.device_count


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search has found.

    Attributes:
        best: the best plans, best first. front: plans that no other beats in both time and devices, few
            devices first.
        considered: candidates. too_large: dropped by the bound of their memory. priced: priced exactly.
    """

    best: tuple[Found, ...]
    front: tuple[FrontPoint, ...]
    considered: int
    too_large: int
    priced: int


def search(
    space: SearchSpace,
    facts: Facts,
    source: CostSource,
    cuts: Cuts,
    capacity_bytes: float,
    goal: Goal,
    rank_jitter: float = 0.0,
) -> SearchResult:
    """The best plans of `space`.

    Args:
        cuts: those of `source`; what it remembers need not be made again.
        capacity_bytes: what tensors and the allocator may take of a device.
        rank_jitter: spread of log time from rank to rank; an iteration waits for its slowest rank.

    Raises InvalidPlan when the space is empty, DoesNotFit when no candidate fits in memory and deadline.
    """
    table = candidates(space, facts)
    waiting = _waiting(table.devices, rank_jitter)
    found = bounds(table, cuts)
    found = replace(found, time_s=found.time_s * waiting)
    possible = np.isfinite(found.time_s)
    if not possible.any():
        raise InvalidPlan(
            "plan search: the graph can be split in none of the ways looked at; allow dp or other axes",
            field="space",
        )
    fits = possible & (found.peak_bytes <= capacity_bytes)
    if goal.deadline_s is not None:
        fits &= found.time_s <= goal.deadline_s
    rows = np.flatnonzero(fits)
    pricing = _Pricing(table, found, source, cuts.cluster, facts.training, goal, waiting)
    best = pricing.best(rows)
    if not best:
        smallest = float(found.peak_bytes[possible].min())
        late = f" and {goal.deadline_s:g} s" if goal.deadline_s is not None else ""
        raise DoesNotFit(
            f"plan search: none of {len(table)} candidates fits in memory{late}; the leanest needs at least "
            f"{format_bytes(smallest)} of {format_bytes(capacity_bytes)} a device: allow more devices, or a "
            "later deadline"
        )
    front = pricing.front(rows)
    dropped = int((possible & (found.peak_bytes > capacity_bytes)).sum())
    return SearchResult(tuple(best), tuple(front), len(table), dropped, pricing.priced)


def _waiting(devices: NDArray[np.int64], rank_jitter: float) -> FloatArray:
    """(n,) factors on a mean rank's iteration: the slowest of so many ranks."""
    counts, index = np.unique(devices, return_inverse=True)
    return np.array([slowest(count, rank_jitter).mean for count in counts.tolist()])[index]


class _Pricing:
    """Exact prices of candidates, each made once."""

    def __init__(
        self,
        table: PlanTable,
        found: Bounds,
        source: CostSource,
        cluster: ClusterSpec,
        training: bool,
        goal: Goal,
        waiting: FloatArray,
    ) -> None:
        self._table, self._bounds, self._source = table, found, source
        self._cluster, self._training, self._goal = cluster, training, goal
        self._times: dict[int, float] = {}
        self._fits: dict[int, bool] = {}
        self._buckets: dict[int, StageBuckets] = {}
        self._devices, self._waiting = table.devices, waiting

    @property
    def priced(self) -> int:
        """Candidates priced exactly so far."""
        return len(self._times)

    def best(self, rows: NDArray[np.intp]) -> list[Found]:
        """The best of `rows`, best first."""
        devices = self._devices[rows].astype(np.float64)
        lower = self._goal.bound(self._bounds.time_s[rows], devices, self._least_energy_j(rows))
        kept = self._smallest(rows, lower, self._value, self._goal.top)
        found = []
        for _, row in kept:
            plan = self._table.plan(row)
            outcome = self._source.outcome(plan)
            value = self._goal.value(outcome.time_s, plan.device_count, outcome.energy_j)
            found.append(Found(plan, outcome, value))
        return sorted(found, key=lambda item: item.value)

    def front(self, rows: NDArray[np.intp]) -> list[FrontPoint]:
        """The fastest plan of each number of devices that beats all smaller numbers, as answers time it."""
        found: list[FrontPoint] = []
        for plan in self._fastest(rows):
            time_s = self._source.outcome(plan).time_s
            if not found or time_s < found[-1].time_s:
                found.append(FrontPoint(plan, time_s))
        return found

    def _fastest(self, rows: NDArray[np.intp]) -> list[Plan]:
        found: list[Plan] = []
        fastest = np.inf
        for count in np.unique(self._devices[rows]):
            mine = rows[self._devices[rows] == count]
            lower = self._bounds.time_s[mine]
            hopeful = lower < fastest
            for time_s, row in self._smallest(mine[hopeful], lower[hopeful], self._time, 1):
                if time_s < fastest:
                    fastest = time_s
                    found.append(self._table.plan(row))
        return found

    def _smallest(
        self, rows: NDArray[np.intp], lower: FloatArray, value: Callable[[int], float], count: int
    ) -> list[tuple[float, int]]:
        """The `count` smallest (value, row) among candidates that fit, as if all had been priced."""
        kept: list[tuple[float, int]] = []
        order = np.argsort(lower, kind="stable")
        for row, bound in zip(rows[order].tolist(), lower[order].tolist(), strict=True):
            full = len(kept) == count
            if full and bound >= kept[-1][0]:
                break
            price = value(row)
            if (full and price >= kept[-1][0]) or not np.isfinite(price) or not self._is_feasible(row):
                continue
            insort(kept, (price, row))
            del kept[count:]
        return kept

    def _time(self, row: int) -> float:
        """Iteration time; infinite where the plan does not work."""
        if row not in self._times:
            self._times[row] = self._exact_time(row)
        return self._times[row]

    def _exact_time(self, row: int) -> float:
        cut = int(self._bounds.cut[row])
        microbatch, ends = self._bounds.microbatches[cut], self._bounds.ends[cut]
        plan = self._table.plan(row)
        if cut not in self._buckets:
            self._buckets[cut] = plan_buckets(microbatch.columns, ends, plan)
        total_s = plan_total_s(
            microbatch.columns, ends, self._buckets[cut], plan, self._cluster, training=self._training
        )
        return total_s * float(self._waiting[row])

    def _value(self, row: int) -> float:
        time_s = self._time(row)
        energy = 0.0
        if self._goal.needs_energy and np.isfinite(time_s):
            microbatch = self._bounds.microbatches[int(self._bounds.cut[row])]
            wait = time_s / float(self._bounds.kernel_s[row])
            power_w = float(np.interp(wait, microbatch.waits, microbatch.power_w))
            energy = power_w * time_s * float(self._devices[row])
        return self._goal.value(time_s, int(self._devices[row]), energy)

    def _is_feasible(self, row: int) -> bool:
        deadline = self._goal.deadline_s
        if deadline is not None and self._time(row) > deadline:
            return False
        if row not in self._fits:
            ends = self._bounds.ends[int(self._bounds.cut[row])]
            self._fits[row] = self._source.fits(self._table.plan(row), ends)
        return self._fits[row]

    def _least_energy_j(self, rows: NDArray[np.intp]) -> FloatArray:
        """(n,) no candidate uses less: a longer wait never makes an iteration's energy smaller."""
        found = np.zeros(len(rows))
        if not self._goal.needs_energy:
            return found
        cuts = self._bounds.cut[rows]
        for cut in np.unique(cuts):
            microbatch = self._bounds.microbatches[int(cut)]
            mine = np.flatnonzero(cuts == cut)
            waits, power_w = microbatch.waits, microbatch.power_w
            least = np.minimum.accumulate((waits * power_w)[::-1])[::-1]
            kernel_s = self._bounds.kernel_s[rows[mine]]
            # The table's value at or before the bound's wait: not above any at a longer one.
            wait = self._bounds.time_s[rows[mine]] / kernel_s
            at = np.clip(np.searchsorted(waits, wait, side="right") - 1, 0, len(waits) - 1)
            found[mine] = least[at] * kernel_s * self._devices[rows[mine]]
        return found
