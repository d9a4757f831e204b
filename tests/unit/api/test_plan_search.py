"""Plan search against the public predictor asked about every plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.plan_search import PlanSource
from predictor.errors import DoesNotFit, InvalidPlan, InvalidRequest
from predictor.features.architectures.from_config import from_config
from predictor.features.lowering.layers import segments
from predictor.features.lowering.thin import thinned, whole_rows
from predictor.features.reading.reader import read_graph
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.search.bounds import bounds
from predictor.search.search import Goal, Objective
from predictor.search.space import PlanTable, SearchSpace, candidates, divisors
from predictor.types import Mode, Optimizer, Precision, Recompute, Schedule

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = "dgx-a100-80gb:1"
SPACE = SearchSpace(
    max_devices=8,
    dp=(1, 2, 4),
    tp=(1, 2),
    pp=(1, 2),
    samples=(1, 2),
    zero=(0, 1, 3),
    chunks=(2,),
    recompute=(Recompute.NONE, Recompute.FULL),
)


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def request(model: str, batch: int = 8) -> PredictionRequest:
    graph: str | bytes = str(ROOT / "examples" / model)
    if model.endswith(".json"):
        graph = from_config(ROOT / "tests/assets/configs" / model, sequence=64)
    return PredictionRequest(
        graph,
        "a100-sxm-80gb",
        batch=batch,
        mode=Mode.TRAIN,
        precision=Precision.AMP,
        optimizer=Optimizer.ADAMW,
        cluster=CLUSTER,
    )


def source_of(predictor: Predictor, asked: PredictionRequest) -> PlanSource:
    return predictor.plan_source(asked)


@pytest.mark.parametrize("model", ["gpt2.onnx", "resnet50.onnx", "unet.onnx", "t5-small.json"])
@pytest.mark.parametrize("objective", [Objective.TIME, Objective.COST])
def test_the_best_plan_is_that_of_asking_about_every_plan(
    predictor: Predictor, model: str, objective: Objective
) -> None:
    asked, goal = request(model), Goal(objective, top=3)
    found = predictor.search_plans(asked, goal, space=SPACE)
    table = candidates(SPACE, source_of(predictor, asked).facts())
    best = sorted(goal.value(*pair, 0.0) for pair in priced(predictor, asked, table))[:3]
    assert [item.value for item in found.best] == pytest.approx(best, rel=1e-3)
    assert found.considered == len(table)


def priced(predictor: Predictor, asked: PredictionRequest, table: PlanTable) -> list[tuple[float, int]]:
    """(seconds, devices) of every candidate that works and fits."""
    found = []
    for row in range(len(table)):
        plan = table.plan(row)
        try:
            answer = predictor.predict(replace(asked, plan=plan))
        except InvalidPlan:
            continue
        if answer.fits:
            found.append((answer.iteration_time_s.value, plan.device_count))
    return found


@pytest.mark.parametrize("model", ["gpt2.onnx", "resnet50.onnx"])
def test_split_sequences_are_searched_where_asked_for(predictor: Predictor, model: str) -> None:
    """Where a graph has no positions, splitting them gains nothing."""
    space = replace(SPACE, cp=(1, 2, 4), tp=(1,), pp=(1,), zero=(0,))
    asked = request(model, batch=1)
    found = predictor.search_plans(asked, Goal(top=4), space=space)
    table = candidates(space, source_of(predictor, asked).facts())
    best = sorted(time_s for time_s, _ in priced(predictor, asked, table))[:4]
    assert [item.value for item in found.best] == pytest.approx(best, rel=1e-3)
    assert {item.plan.cp for item in found.best} > {1}
    if model == "resnet50.onnx":
        assert found.best[0].plan.cp == 1


@pytest.mark.parametrize("model", ["gpt2.onnx", "unet.onnx"])
def test_bounds_lie_below_exact_answers(predictor: Predictor, model: str) -> None:
    asked = request(model)
    source = source_of(predictor, asked)
    table = candidates(SPACE, source.facts())
    found = bounds(table, source.cuts)
    rng = np.random.default_rng(0)
    for row in rng.choice(np.flatnonzero(np.isfinite(found.time_s)), 60, replace=False).tolist():
        answer = predictor.predict(replace(asked, plan=table.plan(row)))
        assert found.time_s[row] <= answer.iteration_time_s.value * (1 + 2e-3), table.plan(row)
        assert found.peak_bytes[row] <= answer.device_peak_bytes.value * (1 + 1e-3), table.plan(row)


def test_the_front_trades_devices_for_time(predictor: Predictor) -> None:
    front = predictor.search_plans(request("gpt2.onnx"), space=SPACE).front
    devices, times = [point.devices for point in front], [point.time_s for point in front]
    assert devices == sorted(set(devices))
    assert times == sorted(times, reverse=True)
    assert devices[0] == 1


def test_times_of_the_front_are_those_of_the_answers(predictor: Predictor) -> None:
    asked = request("gpt2.onnx")
    found = predictor.search_plans(asked, space=SPACE)
    for point in found.front:
        answer = predictor.predict(replace(asked, plan=point.plan))
        assert point.time_s == pytest.approx(answer.iteration_time_s.value, rel=1e-9)


def test_fewer_devices_and_deadlines_are_kept(predictor: Predictor) -> None:
    asked = request("gpt2.onnx")
    few = predictor.search_plans(asked, max_devices=2, space=replace(SPACE, max_devices=2))
    assert max(item.devices for item in few.best) <= 2
    free = predictor.search_plans(asked, Goal(Objective.COST), space=SPACE)
    deadline = free.best[0].outcome.time_s * 0.6
    kept = predictor.search_plans(asked, Goal(Objective.COST, deadline_s=deadline), space=SPACE)
    assert all(item.outcome.time_s <= deadline * 1.001 for item in kept.best)
    with pytest.raises(DoesNotFit, match="later deadline"):
        predictor.search_plans(asked, Goal(deadline_s=1e-6), space=SPACE)


def test_energy_is_that_of_the_answer(predictor: Predictor) -> None:
    found = predictor.search_plans(request("gpt2.onnx"), Goal(Objective.ENERGY, top=2), space=SPACE)
    for item in found.best:
        answer = predictor.predict(replace(request("gpt2.onnx"), plan=item.plan))
        assert item.value == pytest.approx(answer.energy_j.value)


def test_searches_need_a_batch_and_a_size(predictor: Predictor) -> None:
    with pytest.raises(InvalidRequest, match="no batch is given"):
        predictor.search_plans(replace(request("gpt2.onnx"), batch=None))
    with pytest.raises(InvalidRequest, match="name a cluster or a number of devices"):
        predictor.search_plans(replace(request("gpt2.onnx"), cluster=None))


def test_candidates_are_plans(predictor: Predictor) -> None:
    table = candidates(SPACE, source_of(predictor, request("gpt2.onnx")).facts())
    plans = {table.plan(row) for row in range(len(table))}
    assert len(plans) == len(table)
    assert all(plan.device_count <= 8 for plan in plans)
    assert {plan.schedule for plan in plans if plan.pp > 1} >= {Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE}
    assert divisors(12) == (1, 2, 3, 4, 6, 12)


@pytest.mark.parametrize("model", ["gpt2.onnx", "t5-base.json", "bert-base-uncased.json"])
def test_a_thin_graph_stands_for_the_whole(model: str) -> None:
    asked = request(model)
    graph = read_graph(asked.graph, batch=2)
    thin = thinned(graph)
    assert len(thin.graph.nodes) < len(graph.nodes)
    pieces, whole = segments(thin.graph), segments(graph)
    rows = whole_rows(thin, pieces)
    assert rows is not None
    assert [pieces.repeats[row] for row in rows] == list(whole.repeats)
    assert thin.graph.parameters < graph.parameters
    assert Plan() == Plan(dp=1)


@pytest.mark.parametrize("batch", [7, 100])
def test_a_whole_share_of_any_size_is_one_microbatch(predictor: Predictor, batch: int) -> None:
    asked = PredictionRequest(Path("examples/resnet50.onnx"), device="a100-sxm-80gb", batch=batch)
    found = predictor.search_plans(asked, max_devices=1)
    assert found.best[0].plan == Plan()
