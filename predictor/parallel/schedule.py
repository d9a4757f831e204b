"""In which order each stage of a pipeline runs the microbatches: GPipe, 1F1B, interleaved and zero-bubble.

A task is the forward pass (F), the backward pass (B) or, where a schedule splits it, the weight gradients (W)
of one microbatch in one chunk of the model. Chunk c on stage s is virtual stage q = c * stages + s, counted
along the model. Orders: GPipe, Huang et al. 2019, arXiv:1811.06965; 1F1B and interleaved, Narayanan et al.
2021, arXiv:2104.04473; zero-bubble ZB-H1, Qi et al. 2023, arXiv:2401.10241.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.types import Schedule

IntArray: TypeAlias = NDArray[np.int64]


class TaskKind(IntEnum):
    """What a stage does with one microbatch."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Sizes of a pipeline.

    Attributes:
        stages: devices in a row. chunks: parts of the model on each, above 1 only when interleaved.
        microbatches: of one iteration.
        training: False runs forward passes only.
    """

    schedule: Schedule
    stages: int
    chunks: int
    microbatches: int
    training: bool = True

    @property
    def virtual_stages(self) -> int:
        """Chunks of the whole model."""
        return self.stages * self.chunks

    @property
    def splits_backward(self) -> bool:
        """True when weight gradients are tasks of their own."""
        return self.training and self.schedule is Schedule.ZERO_BUBBLE


Task: TypeAlias = tuple[TaskKind, int, int]
"""(kind, chunk, microbatch)"""


def stage_order(shape: PipelineShape, stage: int) -> Iterator[Task]:
    """Tasks of one stage, in order."""
    forwards, warm_up = _forwards(shape), _warm_up(shape, stage)
    if not shape.training:
        yield from forwards
        return
    backwards, weights = _backwards(shape), _weights(shape, stage)
    total = shape.microbatches * shape.chunks
    for _ in range(min(warm_up, total)):
        yield next(forwards)
    for index in range(total):
        if (task := next(forwards, None)) is not None:
            yield task
        yield next(backwards)
        yield from weights(index)


def in_flight(shape: PipelineShape, stage: int) -> int:
    """Most microbatches, counted chunk by chunk, whose activations a stage holds at once."""
    held = most = 0
    release = TaskKind.WEIGHT if shape.splits_backward else TaskKind.BACKWARD
    for kind, _, _ in stage_order(shape, stage):
        if kind is TaskKind.FORWARD:
            held += 1
            most = max(most, held)
        elif kind is release:
            held -= 1
    return most


def _warm_up(shape: PipelineShape, stage: int) -> int:
    """Forward passes before the first backward pass, the one right before it left out."""
    if shape.schedule is Schedule.GPIPE:
        return shape.microbatches * shape.chunks
    after = shape.stages - stage - 1
    return after if shape.chunks == 1 else 2 * after + (shape.chunks - 1) * shape.stages


def _forwards(shape: PipelineShape) -> Iterator[Task]:
    for chunk, microbatch in _in_groups(shape):
        yield TaskKind.FORWARD, chunk, microbatch


def _backwards(shape: PipelineShape) -> Iterator[Task]:
    for chunk, microbatch in _in_groups(shape):
        yield TaskKind.BACKWARD, shape.chunks - 1 - chunk, microbatch


def _in_groups(shape: PipelineShape) -> Iterator[tuple[int, int]]:
    """(chunk, microbatch): a group of as many microbatches as stages visits all chunks before the next."""
    if shape.chunks == 1:
        for microbatch in range(shape.microbatches):
            yield 0, microbatch
        return
    for first in range(0, shape.microbatches, shape.stages):
        for chunk in range(shape.chunks):
            for microbatch in range(first, min(first + shape.stages, shape.microbatches)):
                yield chunk, microbatch


class _weights:  # noqa: N801 - a function that remembers
    """Weight gradients after the backward pass number `index`: later stages put off as many as their number.

    That lets gradients run to the first stage without waiting, and fills the end of the later ones.
    """

    def __init__(self, shape: PipelineShape, stage: int) -> None:
        self._active = shape.splits_backward
        self._lag = min(stage, shape.microbatches - 1)
        self._last = shape.microbatches - 1

    def __call__(self, index: int) -> Iterator[Task]:
        if not self._active:
            return
        if index >= self._lag:
            yield TaskKind.WEIGHT, 0, index - self._lag
        if index == self._last:
            for late in range(index - self._lag + 1, index + 1):
                yield TaskKind.WEIGHT, 0, late


@dataclass(frozen=True, slots=True)
class Waves:
    """Tasks of all stages in waves: a task's predecessors stand in earlier waves, stages differ within one.

    Attributes:
        starts: (waves + 1,) where each wave begins in the arrays below, (tasks,) each.
        task: kind * (virtual stages * microbatches) + virtual stage * microbatches + microbatch.
        group: kind * virtual stages + virtual stage.
        stage: the stage that runs it.
        before: place in these arrays of the task whose message it waits for; `tasks` where there is none.
        link: the link its own message takes: `stage` forward, `stages + stage` backward; 2 * stages: none.
    """

    starts: tuple[int, ...]
    task: IntArray
    group: IntArray
    stage: IntArray
    before: IntArray
    link: IntArray


@lru_cache(maxsize=256)
def waves(shape: PipelineShape) -> Waves:
    """The schedule as waves."""
    orders = [_numbered(shape, stage) for stage in range(shape.stages)]
    count = max(map(len, orders))
    none = 3 * shape.virtual_stages * shape.microbatches
    table = np.full((shape.stages, count + 1), none, dtype=np.int64)
    for stage, order in enumerate(orders):
        table[stage, : len(order)] = order
    before, link = _messages(shape)
    done = np.zeros(none + 1, dtype=bool)
    done[none] = True
    position = np.zeros(shape.stages, dtype=np.int64)
    all_stages = np.arange(shape.stages)
    found_tasks, found_stages, starts = [], [], [0]
    while True:
        tasks = table[all_stages, position]
        ready = np.flatnonzero(done[before[tasks]] & (tasks < none))
        if not ready.size:
            break
        found_tasks.append(tasks[ready])
        found_stages.append(ready)
        starts.append(starts[-1] + ready.size)
        done[tasks[ready]] = True
        position[ready] += 1
    task = np.concatenate(found_tasks)
    place = np.full(none + 1, len(task), dtype=np.int64)
    place[task] = np.arange(len(task))
    return Waves(
        tuple(starts),
        task,
        task // shape.microbatches,
        np.concatenate(found_stages),
        place[before[task]],
        link[task],
    )


def _numbered(shape: PipelineShape, stage: int) -> IntArray:
    order = np.array(list(stage_order(shape, stage)), dtype=np.int64)
    virtual = order[:, 1] * shape.stages + stage
    numbers: IntArray = (order[:, 0] * shape.virtual_stages + virtual) * shape.microbatches + order[:, 2]
    return numbers


def _messages(shape: PipelineShape) -> tuple[IntArray, IntArray]:
    """(before, link) of every task, and of the task that is none."""
    q, m, p = shape.virtual_stages, shape.microbatches, shape.stages
    none = 3 * q * m
    tasks = np.arange(q * m).reshape(q, m)
    before = np.full((3, q, m), none, dtype=np.int64)
    before[TaskKind.FORWARD, 1:] = tasks[:-1]
    before[TaskKind.BACKWARD, :-1] = q * m + tasks[1:]
    link = np.full((3, q, m), 2 * p, dtype=np.int64)
    stage = np.arange(q) % p
    link[TaskKind.FORWARD, :-1] = stage[:-1, None]
    link[TaskKind.BACKWARD, 1:] = p + stage[1:, None]
    return np.append(before.ravel(), none), np.append(link.ravel(), 2 * p)
