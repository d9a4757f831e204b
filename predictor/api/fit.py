"""The largest batch, dimension or number of layers with which a job fits in memory, as sure as is wanted.

Peaks grow almost in proportion, so that a few programs decide: those at two or three sizes give the memory of
all others (features/programs/scaling.py), the search walks along them, and the program at the size it ends at
is built and judged. Larger sizes are taken to need more; where the model of memory says otherwise from one
size to the next, the answer is a size that fits while the next does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, floor, log
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.api.requested import check_unbound
from predictor.checks import whole_number
from predictor.compose.memory import MemoryCost
from predictor.errors import InvalidInput, InvalidRequest
from predictor.features.programs.memory_timeline import Line
from predictor.features.programs.scaling import SizedPrograms
from predictor.fits import PROBABILITY, FitAnswer, FitPoint, check_probability
from predictor.models.memory.peak import ForwardWork, forward_work, mixed_forward
from predictor.parallel.rank_program import RankProgram
from predictor.request import PredictionRequest
from predictor.types import Interval

BATCH, LAYERS, SEQUENCE = "batch", "layers", "sequence"
_LAYER_FIELDS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_MOST_LAYERS = 1024
_TOKENS = 512
LIMIT = 2**20
"""Values beyond it are not looked at."""
_PROBES = 60
# After as many steps along the line through the last two sizes, halves.
_STRAIGHT = 5
_CLOSE = 16
_ROUNDS = 3
_GROWING = (Line.SAVED, Line.RECOMPUTED, Line.TRANSIENT)
# As near to a size that was built, sizes between are trusted.
_NEAR = 0.5


@dataclass(frozen=True, slots=True)
class Axis:
    """What grows.

    Attributes:
        name: `batch`, `layers` or a dimension of the graph.
        at: the request at that many steps; `step` is what one adds (a batch that every replica and
            microbatch has a part of).
        start: steps that the request itself has. limit: steps, at most.
        degree: of the polynomial that sizes follow; 0 where programs are not alike.
    """

    name: str
    at: Callable[[int], PredictionRequest]
    step: int = 1
    start: int = 1
    limit: int = LIMIT
    degree: int = 1


class MemorySource(Protocol):
    """Who knows programs and their peaks."""

    def rank(self, request: PredictionRequest) -> RankProgram:
        """One microbatch of one rank, remembered."""
        ...

    def memory_of(
        self,
        request: PredictionRequest,
        rank: RankProgram,
        forward: ForwardWork | None = None,
        ends: NDArray[np.intp] | None = None,
    ) -> MemoryCost:
        """The peak when `rank` runs, a pipeline cut at `ends`."""
        ...

    def stage_ends(self, request: PredictionRequest) -> NDArray[np.intp]:
        """Where a pipeline of the request's plan is cut."""
        ...


def batch_axis(request: PredictionRequest) -> Axis:
    """The global batch, in steps of one sample for each microbatch of each replica. Raises InvalidRequest."""
    check_unbound(request, "fit")
    step = request.plan.dp * request.plan.microbatches
    start = max(1, (request.batch or step) // step)
    return Axis(BATCH, lambda steps: replace(request, batch=steps * step), step, start, max(1, LIMIT // step))


def dimension_axis(request: PredictionRequest, name: str, start: int | None = None) -> Axis:
    """A symbolic dimension of the graph, such as `sequence`."""

    def at(steps: int) -> PredictionRequest:
        return replace(request, dims={**request.dims, name: steps})

    return Axis(name, at, 1, start or request.dims.get(name, 128), degree=2)


def config_axis(
    request: PredictionRequest, config: Mapping[str, Any], name: str, sequence: int | None = None
) -> Axis:
    """Layers, or tokens of a sequence, of a model made from its `config.json`. Raises InvalidRequest."""
    from predictor.features.architectures.from_config import from_config

    def build(fields: Mapping[str, Any], tokens: int | None) -> PredictionRequest:
        return replace(request, graph=from_config(fields, sequence=tokens))

    if name == SEQUENCE:
        start = sequence or _TOKENS
        return Axis(name, lambda tokens: build(config, tokens), start=start, degree=2)
    found = [field for field in _LAYER_FIELDS if field in config]
    if not found:
        raise InvalidRequest(
            f"fit: the configuration has no number of layers; expected one of {', '.join(_LAYER_FIELDS)}",
            field="axis",
        )
    start = whole_number(config[found[0]], found[0], "axis", "a positive number of layers")
    return Axis(
        LAYERS,
        lambda layers: build({**config, found[0]: layers}, sequence),
        start=start,
        limit=_MOST_LAYERS,
        degree=0,
    )


def fit(source: MemorySource, axis: Axis, probability: float = PROBABILITY) -> FitAnswer:
    """The last size along `axis` that fits with `probability`.

    Raises InvalidRequest (probability, an axis that changes nothing), and as `predict` for the smallest size.
    """
    check_probability(probability)
    search = _Search(source, axis, probability)
    last, stopped = search.run()
    costs = search.points
    return FitAnswer(
        axis=axis.name,
        step=axis.step,
        wanted=float(probability),
        largest=costs[last] if last else None,
        beyond=costs.get(last + 1) if last else None,
        smallest=costs.get(1),
        asked=costs.get(axis.start),
        capacity_bytes=search.capacity_bytes,
        device=search.device,
        stopped=stopped,
    )


@dataclass(slots=True)
class _Search:
    """Sizes looked at so far, in steps; `built` are those whose programs were built."""

    source: MemorySource
    axis: Axis
    wanted: float
    points: dict[int, FitPoint] = field(default_factory=dict)
    built: dict[int, RankProgram] = field(default_factory=dict)
    capacity_bytes: float = 0.0
    device: str = ""
    reason: str = ""
    request: PredictionRequest | None = None
    ends: NDArray[np.intp] | None = None
    scaled: tuple[SizedPrograms, list[ForwardWork]] | None = None

    def run(self) -> tuple[int, str]:
        """Steps of the last size that fits (0: none), and why nothing larger was looked at."""
        axis = self.axis
        asked = self._tried(axis.start) if axis.start > 1 else None
        if not self._fits(asked) and not self._fits(self.exact(1)):
            return 0, ""
        self._scale()
        last, stopped = self._walk()
        for _ in range(_ROUNDS):
            # Other sizes than batches may have an end that no polynomial knows, such as a table of positions.
            near = 0.0 if axis.degree > 1 else _NEAR
            if self.scaled is None or min(abs(last / steps - 1) for steps in self.built) <= near:
                break
            if not self._build(last):
                self.scaled = None
                self.points = {size: point for size, point in self.points.items() if size in self.built}
            last, stopped = self._walk()
        return last, stopped

    def exact(self, steps: int) -> FitPoint:
        """By the program of that size."""
        self.request = self.axis.at(steps)
        rank = self.source.rank(self.request)
        point = self._point(steps, self.request, rank)
        self.built[steps] = rank
        return point

    def _tried(self, steps: int) -> FitPoint | None:
        """By programs of other sizes where there are any; None where there is no program of that size."""
        if steps in self.points:
            return self.points[steps]
        try:
            if self.scaled is None:
                return self.exact(steps)
            programs, forwards = self.scaled
            rank = self.built[programs.values[0]]
            program = programs.at(steps, rank.program.batch)
            forward = mixed_forward(forwards, programs.weights(steps))
            assert self.request is not None
            return self._point(steps, self.request, replace(rank, program=program), forward)
        except InvalidInput as error:
            self.reason = error.message
            return None

    def _point(
        self,
        steps: int,
        request: PredictionRequest,
        rank: RankProgram,
        forward: ForwardWork | None = None,
    ) -> FitPoint:
        # A pipeline is cut where it was at the last size that was built.
        if forward is None and request.plan.pp > 1:
            self.ends = self.source.stage_ends(request)
        cost = self.source.memory_of(request, rank, forward, self.ends)
        self.capacity_bytes = cost.capacity_bytes
        self.device = request.device if isinstance(request.device, str) else request.device.id
        point = FitPoint(steps * self.axis.step, cost.device_peak, cost.fit_probability)
        self.points[steps] = point
        return point

    def _fits(self, point: FitPoint | None) -> bool:
        return point is not None and point.probability >= self.wanted

    def _scale(self) -> None:
        """Programs at a few sizes, the last near the answer, for all others."""
        for _ in range(self.axis.degree):
            steps = self._next_built()
            if steps in self.built or not self._build(steps):
                return

    def _build(self, steps: int) -> bool:
        """Builds one more program; sizes between follow those next to it. False where there is none."""
        try:
            self.exact(steps)
        except InvalidInput as error:
            self.reason = error.message
            return False
        near = sorted(self.built, key=lambda size: abs(size - steps))[: self.axis.degree + 1]
        programs = [self.built[size].program for size in near]
        if len({program.memory.live_peak_bytes for program in programs}) == 1:
            raise InvalidRequest(
                f"fit: {self.axis.name} changes nothing: no tensor that counts at the peak has it; `perfcast "
                "graph show` lists the graph's dimensions",
                field="axis",
            )
        found = SizedPrograms.of(near, programs)
        self.scaled = None if found is None else (found, [forward_work(program) for program in programs])
        self.points = {size: point for size, point in self.points.items() if size in self.built}
        return found is not None

    def _next_built(self) -> int:
        """Where to build: the answer as far as it is known, from what one program holds whatever its size."""
        known = max(self.built)
        if len(self.built) > 1 and self.scaled is not None:
            return self._walk()[0]
        timeline = self.built[known].program.timeline
        if timeline is None:
            return 2 * known
        inputs = sum(timeline.held.input_bytes)
        fixed = timeline.held.total_bytes - inputs + timeline.sum_of(Line.PARAMETER_GRADIENT)
        by_line = timeline.bytes_by_line
        grows = inputs + float(sum(by_line[line] for line in _GROWING).max())
        here = self.points[known].peak
        base = here.value - float(timeline.total_bytes.max()) + fixed
        steps = known * (self._target_bytes(here) - base) / max(1.0, grows)
        # Lengths stand twice in some sizes.
        steps = steps if self.axis.degree == 1 else min(steps, 2.0 * known)
        other = max(1, min(self.axis.limit, floor(steps)))
        return other if other != known else known + 1

    def _walk(self) -> tuple[int, str]:
        last = max(steps for steps, point in self.points.items() if self._fits(point))
        above: int | None = None
        for probe in range(_PROBES):
            if last >= self.axis.limit:
                return last, f"sizes beyond {self.axis.limit * self.axis.step} are not looked at"
            if above is not None and above - last <= 1:
                break
            # Close to the edge rounding hides the slope, and halving needs fewer programs.
            far = above is None or above - last > _CLOSE
            steps = self._guess(last, above, straight=far and probe < _STRAIGHT)
            point = self._tried(steps)
            if self._fits(point):
                last = steps
            else:
                above = steps
        stopped = "" if (last + 1) in self.points else self.reason
        return last, stopped

    def _guess(self, last: int, above: int | None, *, straight: bool) -> int:
        """The next size: where the line through two sizes meets the capacity, else half-way."""
        top = self.axis.limit if above is None else above - 1
        here = self.points[last]
        others = [steps for steps in self.points if steps != last]
        if straight and others:
            other = min(others, key=lambda steps: abs(steps - last))
            slope = (here.peak.value - self.points[other].peak.value) / (last - other)
            if slope > 0:
                room = min(1e18, (self._target_bytes(here.peak) - here.peak.value) / slope)
                return min(top, max(last + 1, last + floor(room)))
        return min(top, 2 * last if above is None else (last + above) // 2)

    def _target_bytes(self, peak: Interval) -> float:
        """The central peak with which the wanted probability is just reached (compose.memory)."""
        quantile = NormalDist().inv_cdf(self.wanted)
        bound = peak.high if self.wanted >= 0.5 else peak.low
        spread = abs(log(max(bound, 1.0) / peak.value)) / NormalDist().inv_cdf(0.95)
        return self.capacity_bytes / exp(quantile * spread)
