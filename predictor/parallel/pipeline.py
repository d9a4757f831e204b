"""How long a pipeline takes: every stage runs its tasks in order, and waits for messages of its neighbours.

Each stage has one compute stream and, in either direction, one link to the next stage on which messages
follow one another while it computes. The result is the longest path through these constraints, found for
many plans of one shape at once. Long runs of microbatches settle into a rhythm and are extended linearly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from predictor.parallel.schedule import PipelineShape, TaskKind, waves

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """Durations of one microbatch by virtual stage, (n, virtual stages) for n plans of one shape, in seconds.

    Attributes:
        forward, backward: with a schedule that splits it, `backward` is the gradients of activations only.
        weight: weight gradients of such a schedule; added to `backward` in the others.
        send_forward, send_backward: time of a message to the next and to the previous virtual stage.
    """

    forward: FloatArray
    backward: FloatArray
    weight: FloatArray
    send_forward: FloatArray
    send_backward: FloatArray


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """Makespans of n plans.

    Attributes:
        total_s: (n,) from the first forward pass to the end of the last task.
        stage_end_s: (n, stages) end of each stage's last task.
        last_backward_end_s: (n, virtual stages) end of each chunk's last backward pass, or of its weight
            gradients where a schedule splits them; in inference of its last forward pass.
        backward_end_s: (n, virtual stages, solved microbatches) the same of every microbatch that was solved;
            of a longer run the later half is that of its last microbatches.
    """

    total_s: FloatArray
    stage_end_s: FloatArray
    last_backward_end_s: FloatArray
    backward_end_s: FloatArray


def pipeline_times(shape: PipelineShape, times: ChunkTimes) -> PipelineTimes:
    """Solves n pipelines of one shape."""
    limit = _settled(shape)
    if shape.microbatches <= limit:
        return _exact(shape, times)
    long = _exact(replace(shape, microbatches=limit), times)
    short = _exact(replace(shape, microbatches=limit - shape.stages), times)
    rhythm_s = (long.total_s - short.total_s) / shape.stages
    total_s = long.total_s + (shape.microbatches - limit) * rhythm_s
    # A slow stage behind a long queue sets the rhythm only after many microbatches.
    total_s = np.maximum(total_s, lower_bound_s(shape, times))
    added_s = (total_s - long.total_s)[:, None]
    late = np.arange(limit) >= limit // 2
    return PipelineTimes(
        total_s,
        long.stage_end_s + added_s,
        long.last_backward_end_s + added_s,
        long.backward_end_s + added_s[:, :, None] * late,
    )


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """When the tasks of one pipeline run, (kind, virtual stages, microbatches); NaN for tasks it lacks.

    Attributes:
        start_s, end_s: of the task. sent_s, arrived_s: of the message that follows it; equal without one.
    """

    start_s: FloatArray
    end_s: FloatArray
    sent_s: FloatArray
    arrived_s: FloatArray


def task_times(shape: PipelineShape, times: ChunkTimes) -> TaskTimes:
    """The full schedule of the first of `times`, microbatch by microbatch, however many there are."""
    one = ChunkTimes(*(getattr(times, field.name)[:1] for field in fields(times)))
    durations, send = _task_durations(shape, one)[:, 0], _link_durations(shape, one)[:, 0]
    ended, arrived, _ = _run(shape, one)
    q, m = shape.virtual_stages, shape.microbatches
    end, arrive = (values[:, 0].reshape(3, q, m) for values in (ended, arrived))
    return TaskTimes(
        end - durations.reshape(3, q, 1),
        end,
        arrive - send.reshape(3, q, 1),
        arrive,
    )


def lower_bound_s(
    shape: PipelineShape, times: ChunkTimes, microbatches: NDArray[np.int64] | None = None
) -> FloatArray:
    """(n,) no pipeline of this shape is faster.

    A stage runs all its tasks after its first input has arrived, and others follow its last task.

    Args:
        microbatches: (n,) of each plan; None is those of `shape` for all.
    """
    p = shape.stages
    first, last = slice(0, p), slice(-p, None)
    passes = times.forward
    if shape.training:
        passes = passes + times.backward + times.weight
    count = np.full(len(passes), shape.microbatches) if microbatches is None else microbatches
    m = count[:, None]
    busy = m * passes.reshape(len(passes), -1, p).sum(axis=1)
    head = _before(times.forward[:, first] + times.send_forward[:, first])
    if not shape.training:
        forward, sent = times.forward[:, last][:, ::-1], times.send_forward[:, last][:, ::-1]
        tail = _before(forward + np.roll(sent, -1, axis=1))[:, ::-1]
    else:
        backward, sent = times.backward[:, first], times.send_backward[:, first]
        if not shape.splits_backward:
            backward = backward + times.weight[:, first]
        tail = _before(backward + np.roll(sent, -1, axis=1))
        if shape.splits_backward:
            # Weight gradients that were put off run while earlier stages still pass gradients on.
            late = np.minimum(np.arange(p)[None, :], m - 1) + 1
            weight = times.weight[:, first]
            tail[:, 1:] = np.maximum(0, tail[:, 1:] + weight[:, :1] - late[:, 1:] * weight[:, 1:])
    return np.asarray((head + busy + tail).max(axis=1))


def _before(values: FloatArray) -> FloatArray:
    """(n, k) sum of the values before each position."""
    return np.cumsum(values, axis=1) - values


# Microbatches after which the rhythm of a pipeline of p stages is taken as settled: 4 p, and not below 48.
_SETTLED_ROUNDS, _SETTLED_MICROBATCHES = 4, 48


def _settled(shape: PipelineShape) -> int:
    rounds = max(_SETTLED_ROUNDS, -(-_SETTLED_MICROBATCHES // shape.stages))
    return rounds * shape.stages


def _exact(shape: PipelineShape, times: ChunkTimes) -> PipelineTimes:
    n, q, m = len(times.forward), shape.virtual_stages, shape.microbatches
    ended, _, free = _run(shape, times)
    every = ended.reshape(3, q, m, n)[_last_kind(shape)].transpose(2, 0, 1)
    return PipelineTimes(free.max(axis=0), free.T, every.max(axis=2), every)


def _last_kind(shape: PipelineShape) -> TaskKind:
    """The task that ends a microbatch on a chunk."""
    if not shape.training:
        return TaskKind.FORWARD
    return TaskKind.WEIGHT if shape.splits_backward else TaskKind.BACKWARD


def _run(shape: PipelineShape, times: ChunkTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """((tasks, n) ends, (tasks, n) arrivals of messages, (stages, n) ends of stages), wave by wave.

    Tasks as numbered by `Waves.task`; NaN for those that the schedule lacks.
    """
    plan = waves(shape)
    n, count = len(times.forward), len(plan.task)
    durations, send = (
        part[plan.group] for part in (_task_durations(shape, times), _link_durations(shape, times))
    )
    # The last row is the task that is none: over before anything starts.
    arrived, ended = np.zeros((count + 1, n)), np.empty((count, n))
    free, link_free = np.zeros((shape.stages, n)), np.zeros((2 * shape.stages + 1, n))
    if n == 1:
        # One column is a third faster as a vector.
        durations, send, arrived, ended = durations[:, 0], send[:, 0], arrived[:, 0], ended[:, 0]
        free, link_free = free[:, 0], link_free[:, 0]
    for begin, end in pairwise(plan.starts):
        part = slice(begin, end)
        stage, link = plan.stage[part], plan.link[part]
        finish = np.maximum(free[stage], arrived[plan.before[part]])
        finish += durations[part]
        free[stage] = finish
        ended[part] = finish
        message = np.maximum(finish, link_free[link])
        message += send[part]
        link_free[link] = message
        arrived[part] = message
    total = 3 * shape.virtual_stages * shape.microbatches
    all_ended, all_arrived = np.full((2, total, n), np.nan)
    all_ended[plan.task] = ended.reshape(count, n)
    all_arrived[plan.task] = arrived[:-1].reshape(count, n)
    return all_ended, all_arrived, free.reshape(-1, n)


def _task_durations(shape: PipelineShape, times: ChunkTimes) -> FloatArray:
    """(kind * virtual stages + virtual stage, n)"""
    backward = times.backward if shape.splits_backward else times.backward + times.weight
    return np.concatenate([times.forward.T, backward.T, times.weight.T])


def _link_durations(shape: PipelineShape, times: ChunkTimes) -> FloatArray:
    """As `_task_durations`, of the message that follows each task."""
    return np.concatenate([times.send_forward.T, times.send_backward.T, np.zeros_like(times.weight.T)])
