"""Iteration time of one rank: the device's work, the host that launches it, communication that stays exposed.

Kernels run in program order on one stream, so device time is their sum. The host launches ahead of the
device; when launching everything takes longer than running it, the difference is idle time (`host_launch`).
Gradient all-reduces overlap with backward; only what outlives it is exposed (`communication`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from predictor.compose.exchange_sources import plan_log_spread
from predictor.compose.interval import FloatArray, log_interval, sum_log_spread
from predictor.features.dtype import Compute
from predictor.features.programs.work import OpWork, Phase, Program
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.hardware.sustained import knows_tf32
from predictor.models.ops.op_time import ANALYTIC, LEARNED, OpCosts, OpTimeModel
from predictor.models.ops.windows import has_window, without_window
from predictor.models.steps.features import JobContext
from predictor.models.steps.step_time import StepCosts, StepTimeModel
from predictor.models.steps.total import iteration_s
from predictor.parallel.data_parallel import schedule_gradients
from predictor.parallel.plan import Plan
from predictor.types import Coverage, Interval, Precision, Runtime

# Host time per kernel launch. 5 µs is the middle of the 4-6 µs that public whole-model timings of eager
# PyTorch support; compiled code launches through a thin wrapper at about 0.4 of that.
# Those of the inference engines are assumptions, measured nowhere here: a C++ executor that walks over its
# nodes, and a plan that only enqueues.
LAUNCH_S: Mapping[Runtime, float] = {
    Runtime.EAGER: 5e-6,
    Runtime.COMPILED: 2e-6,
    Runtime.ONNXRUNTIME: 3e-6,
    Runtime.TENSORRT: 2e-6,
}
TRAINER_LAUNCH_S = 68e-6
"""Host time per kernel in eager training frameworks that split a model (Megatron-LM): their modules run much
Python per kernel, and several kernels that no graph shows (random states, main gradients, views).

From Megatron-LM's own runs (megatron_golden): GPT of 12 layers x 512 on A100 with local modules takes
0.0923 s with one microbatch and 0.3326 s with eight, so 34.3 ms each for the 503 kernels of our program.
"""
_EXACT = {Compute.TF32: Compute.FP32}
_NARROW = frozenset({Compute.FP8, Compute.FP4})
ANALYTIC_LOG_SPREAD = 0.5
"""Log half-width on what no measurement here calibrates: exchanges, bubbles, launch gaps."""


@dataclass(frozen=True, slots=True)
class ProgramCosts:
    """Costs of a program on one device: unique works priced once, `index` maps every op to its work.

    `step` is how far timed iterations corrected them, None where the op-level costs stand; `op_level_s` are
    those of the unique works before.
    """

    unique: OpCosts
    index: np.ndarray
    launches: int
    step: StepCosts | None = None
    op_level_s: FloatArray | None = None

    @property
    def time_s(self) -> FloatArray:
        """(ops,) device seconds in program order."""
        times: FloatArray = self.unique.time_s[self.index]
        return times

    @property
    def op_level_time_s(self) -> FloatArray:
        """(ops,) device seconds as the op-level model has them: what the power model was trained on."""
        return self.time_s if self.op_level_s is None else self.op_level_s[self.index]


@dataclass(frozen=True, slots=True)
class TimeCost:
    """Iteration time with its parts; `breakdown_s` sums to `iteration.value`.

    `unmeasured_fraction` is the part of `out_of_range_fraction` in ops that were measured on no such device.
    """

    iteration: Interval
    breakdown_s: Mapping[str, float]
    coverage: Coverage
    out_of_range_fraction: float
    unmeasured_fraction: float
    communication_bytes: float
    device_busy_s: float


def price_program(
    program: Program,
    device: DeviceSpec,
    model: OpTimeModel,
    step: StepTimeModel | None = None,
    job: JobContext | None = None,
    *,
    fused_optimizer: bool = False,
) -> ProgramCosts:
    """Prices each distinct kernel of the program once; `step` corrects them for the job.

    The optimizer keeps its op-level time under `fused_optimizer`: timed iterations ran torch's many passes.
    Jobs with products of 8 bits or fewer in training keep their op-level times: no such iteration was timed,
    and what runs around those products is not what the timed frameworks run.
    """
    position: dict[OpWork, int] = {}
    index = np.array([position.setdefault(op.kernel, len(position)) for op in program.ops], dtype=np.intp)
    works = tuple(position)
    count = np.bincount(index, minlength=len(works)).astype(np.float64)
    launches = int(count @ np.array([work.host_launches for work in works], dtype=np.float64))
    costs = model.costs(works, device)
    if step is None or job is None or not step.covers(device) or _trains_narrow(works):
        return ProgramCosts(costs, index, launches)
    if job.precision is Precision.TF32 and not knows_tf32(device):
        works, job = _exact(works, job)
        costs = model.costs(works, device)
    corrected = _step_costs(works, count, costs, device, model, step, job)
    if job.precision is Precision.TF32:
        # TF32 allows rounded products and forces none.
        exact_works, exact_job = _exact(works, job)
        exact_costs = model.costs(exact_works, device)
        exact = _step_costs(exact_works, count, exact_costs, device, model, step, exact_job)
        if count @ exact.time_s < count @ corrected.time_s:
            works, costs, corrected = exact_works, exact_costs, exact
    if fused_optimizer:
        optimizer = np.array([work.phase is Phase.OPTIMIZER for work in works])
        corrected = replace(corrected, time_s=np.where(optimizer, costs.time_s, corrected.time_s))
    return ProgramCosts(_corrected(costs, corrected), index, launches, corrected, op_level_s=costs.time_s)


def _exact(works: Sequence[OpWork], job: JobContext) -> tuple[tuple[OpWork, ...], JobContext]:
    """A job in TF32 with no product rounded."""
    exact = tuple(replace(work, compute=_EXACT.get(work.compute, work.compute)) for work in works)
    return exact, replace(job, precision=Precision.FP32)


def _step_costs(
    works: Sequence[OpWork],
    count: FloatArray,
    costs: OpCosts,
    device: DeviceSpec,
    model: OpTimeModel,
    step: StepTimeModel,
    job: JobContext,
) -> StepCosts:
    """Corrected costs; no iteration with windows was timed, so attention is corrected as if it had none."""
    windowed = np.array([has_window(work) for work in works], dtype=np.bool_)
    if not windowed.any():
        return step.costs(works, count, costs, device, job)
    whole = [without_window(work) for work in works]
    whole_costs = model.costs(whole, device)
    found = step.costs(whole, count, whole_costs, device, job)
    share = np.where(windowed, costs.time_s / np.maximum(whole_costs.time_s, 1e-30), 1.0)
    return replace(found, time_s=found.time_s * share)


def _trains_narrow(works: Sequence[OpWork]) -> bool:
    """Whether gradients are products of operands that are narrower than 16 bits."""
    return any(work.compute in _NARROW and work.phase is Phase.BACKWARD for work in works)


def _corrected(costs: OpCosts, step: StepCosts) -> OpCosts:
    """Costs as timed iterations have them: learned, and in range where the device was timed."""
    source = tuple(LEARNED if source == ANALYTIC else source for source in costs.source)
    if not step.known_device:
        return replace(costs, time_s=step.time_s, source=source)
    seen = np.zeros_like(costs.unmeasured)
    return replace(costs, time_s=step.time_s, source=source, out_of_range=seen, unmeasured=seen)


def framework_launch_s(program: Program, runtime: Runtime) -> float | None:
    """Host time per kernel of a job that a training framework runs; None where it is the runtime's own."""
    return TRAINER_LAUNCH_S if program.gradients and runtime is Runtime.EAGER else None


def compose_time(
    program: Program,
    costs: ProgramCosts,
    *,
    runtime: Runtime,
    plan: Plan,
    cluster: ClusterSpec | None,
    slowdown: float = 1.0,
    launch_s: float | None = None,
) -> TimeCost:
    """Time of one iteration.

    Args:
        program: the rank's ops in order.
        costs: their device times.
        runtime: sets the launch time per kernel.
        plan: replicas and gradient buckets; `cluster` is needed when it has more than one device.
        slowdown: factor on device time, e.g. from a power cap.
        launch_s: host time per kernel, where it is not the runtime's own.
    """
    time_s = costs.time_s * slowdown
    phase = phase_codes(program)
    by_phase = np.bincount(phase, weights=time_s, minlength=len(_PHASES))
    busy_s = float(time_s.sum())
    gap_s = _gap_s(costs, busy_s, runtime, launch_s)
    breakdown = {name.value: float(by_phase[i]) for i, name in enumerate(_PHASES)} | {"host_launch": gap_s}
    exposed_s = sent_bytes = 0.0
    if plan.device_count > 1 and cluster is not None and program.gradients:
        # Launch gaps stretch the whole stream evenly: gradients become ready later by the same factor.
        stretch = (busy_s + gap_s) / busy_s if busy_s else 1.0
        result = schedule_gradients(program.gradients, np.cumsum(time_s) * stretch, plan, cluster)
        exposed_s, sent_bytes = result.exposed_s, result.bytes_sent
    breakdown["communication"] = exposed_s
    total_s = fsum(breakdown.values())
    spread = _spread(costs, time_s, gap_s, exposed_s, exchange_log_spread(plan, cluster))
    return TimeCost(
        iteration=log_interval(total_s, spread),
        breakdown_s=breakdown,
        coverage=_coverage(program, costs, time_s, gap_s + exposed_s),
        out_of_range_fraction=_share(time_s, costs.unique.out_of_range[costs.index]),
        unmeasured_fraction=_share(time_s, costs.unique.unmeasured[costs.index]),
        communication_bytes=sent_bytes,
        device_busy_s=busy_s,
    )


_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def phase_codes(program: Program) -> np.ndarray:
    """(ops,) index into forward, backward, optimizer."""
    return np.array([_PHASES.index(op.work.phase) for op in program.ops], dtype=np.intp)


def _gap_s(costs: ProgramCosts, busy_s: float, runtime: Runtime, launch_s: float | None) -> float:
    """Time in which the device waits for the host to launch."""
    if launch_s is not None:
        return max(0.0, costs.launches * launch_s - busy_s)
    if costs.step is None:
        return max(0.0, costs.launches * LAUNCH_S[runtime] - busy_s)
    host_s = costs.launches * costs.step.launch_s
    return float(iteration_s(np.array(busy_s), np.array(host_s))) - busy_s


def exchange_log_spread(plan: Plan, cluster: ClusterSpec | None) -> float:
    """90 % log half-width of what ranks exchange: narrower where measured jobs told of the links."""
    return plan_log_spread(plan, cluster)


def _spread(
    costs: ProgramCosts, time_s: FloatArray, gap_s: float, exposed_s: float, exchange_spread: float
) -> float:
    if costs.step is not None:
        alone_s = float(time_s.sum()) + gap_s
        parts = np.array([alone_s, exposed_s])
        return sum_log_spread(parts, np.array([costs.step.log_spread, exchange_spread]), [0, 1])
    families = np.unique(costs.unique.family_code, return_inverse=True)[1]
    group = families[costs.index]
    return sum_log_spread(
        np.concatenate([time_s, [gap_s, exposed_s]]),
        np.concatenate([costs.unique.log_spread[costs.index], [ANALYTIC_LOG_SPREAD, exchange_spread]]),
        np.concatenate([group, [group.max(initial=0) + 1] * 2]),
    )


def _share(time_s: FloatArray, mask: np.ndarray) -> float:
    total = float(time_s.sum())
    return float(time_s[mask].sum()) / total if total else 0.0


def _coverage(program: Program, costs: ProgramCosts, time_s: FloatArray, analytic_s: float) -> Coverage:
    covered = np.array([op.covered for op in program.ops], dtype=bool)
    learned = np.array([source == "learned" for source in costs.unique.source])[costs.index] & covered
    total = float(time_s.sum()) + analytic_s
    if not total:
        return Coverage(analytic=1.0)
    learned_fraction = float(time_s[learned].sum()) / total
    fallback_fraction = float(time_s[~covered].sum()) / total
    return Coverage(
        learned=learned_fraction,
        analytic=1.0 - learned_fraction - fallback_fraction,
        fallback=fallback_fraction,
    )
