"""From the time of a plan to the answer's time and energy: intervals, coverage, and what the devices draw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, log

from predictor.compose.energy import EnergyCost, compose_energy
from predictor.compose.interval import log_interval
from predictor.compose.plan_time import PlanTime, plan_time
from predictor.compose.rank_costs import RankCosts, rank_costs
from predictor.compose.time import (
    ANALYTIC_LOG_SPREAD,
    ProgramCosts,
    TimeCost,
    compose_time,
    exchange_log_spread,
    framework_launch_s,
)
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.power.board_power import PowerModel
from predictor.parallel.offload import host_links
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram
from predictor.types import Coverage, Recompute, Runtime

_ADDING_RATE = 0.8
"""Share of the memory bandwidth that a long addition reaches: 0.75 to 0.92 by the op model, V100 to B200."""
_KERNEL_PARTS = ("forward", "backward", "optimizer")


def is_plain(plan: Plan) -> bool:
    """True for what `compose_time` prices by itself: whole replicas that run their batch at once."""
    return (
        plan.device_count == plan.dp
        and plan.ep == 1
        and not plan.shared
        and plan.microbatches == 1
        and plan.recompute is Recompute.NONE
        and not plan.offload
    )


@dataclass(frozen=True, slots=True)
class MicrobatchCosts:
    """One microbatch of one rank.

    Attributes:
        alone: its time as if it were an iteration of one device. columns: its costs by piece.
    """

    alone: TimeCost
    columns: RankCosts


def microbatch_costs(
    rank: RankProgram,
    costs: ProgramCosts,
    *,
    runtime: Runtime,
    plan: Plan,
    cluster: ClusterSpec | None,
    device: DeviceSpec | None = None,
    slowdown: float = 1.0,
    framework: bool,
) -> MicrobatchCosts:
    """Costs of one microbatch; launch gaps stretch all kernels evenly.

    Args:
        framework: whether a training framework runs the job (`PredictionRequest.runs_framework`).
    """
    launch_s = framework_launch_s(rank.program, runtime) if framework else None
    alone = compose_time(
        rank.program,
        costs,
        runtime=runtime,
        plan=Plan(),
        cluster=None,
        slowdown=slowdown,
        launch_s=launch_s,
    )
    kernels = sum(alone.breakdown_s[name] for name in _KERNEL_PARTS)
    stretch = alone.iteration.value / kernels if kernels else 1.0
    host = host_links(plan, device, cluster) if device is not None and plan.offload else None
    columns = rank_costs(rank, costs.time_s * slowdown, stretch, plan, cluster, host)
    adding = 0.0
    if device is not None and runtime is Runtime.EAGER:
        # Autograd reads both and writes the sum; compiled jobs add within the products.
        adding = 3 / (_ADDING_RATE * device.memory_bytes_per_s)
    exchange_s = sum(float(values.sum()) for values in columns.exchange_s.values())
    if launch_s is not None and stretch > 1 and exchange_s:
        # The host launches ahead while ranks exchange.
        stretch = max(1.0, stretch - exchange_s / kernels)
        columns = rank_costs(rank, costs.time_s * slowdown, stretch, plan, cluster, host)
    return MicrobatchCosts(alone, replace(columns, adding_s_per_byte=adding))


def compose_plan(
    costs: MicrobatchCosts, plan: Plan, cluster: ClusterSpec | None, *, training: bool
) -> tuple[TimeCost, PlanTime]:
    """Time of one iteration under `plan`, as an answer and in detail."""
    alone = costs.alone
    found = plan_time(costs.columns, plan, cluster, training=training)
    kernels = sum(found.breakdown_s[name] for name in _KERNEL_PARTS)
    share = kernels / found.total_s if found.total_s else 1.0
    alone_kernels = sum(alone.breakdown_s[name] for name in _KERNEL_PARTS)
    alone_share = alone_kernels / alone.iteration.value if alone.iteration.value else 1.0
    exchanges = exchange_log_spread(plan, cluster)
    spread = hypot(_kernel_spread(alone, alone_share) * share, exchanges * (1 - share))
    learned = alone.coverage.learned / alone_share * share if alone_share else 0.0
    fallback = alone.coverage.fallback / alone_share * share if alone_share else 0.0
    time = TimeCost(
        iteration=log_interval(found.total_s, spread),
        breakdown_s=found.breakdown_s,
        coverage=Coverage(learned=learned, analytic=1.0 - learned - fallback, fallback=fallback),
        out_of_range_fraction=alone.out_of_range_fraction,
        unmeasured_fraction=alone.unmeasured_fraction,
        communication_bytes=sum(found.sent_bytes.values()),
        device_busy_s=found.kernel_s,
    )
    return time, found


def _kernel_spread(alone: TimeCost, kernel_share: float) -> float:
    """Log half-width of the kernels' part: what is left of the whole one without launch gaps."""
    whole = log(alone.iteration.high / alone.iteration.value)
    gaps = ANALYTIC_LOG_SPREAD * (1 - kernel_share)
    return (max(0.0, whole**2 - gaps**2)) ** 0.5 / kernel_share if kernel_share else whole


def compose_plan_energy(
    rank: RankProgram,
    costs: ProgramCosts,
    time: TimeCost,
    alone: TimeCost,
    device: DeviceSpec,
    plan: Plan,
    runtime: Runtime,
    power_limit_w: float | None,
    model: PowerModel,
) -> EnergyCost:
    """Energy of one iteration over all devices of the plan.

    A mean rank draws what a device would that runs one microbatch and then waits as large a share of the time
    as ranks of the plan do.
    """
    if not time.device_busy_s:
        return compose_energy(rank.program, costs, time, device, plan, runtime, power_limit_w, model)
    scale = alone.device_busy_s / time.device_busy_s
    period = time.iteration.scaled(scale)
    waits = max(0.0, period.value - alone.iteration.value)
    stand_in = replace(
        time,
        iteration=period,
        breakdown_s={**alone.breakdown_s, "communication": waits},
        device_busy_s=alone.device_busy_s,
    )
    found = compose_energy(rank.program, costs, stand_in, device, plan, runtime, power_limit_w, model)
    return replace(
        found,
        energy_j=found.energy_j.scaled(1 / scale),
        breakdown_j={name: part / scale for name, part in found.breakdown_j.items()},
    )


@dataclass(frozen=True, slots=True)
class PlanDetail:
    """What an explanation of a plan shows beside the prediction."""

    time: PlanTime
    columns: RankCosts
