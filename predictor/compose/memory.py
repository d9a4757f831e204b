"""Peak memory against what the device can give: the answer's memory fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import erf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import Program
from predictor.hardware.spec import DeviceSpec, usable_bytes
from predictor.models.memory.allocated import AllocatedJob
from predictor.models.memory.peak import ForwardWork, MemoryEstimate, MemoryModel, trains
from predictor.models.steps.features import LATEST_VERSION
from predictor.parallel.memory_stages import RankMemory, StageMemory, stage_memories, worst_stage
from predictor.parallel.memory_weights import TORCH_BUFFERS, GradientBuffers
from predictor.parallel.plan import Plan
from predictor.types import Interval, Recompute

# Half-width of a two-sided 90 % interval of a normal distribution, in standard deviations.
_SIGMAS = 1.6449


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Memory of one device of the plan, the one that needs the most.

    Attributes:
        breakdown_bytes: sums to `device_peak.value`.
        fits: more likely than not. fit_probability: what jobs like this say that ran or failed, where some
            were seen, else the chance that the peak is within the capacity.
        stage: where and when the peak is, under a plan of several stages or microbatches.
    """

    device_peak: Interval
    allocator_peak: Interval
    breakdown_bytes: Mapping[str, float]
    capacity_bytes: float
    fits: bool
    out_of_range: bool
    fit_probability: float = 1.0
    stage: StageMemory | None = None


def fit_probability(peak: Interval, capacity_bytes: float) -> float:
    """Chance that a job with this peak runs within the capacity.

    The logarithm of the peak is taken as normal on either side of the central value, with the spread that the
    interval shows on that side.
    """
    if peak.value <= 0 or capacity_bytes <= 0:
        return float(peak.value <= capacity_bytes)
    bound = peak.high if capacity_bytes >= peak.value else peak.low
    spread = abs(log(max(bound, 1.0) / peak.value)) / _SIGMAS
    distance = log(capacity_bytes / peak.value)
    if spread <= 0:
        return float(distance >= 0)
    return 0.5 * (1 + erf(distance / spread / sqrt(2)))


def is_single(plan: Plan) -> bool:
    """True where a rank runs its whole batch at once and holds all weights: what the model learned from."""
    return (
        plan.pp == 1
        and plan.microbatches == 1
        and not plan.shared
        and not plan.offload
        and plan.recompute is Recompute.NONE
        and not plan.splits_graph
    )


def compose_memory(
    program: Program,
    device: DeviceSpec,
    plan: Plan,
    model: MemoryModel,
    *,
    memory: RankMemory | None = None,
    ends: Sequence[int] | NDArray[np.intp] | None = None,
    buffers: GradientBuffers = TORCH_BUFFERS,
    forward: ForwardWork | None = None,
    framework: float = LATEST_VERSION,
) -> MemoryCost:
    """Peak of the device that needs the most, and whether the job fits.

    Args:
        program: one microbatch of one rank.
        memory: the rank, for plans that cut it or share its weights; without it the whole batch runs at once.
        ends: pieces up to and including each virtual stage; None is one stage.
        buffers: how the framework keeps gradients.
        forward: stands for what the program's own ops say of its forward pass.
        framework: version as major + minor / 100.
    """
    capacity = usable_bytes(device)
    if memory is None or (is_single(plan) and not buffers.resident):
        cost = _cost(model.predict(program, device, plan.dp, forward), capacity, None)
        if cost.device_peak.high <= capacity:
            return cost
        # Under pressure an allocator does with less than it takes where there is room.
        chance = model.chance_to_run(program, device, capacity, plan.dp, framework, forward)
        return cost if chance is None else replace(cost, fits=chance > 0.5, fit_probability=chance)
    training = trains(program)
    cuts = [memory.pieces] if ends is None else ends
    stages, seen = held_and_seen(memory, cuts, plan, training=training, buffers=buffers)
    return stage_memory_cost(
        program, device, plan, model, worst_stage(stages), worst_stage(seen), training=training
    )


def held_and_seen(
    memory: RankMemory,
    ends: Sequence[int] | NDArray[np.intp],
    plan: Plan,
    *,
    training: bool,
    buffers: GradientBuffers = TORCH_BUFFERS,
) -> tuple[list[StageMemory], list[StageMemory]]:
    """Memory of every stage under the plan, and under the one whose correction it takes."""
    held = stage_memories(memory, ends, plan, training=training, buffers=buffers)
    known = corrected_as(plan)
    if known is plan:
        return held, held
    return held, stage_memories(memory, ends, known, training=training, buffers=buffers)


def corrected_as(plan: Plan) -> Plan:
    """The plan whose correction a plan takes: ZeRO-1's for ZeRO-2, of which six measured jobs are known.

    The two differ in what is left of gradients, which is in their tensors; trees that saw hardly any such job
    made some need more than without.
    """
    return replace(plan, zero=1) if plan.shared == 2 else plan


def stage_memory_cost(
    program: Program,
    device: DeviceSpec,
    plan: Plan,
    model: MemoryModel,
    stage: StageMemory,
    seen: StageMemory,
    *,
    training: bool,
) -> MemoryCost:
    """Memory of a device that runs `stage` of a plan; other arguments as those of `compose_memory`.

    `seen` is the stage under `corrected_as(plan)`.
    """
    job = stage_job(seen, corrected_as(plan), device, half=_is_half(program)) if training else None
    estimate = model.predict_stage(program, device, stage.lines, communicators(plan), job)
    return _cost(estimate, usable_bytes(device), stage)


def stage_job(stage: StageMemory, plan: Plan, device: DeviceSpec, *, half: bool) -> AllocatedJob:
    """What the correction of plans sees; nothing is known of the software."""
    return AllocatedJob(
        lines=stage.lines,
        library_bytes=0.0,
        moment=stage.moment,
        in_flight=stage.in_flight,
        replicas=plan.dp,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        virtual_stages=plan.virtual_stages,
        zero=plan.shared,
        sequence_parallel=plan.sequence_parallel,
        recompute=plan.recompute,
        half=half,
        device_year=device.year,
    )


def _is_half(program: Program) -> bool:
    """Products in FP16."""
    return any(op.work.compute is Compute.FP16 for op in program.ops)


def communicators(plan: Plan) -> int:
    """Groups of ranks that exchange something, each with buffers of its own."""
    return sum(plan.group_size(group) > 1 for group in ("tp", "cp", "ep", "dp_cp", "pp"))


def _cost(estimate: MemoryEstimate, capacity: float, stage: StageMemory | None) -> MemoryCost:
    return MemoryCost(
        device_peak=estimate.device_peak,
        allocator_peak=estimate.allocator_peak,
        breakdown_bytes=estimate.breakdown_bytes,
        capacity_bytes=capacity,
        fits=estimate.device_peak.value <= capacity,
        out_of_range=estimate.out_of_range,
        fit_probability=fit_probability(estimate.device_peak, capacity),
        stage=stage,
    )
