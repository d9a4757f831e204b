"""The last step for plans of many ranks: costs of a rank's microbatch become a Prediction."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.api.answer import prediction_of
from predictor.compose.energy import slowdown_under_cap
from predictor.compose.memory import compose_memory
from predictor.compose.plan_cost import (
    MicrobatchCosts,
    compose_plan,
    compose_plan_energy,
    microbatch_costs,
)
from predictor.compose.time import ProgramCosts
from predictor.compose.timeline import Timeline, timeline
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory import MemoryModel
from predictor.models.power import PowerModel
from predictor.parallel.memory_stages import RankMemory
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
            slowdown=slowdown,
        )

    def answer(self, resolved: Resolved, bundle_id: str) -> Prediction:
        """The prediction of a plan of many ranks, stages or microbatches."""
        request, rank, device = resolved.request, resolved.rank, resolved.device
        plan, microbatch = request.plan, self.microbatch(resolved)
        time, found = compose_plan(microbatch, plan, resolved.cluster, training=request.mode is Mode.TRAIN)
        memory = compose_memory(
            rank.program,
            device,
            plan,
            self.memory,
            memory=RankMemory(rank) if rank.program.timeline is not None else None,
            ends=found.stages.ends,
        )
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

    def timeline(self, resolved: Resolved) -> Timeline:
        """The events of one iteration of the request's plan."""
        request = resolved.request
        columns = self.microbatch(resolved).columns
        return timeline(columns, request.plan, resolved.cluster, training=request.mode is Mode.TRAIN)
