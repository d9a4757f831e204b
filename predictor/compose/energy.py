"""Energy of an iteration: average board power x time x devices, and where it goes.

Scope `device`: boards only, no host, no cooling. The total is exact by construction; its split is a model:
the idle draw is `static` while kernels run and `stalled` while none does (launch gaps, exposed exchanges,
bubbles), what is above it goes to compute, memory and communication by the time each would need alone at the
device's peak (communication: by its exposed time), the rest is `overhead` (inefficiency of kernels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import fsum, hypot, log

from predictor.compose.interval import log_interval
from predictor.compose.time import LAUNCH_S, ProgramCosts, TimeCost
from predictor.features.programs.work import Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.power.board_power import PowerModel, idle_power_w
from predictor.models.power.profile import JobProfile, job_profile
from predictor.parallel.plan import Plan
from predictor.types import Interval, Runtime

_LONGEST_WAIT = 0.5
"""Host time of a launch over its kernel's share of the iteration, at most: by `PowerBase.duty` such a host
makes steps a fifth longer, about what predicted seconds of metered jobs (Zeus) are off by."""


@dataclass(frozen=True, slots=True)
class EnergyCost:
    """Energy of all devices for one iteration; `breakdown_j` sums to `energy_j.value`."""

    energy_j: Interval
    average_power_w: Interval
    breakdown_j: Mapping[str, float]
    out_of_range: bool


def slowdown_under_cap(
    program: Program,
    costs: ProgramCosts,
    device: DeviceSpec,
    runtime: Runtime,
    power_limit_w: float | None,
    model: PowerModel,
) -> float:
    """Factor on kernel time when `power_limit_w` holds the clock down; 1 without a cap."""
    if power_limit_w is None:
        return 1.0
    return model.slowdown(program_profile(program, costs, device, runtime), device, power_limit_w)


def compose_energy(
    program: Program,
    costs: ProgramCosts,
    time: TimeCost,
    device: DeviceSpec,
    plan: Plan,
    runtime: Runtime,
    power_limit_w: float | None,
    model: PowerModel,
) -> EnergyCost:
    """Energy of one iteration over all devices of the plan, scope `device`."""
    exposed_s = time.breakdown_s["communication"] + time.breakdown_s.get("stragglers", 0.0)
    profile = program_profile(program, costs, device, runtime, exposed_s)
    profile = _paced(profile, time.iteration.value - exposed_s, model)
    power = model.predict(profile, device, power_limit_w)
    iteration_s = time.iteration.value
    scale = iteration_s * plan.device_count
    total_j = power.value * scale
    # Errors of time and power are taken as independent.
    spread = hypot(_log_spread(time.iteration), _log_spread(power))
    return EnergyCost(
        energy_j=log_interval(total_j, spread),
        average_power_w=power,
        breakdown_j=_breakdown(profile, time, power.value, idle_power_w(device), plan.device_count),
        out_of_range=model.out_of_range(profile, device),
    )


def _paced(profile: JobProfile, iteration_s: float, model: PowerModel) -> JobProfile:
    """`profile` on a host whose launches do not make `iteration_s` much longer.

    The power model learned from hosts that keep short kernels waiting longer than predicted seconds have room
    for. Watts for waits that the seconds lack would make cutting a batch, which adds launches, save joules.
    """
    longest_s = _LONGEST_WAIT * iteration_s / max(1, profile.launch_count) / model.base.kernel
    return replace(profile, launch_s=min(profile.launch_s, longest_s))


def program_profile(
    program: Program, costs: ProgramCosts, device: DeviceSpec, runtime: Runtime, exposed_s: float = 0.0
) -> JobProfile:
    """How a priced program uses its device without a cap."""
    return job_profile(program, costs.op_level_time_s, device, LAUNCH_S[runtime], exposed_s)


def _log_spread(interval: Interval) -> float:
    return max(log(interval.high / interval.value), log(interval.value / interval.low))


def _breakdown(
    profile: JobProfile, time: TimeCost, power_w: float, idle_w: float, devices: int
) -> dict[str, float]:
    iteration_s = time.iteration.value
    static_w = min(idle_w, power_w)
    dynamic_j = (power_w - static_w) * iteration_s * devices
    needs = {
        "compute": profile.compute_s,
        "memory": profile.memory_s,
        "communication": time.breakdown_s["communication"],
    }
    whole = max(iteration_s, fsum(needs.values()))
    running_s = min(profile.busy_s, iteration_s)
    parts = {
        "static": static_w * running_s * devices,
        "stalled": static_w * (iteration_s - running_s) * devices,
    }
    parts |= {name: dynamic_j * need / whole for name, need in needs.items()}
    # Rounding may leave a little less than nothing.
    parts["overhead"] = max(0.0, power_w * iteration_s * devices - fsum(parts.values()))
    return parts
