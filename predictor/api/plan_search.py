"""Plan search for a request: its graph, device and cluster as a source of costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import cached_property

import numpy as np

from predictor.api.plan_answer import Pricing, Resolved
from predictor.compose.memory import compose_memory, usable_bytes
from predictor.compose.plan_cost import compose_plan_energy
from predictor.compose.rank_costs import IntArray
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.graph import Graph
from predictor.parallel.memory_stages import RankMemory
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.bounds import microbatch_key
from predictor.search.search import Goal, SearchResult, search
from predictor.search.source import Microbatch, Outcome
from predictor.search.space import Facts, SearchSpace, default_space
from predictor.types import Mode, Prediction

# An iteration lasts from as long as its kernels to this many times as long; the power of a device is tabled
# at so many lengths between.
_LONGEST_WAIT, _WAITS = 64.0, 40


class PlanSource:
    """Costs of one request's model under any plan; columns are remembered, programs are the predictor's."""

    def __init__(
        self,
        request: PredictionRequest,
        pricing: Pricing,
        answer: Callable[[PredictionRequest], Prediction],
        resolve: Callable[[PredictionRequest], Resolved],
        *,
        with_energy: bool,
    ) -> None:
        self._request, self._pricing = request, pricing
        self._answer, self._resolve, self._with_energy = answer, resolve, with_energy
        self._microbatches: dict[Hashable, Microbatch | None] = {}
        self._memory: tuple[Hashable, RankMemory] | None = None

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
        resolved = self._resolve(replace(self._request, plan=plan))
        costs = self._pricing.microbatch(resolved)
        memory = self._rank_memory(plan, resolved)
        pieces = range(memory.pieces)
        kept = [memory.chunk(piece, piece + 1, offloaded=False).kept_bytes for piece in pieces]
        weights, seen = np.zeros((3, memory.pieces)), set[str]()
        for piece, names in enumerate(memory.weights.names):
            for name in names - seen:
                weights[:, piece] += memory.weights.sizes[name][:3]
            seen |= names
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
        return Microbatch(costs.columns, np.array(kept), weights, waits, np.array(power))

    def fits(self, plan: Plan, ends: IntArray) -> bool:
        """Whether the device that needs the most has the memory."""
        resolved = self._resolve(replace(self._request, plan=plan))
        memory = self._rank_memory(plan, resolved)
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
        key = (resolved.rank.program.fingerprint, microbatch_key(plan, resolved.rank.program.batch))
        if self._memory is None or self._memory[0] != key:
            self._memory = (key, RankMemory(resolved.rank))
        return self._memory[1]

    @cached_property
    def whole(self) -> Resolved:
        """The unsplit model on one sample."""
        batch = self._request.batch or 1
        return self._resolve(replace(self._request, plan=Plan(microbatches=batch)))

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
        )


def search_plans(
    source: PlanSource, goal: Goal, max_devices: int | None, space: SearchSpace | None
) -> SearchResult:
    """The best plans for the source's request."""
    facts, resolved = source.facts(), source.whole
    assert resolved.cluster is not None
    chosen = default_space(facts, max_devices) if space is None else space
    return search(chosen, facts, source, resolved.cluster, usable_bytes(resolved.device), goal)


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
