"""The last step for plans of many ranks: costs of a rank's microbatch become a Prediction."""

from __future__ import annotations

from predictor.api.answer import prediction_of
from predictor.compose.energy import slowdown_under_cap
from predictor.compose.memory import compose_memory
from predictor.compose.plan_cost import compose_plan, compose_plan_energy, microbatch_costs
from predictor.compose.time import ProgramCosts
from predictor.compose.timeline import Timeline, timeline
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory import MemoryModel
from predictor.models.power import PowerModel
from predictor.parallel.memory_stages import RankMemory
from predictor.parallel.rank_program import RankProgram
from predictor.request import PredictionRequest
from predictor.types import Mode, Prediction


def assemble_plan(
    request: PredictionRequest,
    *,
    rank: RankProgram,
    costs: ProgramCosts,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
    memory_model: MemoryModel,
    power_model: PowerModel,
    bundle_id: str,
) -> Prediction:
    """The prediction of a plan whose ranks run `rank`, priced on `device` as `costs`."""
    plan, runtime = request.plan, request.runtime
    slowdown = slowdown_under_cap(rank.program, costs, device, runtime, request.power_limit_w, power_model)
    microbatch = microbatch_costs(rank, costs, runtime=runtime, plan=plan, cluster=cluster, slowdown=slowdown)
    time, found = compose_plan(microbatch, plan, cluster, training=request.mode is Mode.TRAIN)
    memory = compose_memory(
        rank.program,
        device,
        plan,
        memory_model,
        memory=RankMemory(rank) if rank.program.timeline is not None else None,
        ends=found.stages.ends,
    )
    energy = compose_plan_energy(
        rank, costs, time, microbatch.alone, device, plan, runtime, request.power_limit_w, power_model
    )
    return prediction_of(
        request,
        program=rank.program,
        samples=rank.program.batch * plan.dp * plan.microbatches,
        time=time,
        memory=memory,
        energy=energy,
        device=device,
        cluster=cluster,
        bundle_id=bundle_id,
    )


def plan_timeline(
    request: PredictionRequest,
    rank: RankProgram,
    costs: ProgramCosts,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
    power_model: PowerModel,
) -> Timeline:
    """The events of one iteration of the request's plan."""
    slowdown = slowdown_under_cap(
        rank.program, costs, device, request.runtime, request.power_limit_w, power_model
    )
    microbatch = microbatch_costs(
        rank, costs, runtime=request.runtime, plan=request.plan, cluster=cluster, slowdown=slowdown
    )
    return timeline(microbatch.columns, request.plan, cluster, training=request.mode is Mode.TRAIN)
