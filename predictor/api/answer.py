"""The last step: costs of one program become a Prediction with its warnings."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.api.notices import NOTABLE_FRACTION, notices
from predictor.api.requested import job_framework
from predictor.compose.energy import EnergyCost, compose_energy, slowdown_under_cap
from predictor.compose.memory import MemoryCost, compose_memory
from predictor.compose.stragglers import with_stragglers
from predictor.compose.time import ProgramCosts, TimeCost, compose_time, framework_launch_s
from predictor.features.programs.work import Program
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory.peak import MemoryModel
from predictor.models.power.board_power import PowerModel
from predictor.request import PredictionRequest
from predictor.types import Prediction


def assemble(
    request: PredictionRequest,
    *,
    program: Program,
    costs: ProgramCosts,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
    memory_model: MemoryModel,
    power_model: PowerModel,
    bundle_id: str,
) -> Prediction:
    """The prediction of a priced program."""
    plan = request.plan
    time = compose_time(
        program,
        costs,
        runtime=request.runtime,
        plan=plan,
        cluster=cluster,
        slowdown=slowdown_under_cap(
            program, costs, device, request.runtime, request.power_limit_w, power_model
        ),
        launch_s=framework_launch_s(program, request.runtime) if request.runs_framework else None,
    )
    time = with_stragglers(time, plan.device_count, request.rank_jitter)
    framework = job_framework(request)
    memory = compose_memory(program, device, plan, memory_model, framework=framework)
    energy = compose_energy(
        program, costs, time, device, plan, request.runtime, request.power_limit_w, power_model
    )
    return prediction_of(
        request,
        program=program,
        samples=program.batch * plan.dp,
        time=time,
        memory=memory,
        energy=energy,
        device=device,
        cluster=cluster,
        bundle_id=bundle_id,
    )


def prediction_of(
    request: PredictionRequest,
    *,
    program: Program,
    samples: int,
    time: TimeCost,
    memory: MemoryCost,
    energy: EnergyCost,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
    bundle_id: str,
) -> Prediction:
    """The parts of an answer, put together; `samples` are those of one iteration over all devices."""
    return Prediction(
        iteration_time_s=time.iteration,
        throughput_samples_per_s=time.iteration.inverse(samples),
        device_peak_bytes=memory.device_peak,
        allocator_peak_bytes=memory.allocator_peak,
        fits=memory.fits,
        energy_j=energy.energy_j,
        average_power_w=energy.average_power_w,
        time_breakdown_s=_floats(time.breakdown_s),
        memory_breakdown_bytes=_floats(memory.breakdown_bytes),
        energy_breakdown_j=_floats(energy.breakdown_j),
        coverage=time.coverage,
        bundle=bundle_id,
        graph=program.fingerprint,
        device=device.id,
        device_count=request.plan.device_count,
        capacity_bytes=float(memory.capacity_bytes),
        fit_probability=float(memory.fit_probability),
        out_of_range=time.out_of_range_fraction > NOTABLE_FRACTION
        or memory.out_of_range
        or energy.out_of_range,
        warnings=tuple(notices(request, program, time, memory, energy, device, cluster)),
    )


def _floats(parts: Mapping[str, float]) -> dict[str, float]:
    """Plain floats, which every face prints alike: `419430400.0`, never `419430400`."""
    return {name: float(part) for name, part in parts.items()}
