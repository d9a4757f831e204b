"""The last step for plans of many ranks: costs of a rank's microbatch become a Prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from predictor.api.answer import prediction_of
from predictor.api.requested import job_framework
from predictor.compose.energy import slowdown_under_cap
from predictor.compose.interval import log_interval
from predictor.compose.memory import MemoryCost, compose_memory
from predictor.compose.plan_cost import (
    MicrobatchCosts,
    compose_plan,
    compose_plan_energy,
    is_plain,
    microbatch_costs,
)
from predictor.compose.rank_costs import IntArray
from predictor.compose.step_facts import step_facts
from predictor.compose.stragglers import with_stragglers
from predictor.compose.time import ProgramCosts, TimeCost
from predictor.compose.timeline import Timeline, timeline
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory.peak import ForwardWork, MemoryModel
from predictor.models.plans.plan_calibration import ClusterPlans, PlanPoint, plan_point
from predictor.models.plans.step_correction import StepCorrection, StepFacts
from predictor.models.power.board_power import PowerModel
from predictor.models.steps.features import LATEST_VERSION
from predictor.parallel.memory_stages import RankMemory
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.request import PredictionRequest
from predictor.types import Mode, Prediction


@dataclass(frozen=True, slots=True)
class Resolved:
    """A request with every name looked up."""

    request: PredictionRequest
    rank: RankProgram
    device: DeviceSpec
    cluster: ClusterSpec | None
    costs: ProgramCosts


@dataclass(frozen=True, slots=True)
class Pricing:
    """The models that turn a priced program into time, memory and energy of a plan."""

    memory: MemoryModel
    power: PowerModel
    correction: StepCorrection | None = None
    plans: Sequence[ClusterPlans] = ()

    def microbatch(self, resolved: Resolved) -> MicrobatchCosts:
        """Costs of one microbatch of a rank."""
        request = resolved.request
        slowdown = slowdown_under_cap(
            resolved.rank.program,
            resolved.costs,
            resolved.device,
            request.runtime,
            request.power_limit_w,
            self.power,
        )
        return microbatch_costs(
            resolved.rank,
            resolved.costs,
            runtime=request.runtime,
            plan=request.plan,
            cluster=resolved.cluster,
            device=resolved.device,
            slowdown=slowdown,
            framework=request.runs_framework,
        )

    def answer(self, resolved: Resolved, bundle_id: str) -> Prediction:
        """The prediction of a plan of many ranks, stages or microbatches."""
        request, rank, device = resolved.request, resolved.rank, resolved.device
        plan, microbatch = request.plan, self.microbatch(resolved)
        time, found = compose_plan(microbatch, plan, resolved.cluster, training=request.mode is Mode.TRAIN)
        time = with_stragglers(self._corrected(resolved, time), plan.device_count, request.rank_jitter)
        memory = self.memory_of(rank, device, plan, found.stages.ends, framework=job_framework(request))
        energy = compose_plan_energy(
            rank,
            resolved.costs,
            time,
            microbatch.alone,
            device,
            plan,
            request.runtime,
            request.power_limit_w,
            self.power,
        )
        return prediction_of(
            request,
            program=rank.program,
            samples=rank.program.batch * plan.dp * plan.microbatches,
            time=time,
            memory=memory,
            energy=energy,
            device=device,
            cluster=resolved.cluster,
            bundle_id=bundle_id,
        )

    def memory_of(
        self,
        rank: RankProgram,
        device: DeviceSpec,
        plan: Plan,
        ends: Sequence[int] | IntArray | None = None,
        forward: ForwardWork | None = None,
        framework: float = LATEST_VERSION,
    ) -> MemoryCost:
        """Peak of the device that needs the most when ranks of `plan` run `rank`, cut at `ends`."""
        cut = not is_plain(plan) and rank.program.timeline is not None
        memory = RankMemory(rank) if cut else None
        return compose_memory(
            rank.program,
            device,
            plan,
            self.memory,
            memory=memory,
            ends=ends,
            forward=forward,
            framework=framework,
        )

    def stage_ends(self, resolved: Resolved) -> IntArray:
        """Pieces up to and including each virtual stage of the request's plan."""
        plan, training = resolved.request.plan, resolved.request.mode is Mode.TRAIN
        return compose_plan(self.microbatch(resolved), plan, resolved.cluster, training=training)[
            1
        ].stages.ends

    def facts(self, resolved: Resolved, time: TimeCost) -> StepFacts:
        """What corrections know of an iteration that was composed to `time`."""
        program, plan = resolved.rank.program, resolved.request.plan
        copies = np.ones(len(program.ops))
        return step_facts(program, resolved.costs, copies, time, plan, resolved.device, resolved.cluster)

    def composed(self, resolved: Resolved) -> tuple[TimeCost, PlanPoint]:
        """The composed time before any correction, and where the calibration of plans sees it."""
        training = resolved.request.mode is Mode.TRAIN
        time, _ = compose_plan(
            self.microbatch(resolved), resolved.request.plan, resolved.cluster, training=training
        )
        return time, self._point(resolved, time)

    def _point(self, resolved: Resolved, time: TimeCost) -> PlanPoint:
        pieces = resolved.rank.pieces
        layers = max(Counter(pieces.repeats).values()) if pieces is not None else 1
        return plan_point(self.facts(resolved, time), layers)

    def _corrected(self, resolved: Resolved, time: TimeCost) -> TimeCost:
        """`time` times what the cluster's own runs or published ones teach, all parts alike."""
        cluster = resolved.cluster
        for stored in self.plans:
            if cluster is not None and stored.is_of(resolved.device, cluster):
                points = [self._point(resolved, time)]
                factor = float(np.exp(stored.calibration.log_factors(points)[0]))
                return _scaled(time, factor, float(stored.calibration.log_spreads(points)[0]))
        return self._by_published(resolved, time)

    def _by_published(self, resolved: Resolved, time: TimeCost) -> TimeCost:
        """Training on several devices only."""
        plan = resolved.request.plan
        if self.correction is None or plan.device_count == 1 or resolved.request.mode is not Mode.TRAIN:
            return time
        found = self.correction.corrected(self.facts(resolved, time))
        return _scaled(time, found.factor, found.log_spread)

    def timeline(self, resolved: Resolved) -> Timeline:
        """The events of one iteration of the request's plan."""
        request = resolved.request
        columns = self.microbatch(resolved).columns
        return timeline(columns, request.plan, resolved.cluster, training=request.mode is Mode.TRAIN)


def _scaled(time: TimeCost, factor: float, log_spread: float) -> TimeCost:
    return replace(
        time,
        iteration=log_interval(time.iteration.value * factor, log_spread),
        breakdown_s={name: part * factor for name, part in time.breakdown_s.items()},
        device_busy_s=time.device_busy_s * factor,
    )
