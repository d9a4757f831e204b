"""Plan search for a request: its graph, device and cluster as a source of costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from predictor.api.plan_answer import Pricing, Resolved
from predictor.cache import Memo
from predictor.checks import whole_number
from predictor.compose.interval import FloatArray
from predictor.compose.memory import compose_memory
from predictor.compose.plan_cost import MicrobatchCosts, compose_plan_energy
from predictor.compose.rank_costs import IntArray, repeated
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.graph import Graph
from predictor.features.lowering.recompute import replayed_nodes
from predictor.hardware.spec import usable_bytes
from predictor.parallel.memory_stages import RankMemory
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.bounds import Cuts, microbatch_key
from predictor.search.search import Goal, SearchResult, search
from predictor.search.source import Microbatch, Outcome
from predictor.search.space import Facts, SearchSpace, default_space
from predictor.types import Mode, Prediction, Recompute

# An iteration lasts from as long as its kernels to this many times as long; the power of a device is tabled
# at so many lengths between.
_LONGEST_WAIT, _WAITS = 64.0, 40
_SOME_BYTES = 1e12


class PlanSource:
    """Costs of one request's model under any plan; columns are remembered, programs are the predictor's."""

    def __init__(
        self,
        request: PredictionRequest,
        pricing: Pricing,
        answer: Callable[[PredictionRequest], Prediction],
        resolve: Callable[[PredictionRequest], Resolved],
        resolve_thin: Callable[[PredictionRequest], tuple[Resolved, IntArray | None]],
        *,
        with_energy: bool,
    ) -> None:
        self._request, self._pricing = request, pricing
        self._answer, self._resolve, self._resolve_thin = answer, resolve, resolve_thin
        self._with_energy = with_energy
        self._microbatches: dict[Hashable, Microbatch | None] = {}
        self._memories: Memo[Hashable, RankMemory] = Memo(64)

    def microbatch(self, plan: Plan, samples: int) -> Microbatch | None:
        """Costs of a microbatch, or None where the graph cannot be split so."""
        key = microbatch_key(plan, samples)
        if key not in self._microbatches:
            try:
                self._microbatches[key] = self._priced(plan)
            except InvalidPlan:
                self._microbatches[key] = None
        return self._microbatches[key]

    def _priced(self, plan: Plan) -> Microbatch:
        asked = replace(self._request, plan=plan)
        if self.is_thin:
            resolved, rows = self._resolve_thin(asked)
            if rows is not None and (thin := self._columns(plan, resolved, rows)) is not None:
                return thin
        found = self._columns(plan, self._resolve(asked), None)
        assert found is not None
        return found

    @cached_property
    def is_thin(self) -> bool:
        """Whether a few layers of the model can stand for all: checked once, on the unsplit model."""
        pieces = self.whole.rank.pieces
        resolved, rows = self._resolve_thin(self.whole.request)
        thin = resolved.rank.pieces
        if pieces is None or thin is None or rows is None:
            return False
        return [thin.repeats[row] for row in rows] == list(pieces.repeats)

    def _columns(self, plan: Plan, resolved: Resolved, rows: IntArray | None) -> Microbatch | None:
        costs = self._pricing.microbatch(resolved)
        memory = RankMemory(resolved.rank)
        pieces = range(memory.pieces)
        kept = np.array([memory.chunk(i, i + 1, offloaded=False).kept_bytes for i in pieces])
        weights, seen = np.zeros((3, memory.pieces)), set[str]()
        for piece, names in enumerate(memory.weights.names):
            for name in names - seen:
                weights[:, piece] += memory.weights.sizes[name][:3]
            seen |= names
        columns = costs.columns
        if rows is not None:
            whole = repeated(columns, rows)
            if whole is None:
                return None
            columns, kept, weights = whole, kept[rows], weights[:, rows]
        waits, power_w = self._power(resolved, costs)
        return Microbatch(columns, kept, weights, self._memory_factor(resolved), waits, power_w)

    def _memory_factor(self, resolved: Resolved) -> float:
        """What the allocator takes over the tensors, as the memory model has it for parts of a program."""
        device, model = resolved.device, self._pricing.memory
        some = {"activations": _SOME_BYTES}
        peak = model.predict_stage(resolved.rank.program, device, some, 0).device_peak.value
        return max(1.0, (peak - model.runtime_context_bytes(device)) / _SOME_BYTES)

    def _power(self, resolved: Resolved, costs: MicrobatchCosts) -> tuple[FloatArray, FloatArray]:
        """Mean draw by length of the iteration over the kernels' time."""
        waits = np.geomspace(1.0, _LONGEST_WAIT, _WAITS) if self._with_energy else np.zeros(0)
        alone, kernel_s = costs.alone, max(costs.alone.device_busy_s, 1e-12)
        power = []
        for wait in waits.tolist():
            time = replace(alone, iteration=alone.iteration.scaled(wait * kernel_s / alone.iteration.value))
            energy = compose_plan_energy(
                resolved.rank,
                resolved.costs,
                time,
                alone,
                resolved.device,
                Plan(),
                self._request.runtime,
                self._request.power_limit_w,
                self._pricing.power,
            )
            power.append(energy.average_power_w.value)
        return waits, np.array(power)

    def fits(self, plan: Plan, ends: IntArray) -> bool:
        """Whether the device that needs the most has the memory."""
        resolved = self._resolve(replace(self._request, plan=plan))
        memory = self._rank_memory(plan, resolved)
        if int(ends[-1]) != memory.pieces:
            # The thin graph was cut into other pieces than the whole one.
            return self._answer(replace(self._request, plan=plan)).fits
        found = compose_memory(
            resolved.rank.program, resolved.device, plan, self._pricing.memory, memory=memory, ends=ends
        )
        return found.fits

    def outcome(self, plan: Plan) -> Outcome:
        """The public answer."""
        answer = self._answer(replace(self._request, plan=plan))
        return Outcome(
            answer.iteration_time_s.value,
            answer.energy_j.value,
            answer.device_peak_bytes.value,
            answer.time_breakdown_s,
        )

    def _rank_memory(self, plan: Plan, resolved: Resolved) -> RankMemory:
        key = microbatch_key(plan, resolved.rank.program.batch)
        return self._memories.get_or(key, lambda: RankMemory(resolved.rank))

    @property
    def rank_jitter(self) -> float:
        """Spread of log time from rank to rank."""
        return self._request.rank_jitter

    @cached_property
    def whole(self) -> Resolved:
        """The unsplit model on one sample."""
        batch = self._request.batch or 1
        return self._resolve(replace(self._request, plan=Plan(microbatches=batch)))

    @cached_property
    def cuts(self) -> Cuts:
        """Cuts of all microbatches, remembered."""
        cluster = self.whole.cluster
        assert cluster is not None
        return Cuts(self, cluster, self._request.mode is Mode.TRAIN)

    @property
    def capacity_bytes(self) -> float:
        """What the runtime leaves to tensors and the allocator."""
        device = self.whole.device
        return usable_bytes(device) - self._pricing.memory.runtime_context_bytes(device)

    def facts(self) -> Facts:
        """What bounds the choices. Raises InvalidRequest for sources that cannot be split."""
        resolved, request = self.whole, self._request
        graph, pieces = resolved.rank.graph, resolved.rank.pieces
        cluster = resolved.cluster
        if graph is None or pieces is None or cluster is None or request.batch is None:
            raise InvalidRequest(
                "plan search needs an ONNX model, a batch and a cluster: a captured torch module cannot be "
                "split (export it with `perfcast graph from-torch`)",
                field="graph",
            )
        repeated = [count for count in Counter(pieces.repeats).values() if count > 1]
        return Facts(
            batch=request.batch,
            layers=max(repeated, default=0),
            pieces=len(pieces),
            experts=_experts(graph),
            devices=cluster.device_count,
            per_node=cluster.devices_per_node,
            training=request.mode is Mode.TRAIN,
            selective=bool(replayed_nodes(graph, Recompute.SELECTIVE)),
        )


def search_plans(
    source: PlanSource,
    goal: Goal,
    max_devices: int | None,
    cp: Sequence[int],
    space: SearchSpace | None,
) -> SearchResult:
    """The best plans for the source's request; `max_devices` and `cp` shape the default space."""
    if max_devices is not None:
        whole_number(max_devices, "max_devices", "max_devices", "a whole number of at least 1")
    ways = [whole_number(number, "cp", "cp", "whole numbers of at least 1") for number in cp]
    facts = source.facts()
    if space is None:
        space = replace(default_space(facts, max_devices), cp=tuple(sorted(set(ways))) or (1,))
    chosen = space
    return search(chosen, facts, source, source.cuts, source.capacity_bytes, goal, source.rank_jitter)


def _experts(graph: Graph) -> int:
    """Experts of the largest mixture, by the rules that split them."""
    from predictor.parallel.sharding.book import Book
    from predictor.parallel.sharding.experts import EXPERTS

    book, most = Book(graph, 2, training=False), 0
    for index, node in enumerate(graph.nodes):
        rule = EXPERTS.get(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
        if rule is not None:
            most = max(most, rule(book.view(index)))
    return most if most > 1 else 0
