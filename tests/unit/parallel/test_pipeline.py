from dataclasses import replace

import numpy as np
import pytest

from predictor.parallel.pipeline import ChunkTimes, FloatArray, lower_bound_s, pipeline_times
from predictor.parallel.schedule import PipelineShape, TaskKind, in_flight, stage_order
from predictor.types import Schedule

SHAPES = [
    PipelineShape(Schedule.GPIPE, 4, 1, 6),
    PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 3),
    PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 10),
    PipelineShape(Schedule.ONE_F_ONE_B, 1, 1, 5),
    PipelineShape(Schedule.INTERLEAVED, 4, 3, 8),
    PipelineShape(Schedule.INTERLEAVED, 2, 2, 2),
    PipelineShape(Schedule.ZERO_BUBBLE, 4, 1, 9),
    PipelineShape(Schedule.ZERO_BUBBLE, 4, 1, 2),
    PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 6, training=False),
    PipelineShape(Schedule.INTERLEAVED, 2, 3, 4, training=False),
]


def equal_times(shape: PipelineShape, forward: float, backward: float, weight: float = 0.0) -> ChunkTimes:
    ones = np.ones((1, shape.virtual_stages)) / shape.chunks
    return ChunkTimes(forward * ones, backward * ones, weight * ones, 0 * ones, 0 * ones)


def random_times(shape: PipelineShape, rng: np.random.Generator, count: int = 1) -> ChunkTimes:
    size = count, shape.virtual_stages
    parts: list[FloatArray] = [rng.uniform(0.5, 2.0, size) for _ in range(3)]
    return ChunkTimes(*parts, rng.uniform(0, 0.4, size), rng.uniform(0, 0.4, size))


def simulate(shape: PipelineShape, times: ChunkTimes) -> float:
    """Event by event, one task or message at a time."""
    p, q_count = shape.stages, shape.virtual_stages
    queues = [list(stage_order(shape, stage)) for stage in range(p)]
    arrived: dict[tuple[TaskKind, int, int], float] = {}
    clock, links = [0.0] * p, dict[tuple[int, int], float]()
    split = shape.splits_backward
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue:
                kind, chunk, j = queue[0]
                q = chunk * p + stage
                waits = None
                if kind is TaskKind.FORWARD and q > 0:
                    waits = TaskKind.FORWARD, q, j
                if kind is TaskKind.BACKWARD and q < q_count - 1:
                    waits = TaskKind.BACKWARD, q, j
                if waits is not None and waits not in arrived:
                    break
                queue.pop(0)
                start = max(clock[stage], arrived[waits] if waits else 0.0)
                duration = {
                    TaskKind.FORWARD: times.forward[0, q],
                    TaskKind.BACKWARD: times.backward[0, q] + (0 if split else times.weight[0, q]),
                    TaskKind.WEIGHT: times.weight[0, q],
                }[kind]
                clock[stage] = start + duration
                step = {TaskKind.FORWARD: 1, TaskKind.BACKWARD: -1, TaskKind.WEIGHT: 0}[kind]
                if step and 0 <= q + step < q_count:
                    cost = (times.send_forward if step == 1 else times.send_backward)[0, q]
                    link = stage, step
                    links[link] = max(links.get(link, 0.0), clock[stage]) + cost
                    arrived[kind, q + step, j] = links[link]
    return max(clock)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_makespans_are_those_of_a_simulation(shape: PipelineShape) -> None:
    rng = np.random.default_rng(7)
    for _ in range(10):
        times = random_times(shape, rng)
        assert pipeline_times(shape, times).total_s[0] == pytest.approx(simulate(shape, times), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_many_plans_at_once_are_the_same_plans(shape: PipelineShape) -> None:
    times = random_times(shape, np.random.default_rng(3), count=5)
    together = pipeline_times(shape, times)
    assert (lower_bound_s(shape, times) <= together.total_s * (1 + 1e-12)).all()
    for row in range(5):
        alone = ChunkTimes(
            *(getattr(times, name)[row : row + 1] for name in times.__dataclass_fields__),
        )
        single = pipeline_times(shape, alone)
        assert single.total_s[0] == together.total_s[row]
        assert (single.stage_end_s[0] == together.stage_end_s[row]).all()


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (8, 3), (8, 500), (64, 64)])
def test_bubble_of_equal_stages(schedule: Schedule, p: int, m: int) -> None:
    shape = PipelineShape(schedule, p, 1, m)
    total = pipeline_times(shape, equal_times(shape, 1.0, 2.0)).total_s[0]
    assert 1 - 3 * m / total == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)


@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaving_divides_the_bubble(chunks: int) -> None:
    shape = PipelineShape(Schedule.INTERLEAVED, 4, chunks, 8)
    total = pipeline_times(shape, equal_times(shape, 1.0, 2.0)).total_s[0]
    assert total - 3 * 8 == pytest.approx(3 * (4 - 1) / chunks)


def test_zero_bubble_hides_weight_gradients() -> None:
    # ZB-H1: (p - 1) (F + B - W) of bubble, with F = B = W a third of what 1F1B leaves.
    shape = PipelineShape(Schedule.ZERO_BUBBLE, 4, 1, 12)
    total = pipeline_times(shape, equal_times(shape, 1.0, 1.0, 1.0)).total_s[0]
    assert total - 3 * 12 == pytest.approx(4 - 1)
    plain = replace(shape, schedule=Schedule.ONE_F_ONE_B)
    assert pipeline_times(plain, equal_times(plain, 1.0, 1.0, 1.0)).total_s[0] - 36 == pytest.approx(9)


def test_activations_in_flight() -> None:
    assert [in_flight(PipelineShape(Schedule.GPIPE, 4, 1, 9), stage) for stage in range(4)] == [9] * 4
    assert [in_flight(PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 9), s) for s in range(4)] == [4, 3, 2, 1]
    assert in_flight(PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 2), 0) == 2
    # Narayanan et al. 2021, section 2.2: at most p microbatches of the whole model and p - 1 chunks more.
    assert in_flight(PipelineShape(Schedule.INTERLEAVED, 4, 2, 16), 0) == 2 * 4 + 3
    assert [in_flight(PipelineShape(Schedule.ZERO_BUBBLE, 4, 1, 9), s) for s in range(4)] == [4] * 4


@pytest.mark.parametrize("schedule", list(Schedule))
def test_long_runs_are_extended_as_they_would_run(schedule: Schedule) -> None:
    rng = np.random.default_rng(11)
    for p in (2, 4, 6):
        chunks = 2 if schedule is Schedule.INTERLEAVED else 1
        shape = PipelineShape(schedule, p, chunks, 30 * p)
        for _ in range(4):
            times = random_times(shape, rng)
            found = pipeline_times(shape, times).total_s[0]
            assert found == pytest.approx(simulate(shape, times), rel=1e-3)


def test_more_microbatches_never_finish_earlier() -> None:
    times = random_times(PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, 1), np.random.default_rng(5))
    totals = [
        pipeline_times(PipelineShape(Schedule.ONE_F_ONE_B, 4, 1, m), times).total_s[0] for m in range(1, 90)
    ]
    assert (np.diff(totals) > 0).all()
