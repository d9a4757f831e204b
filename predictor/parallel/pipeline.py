"""How long a pipeline takes: every stage runs its tasks in order, and waits for messages of its neighbours.

Each stage has one compute stream and, in either direction, one link to the next stage on which messages
follow one another while it computes. The result is the longest path through these constraints, found for
many plans of one shape at once. Long runs of microbatches settle into a rhythm and are extended linearly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from predictor.parallel.schedule import PipelineShape, TaskKind, Waves, waves

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
        first_backward_end_s: the same of each chunk's first one.
    """

    total_s: FloatArray
    stage_end_s: FloatArray
    last_backward_end_s: FloatArray
    first_backward_end_s: FloatArray


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
    return PipelineTimes(
        total_s, long.stage_end_s + added_s, long.last_backward_end_s + added_s, long.first_backward_end_s
    )


def lower_bound_s(shape: PipelineShape, times: ChunkTimes) -> FloatArray:
    """(n,) no pipeline of this shape is faster.

    A stage runs all its tasks after its first input has arrived, and others follow its last task.
    """
    p, m = shape.stages, shape.microbatches
    first, last = slice(0, p), slice(-p, None)
    passes = times.forward
    if shape.training:
        passes = passes + times.backward + times.weight
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
            late = np.minimum(np.arange(p), m - 1) + 1
            weight = times.weight[:, first]
            tail[:, 1:] = np.maximum(0, tail[:, 1:] + weight[:, :1] - late[1:] * weight[:, 1:])
    return np.asarray((head + busy + tail).max(axis=1))


def _before(values: FloatArray) -> FloatArray:
    """(n, k) sum of the values before each position."""
    return np.cumsum(values, axis=1) - values


# Microbatches after which the rhythm of a pipeline of p stages is taken as settled: 4 p, and not below 64.
_SETTLED_ROUNDS, _SETTLED_MICROBATCHES = 4, 64


def _settled(shape: PipelineShape) -> int:
    rounds = max(_SETTLED_ROUNDS, -(-_SETTLED_MICROBATCHES // shape.stages))
    return rounds * shape.stages


def _exact(shape: PipelineShape, times: ChunkTimes) -> PipelineTimes:
    plan = waves(shape)
    n, q, m = len(times.forward), shape.virtual_stages, shape.microbatches
    durations = _task_durations(shape, times)
    send = _link_durations(shape, times)
    # (task, plan): the last row is the task that is none, over before anything starts.
    arrived = np.zeros((plan.task_count + 1, n))
    ended = np.zeros((plan.task_count + 1, n))
    free = np.zeros((shape.stages, n))
    link_free = np.zeros((2 * shape.stages + 1, n))
    _sweep(plan, durations, send, m, arrived, ended, free, link_free)
    last = TaskKind.WEIGHT if shape.splits_backward else TaskKind.BACKWARD
    if not shape.training:
        last = TaskKind.FORWARD
    by_kind = ended[:-1].reshape(3, q, m, n)[last]
    return PipelineTimes(free.max(axis=0), free.T, by_kind.max(axis=1).T, by_kind.min(axis=1).T)


def _sweep(
    plan: Waves,
    durations: FloatArray,
    send: FloatArray,
    microbatches: int,
    arrived: FloatArray,
    ended: FloatArray,
    free: FloatArray,
    link_free: FloatArray,
) -> None:
    """Runs the waves in order, filling in when tasks end and their messages arrive."""
    starts = plan.starts.tolist()
    group = plan.task // microbatches
    for begin, end in pairwise(starts):
        task, stage, link = plan.task[begin:end], plan.stage[begin:end], plan.link[begin:end]
        rows = group[begin:end]
        finish = np.maximum(free[stage], arrived[plan.before[begin:end]]) + durations[rows]
        free[stage] = finish
        ended[task] = finish
        message = np.maximum(finish, link_free[link]) + send[rows]
        link_free[link] = message
        arrived[task] = message


def _task_durations(shape: PipelineShape, times: ChunkTimes) -> FloatArray:
    """(kind * virtual stages + virtual stage, n)"""
    backward = times.backward if shape.splits_backward else times.backward + times.weight
    return np.concatenate([times.forward.T, backward.T, times.weight.T])


def _link_durations(shape: PipelineShape, times: ChunkTimes) -> FloatArray:
    """As `_task_durations`, of the message that follows each task."""
    return np.concatenate([times.send_forward.T, times.send_backward.T, np.zeros_like(times.weight.T)])
