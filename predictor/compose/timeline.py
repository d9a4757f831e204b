"""The iteration of a plan as events: what each stage computes, sends and waits for.

One rank stands for all that do the same: replicas and the ranks of tensor, context and expert groups are in
step, so there is one row of streams per pipeline stage. Every event lies where the plan's time puts it, and
the last one ends with the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from predictor.compose.averaging import bucket_costs, held_up_s
from predictor.compose.plan_time import plan_buckets, plan_replicas, plan_time
from predictor.compose.rank_costs import RankCosts
from predictor.compose.stage_costs import StageCosts, pipeline_shape, shared_pass
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.pipeline import TaskTimes, task_times
from predictor.parallel.plan import Plan
from predictor.parallel.schedule import PipelineShape, TaskKind
from predictor.parallel.zero import Replicas

COMPUTE, SENDS, REPLICAS = "compute", "sends", "replicas"
STREAMS = (COMPUTE, SENDS, REPLICAS)
"""Streams of a rank: kernels and the exchanges between them, messages to stages, exchanges of replicas."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that occupies a stream of a stage's ranks.

    Attributes:
        kind: forward, backward, weight_gradient, optimizer (compute); send_forward, send_backward (sends);
            reduce, gather, tied (replicas).
        microbatch, chunk: -1 where they do not matter.
    """

    stage: int
    stream: str
    kind: str
    start_s: float
    end_s: float
    microbatch: int = -1
    chunk: int = -1

    @property
    def duration_s(self) -> float:
        """Length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Timeline:
    """All events of one iteration, by stage and stream in order of their start.

    Attributes:
        total_s: end of the iteration. stages: of the pipeline. ranks: devices that each stage stands for.
    """

    events: tuple[Event, ...]
    total_s: float
    stages: int
    ranks: int

    def of(self, stage: int, stream: str) -> tuple[Event, ...]:
        """Events of one stream."""
        return tuple(event for event in self.events if event.stage == stage and event.stream == stream)

    def waiting_s(self, stage: int) -> float:
        """Time in which nothing runs on a stage's compute stream: bubbles and exposed exchanges."""
        busy = sum(event.duration_s for event in self.of(stage, COMPUTE))
        return max(0.0, self.total_s - busy)


def timeline(rank: RankCosts, plan: Plan, cluster: ClusterSpec | None, *, training: bool) -> Timeline:
    """The events of one iteration; arguments as `predictor.compose.plan_time.plan_time`."""
    found = plan_time(rank, plan, cluster, training=training)
    shape = pipeline_shape(plan, training=training)
    times = task_times(shape, found.stages.chunk_times())
    # Long runs are solved by their rhythm, this schedule task by task: they agree but for rounding.
    events = list(_tasks(shape, times, found.stages))
    dense, experts = plan_replicas(plan, cluster)
    if cluster is not None and dense is not None and experts is not None and dense.count > 1:
        if plan.zero == 3:
            events += _shared(rank, found.stages, shape, times, plan, cluster, dense, experts, training)
        elif training:
            events += _reductions(rank, found.stages, shape, times, plan, cluster, dense, experts)
    ends = found.ends
    for stage in range(plan.pp):
        clock = float(ends.reduced_s[stage])
        for stream, kind, length in (
            (REPLICAS, "tied", ends.tied_s[stage]),
            *((REPLICAS, "reduce", values[stage]) for values in ends.partial_s.values()),
            (COMPUTE, "optimizer", ends.optimizer_s[stage]),
            (REPLICAS, "gather", ends.gather_s[stage]),
        ):
            if length > 0:
                events.append(Event(stage, stream, kind, clock, clock + float(length)))
                clock += float(length)
    order = {stream: index for index, stream in enumerate(STREAMS)}
    events.sort(key=lambda event: (event.stage, order[event.stream], event.start_s, event.end_s))
    return Timeline(tuple(events), found.total_s, plan.pp, plan.device_count // plan.pp)


_TASK_NAMES = {
    TaskKind.FORWARD: "forward",
    TaskKind.BACKWARD: "backward",
    TaskKind.WEIGHT: "weight_gradient",
}


def _tasks(shape: PipelineShape, times: TaskTimes, stages: StageCosts) -> Iterator[Event]:
    """Tasks and their messages."""
    send = {
        TaskKind.FORWARD: ("send_forward", stages.send_forward_s),
        TaskKind.BACKWARD: ("send_backward", stages.send_backward_s),
    }
    for kind, name in _TASK_NAMES.items():
        for q, microbatch in np.argwhere(np.isfinite(times.end_s[kind])).tolist():
            stage, chunk = q % shape.stages, q // shape.stages
            start, end = float(times.start_s[kind, q, microbatch]), float(times.end_s[kind, q, microbatch])
            yield Event(stage, COMPUTE, name, start, end, microbatch, chunk)
            if kind in send and send[kind][1][q] > 0:
                sent, arrived = times.sent_s[kind, q, microbatch], times.arrived_s[kind, q, microbatch]
                yield Event(stage, SENDS, send[kind][0], float(sent), float(arrived), microbatch, chunk)


def _shared(
    rank: RankCosts,
    stages: StageCosts,
    shape: PipelineShape,
    times: TaskTimes,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas,
    training: bool,
) -> Iterator[Event]:
    """Gatherings of weights and reductions of gradients inside each task (ZeRO-3)."""
    for q in range(shape.virtual_stages):
        result = shared_pass(rank, stages, q, plan, cluster, dense, experts, training=training)
        passes = (TaskKind.FORWARD, TaskKind.BACKWARD) if training else (TaskKind.FORWARD,)
        for kind in passes:
            for microbatch, start in enumerate(times.start_s[kind, q].tolist()):
                for span in result.spans[kind]:
                    if span.what != "compute":
                        begin, end = start + span.start_s, start + span.end_s
                        stage, chunk = q % shape.stages, q // shape.stages
                        yield Event(stage, REPLICAS, span.what, begin, end, microbatch, chunk)


def _reductions(
    rank: RankCosts,
    stages: StageCosts,
    shape: PipelineShape,
    times: TaskTimes,
    plan: Plan,
    cluster: ClusterSpec,
    dense: Replicas,
    experts: Replicas,
) -> Iterator[Event]:
    """Buckets of gradients beside backward: of the last microbatch, under ZeRO-2 of every one."""
    last = TaskKind.WEIGHT if shape.splits_backward else TaskKind.BACKWARD
    buckets = plan_buckets(rank, stages.ends, plan)
    cost_s, _ = bucket_costs(buckets, dense, experts, cluster)
    # Drawn as late as a bucket can start that is not interrupted.
    offset_s = buckets.offset_s + held_up_s(buckets, plan, cluster, dense, experts)
    stage_end_s = np.nanmax(times.end_s, axis=(0, 2)).reshape(-1, shape.stages).max(axis=0)
    waiting: dict[int, list[tuple[float, float, int, int]]] = {}
    for q, offset, cost in zip(buckets.stage.tolist(), offset_s.tolist(), cost_s.tolist(), strict=True):
        ends, stage = times.end_s[last, q], q % shape.stages
        chosen = range(shape.microbatches) if plan.zero == 2 else [int(np.nanargmax(ends))]
        for microbatch in chosen if cost > 0 else ():
            at = offset + float(ends[microbatch]) if plan.overlap else float(stage_end_s[stage])
            waiting.setdefault(stage, []).append((at, cost, microbatch, q // shape.stages))
    for stage, tasks in waiting.items():
        clock = 0.0
        for at, takes, microbatch, chunk in sorted(tasks, key=lambda item: item[0]):
            clock = max(clock, at)
            yield Event(stage, REPLICAS, "reduce", clock, clock + takes, microbatch, chunk)
            clock += takes


def overlaps(events: tuple[Event, ...]) -> bool:
    """True when two events of one stream run at once; never, for streams of a timeline."""
    return any(later.start_s < earlier.end_s - 1e-9 for earlier, later in pairwise(events))
