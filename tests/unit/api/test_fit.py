"""Where jobs stop to fit: against predictions of every size near the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.api import Predictor
from predictor.api.fit import Axis, batch_axis, config_axis
from predictor.compose.memory import fit_probability
from predictor.errors import InvalidPlan, InvalidRequest, UnknownDevice, UnknownName
from predictor.features.architectures.from_config import from_config
from predictor.features.graph import Graph
from predictor.features.programs.scaling import SizedPrograms
from predictor.features.reading.reader import read_graph
from predictor.hardware.catalog import find_cluster
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 8000,
    "n_positions": 512,
}
DEVICE = "a10g-pcie-24gb"


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.fixture(scope="module")
def request_(predictor: Predictor) -> PredictionRequest:
    graph = predictor.add_graph(from_config(CONFIG, sequence=128))
    return PredictionRequest(graph, DEVICE, batch=8, mode="train", precision="bf16", optimizer="adamw")  # type: ignore[arg-type]


def chance(predictor: Predictor, request: PredictionRequest) -> float:
    answer = predictor.predict(request)
    return fit_probability(answer.device_peak_bytes, answer.capacity_bytes)


@pytest.mark.parametrize("plan", [Plan(), Plan(dp=4, zero=2), Plan(microbatches=2, recompute="full")])  # type: ignore[arg-type]
@pytest.mark.parametrize("wanted", [0.5, 0.95])
def test_the_answer_is_what_predictions_of_these_sizes_say(
    predictor: Predictor, request_: PredictionRequest, plan: Plan, wanted: float
) -> None:
    step = plan.dp * plan.microbatches
    request = replace(request_, plan=plan, batch=8 * step)
    found = predictor.fit(request, probability=wanted)
    assert found.step == step
    assert found.largest is not None
    assert found.beyond is not None
    assert found.beyond.value == found.largest.value + step
    for point in (found.largest, found.beyond):
        expected = predictor.predict(replace(request, batch=point.value))
        assert point.peak.value == pytest.approx(expected.device_peak_bytes.value, rel=2e-3)
    assert chance(predictor, replace(request, batch=found.largest.value)) >= wanted - 0.01
    assert chance(predictor, replace(request, batch=found.beyond.value)) < wanted + 0.01


def test_scaled_programs_equal_built_ones(predictor: Predictor, request_: PredictionRequest) -> None:
    built = {size: predictor.rank(replace(request_, batch=size)).program for size in (3, 8, 50)}
    scaled = SizedPrograms.of((3, 8), (built[3], built[8]))
    assert scaled is not None
    found = scaled.at(50, 50)
    assert found.memory == built[50].memory
    assert found.batch == 50


def test_other_steps_are_no_basis(predictor: Predictor, request_: PredictionRequest) -> None:
    one, two = (predictor.rank(replace(request_, mode=mode)).program for mode in ("train", "infer"))  # type: ignore[arg-type]
    assert SizedPrograms.of((1, 2), (one, two)) is None


def test_a_quadratic_size_is_found_too() -> None:
    known = SizedPrograms((10, 20, 30), ())
    weights = known.weights(100)
    assert weights.sum() == pytest.approx(1)
    assert weights @ [7 * size**2 + 3 for size in known.values] == pytest.approx(7 * 100**2 + 3)


def test_nothing_fits(predictor: Predictor, request_: PredictionRequest) -> None:
    huge = {**CONFIG, "n_embd": 8192, "n_layer": 24}
    request = replace(request_, graph=from_config(huge, sequence=128), batch=4)
    found = predictor.fit(request)
    assert found.largest is None
    assert found.beyond is None
    assert found.smallest is not None
    assert found.smallest.probability < found.wanted
    changes = predictor.changes_to_fit(request)
    assert changes
    assert changes[0].peak.value < predictor.predict(request).device_peak_bytes.value


def test_everything_fits(predictor: Predictor, request_: PredictionRequest) -> None:
    axis = replace(batch_axis(request_), limit=64)
    found = predictor.fit(request_, axis=axis)
    assert found.largest is not None
    assert found.largest.value == 64
    assert found.beyond is None
    assert "64" in found.stopped


def test_layers_and_the_table_of_positions(predictor: Predictor, request_: PredictionRequest) -> None:
    wide = {**CONFIG, "n_embd": 2048, "n_layer": 30}
    layers = predictor.fit(request_, axis=config_axis(request_, wide, "layers", 128))
    assert layers.largest is not None
    assert layers.beyond is not None
    assert layers.largest.value > 30
    more = {**wide, "n_layer": layers.largest.value}
    whole = replace(request_, graph=from_config(more, sequence=128))
    assert layers.largest.peak == predictor.predict(whole).device_peak_bytes
    tokens = predictor.fit(request_, axis=config_axis(request_, CONFIG, "sequence"))
    assert tokens.largest is not None
    assert tokens.largest.value == CONFIG["n_positions"]
    assert "positions" in tokens.stopped


def test_changes_are_ranked_and_keep_the_batch(predictor: Predictor, request_: PredictionRequest) -> None:
    last = predictor.fit(request_).largest
    assert last is not None
    request = replace(request_, batch=4 * last.value)
    changes = predictor.changes_to_fit(request)
    assert changes
    assert all(change.fits for change in changes)
    assert [change.slowdown for change in changes] == sorted(change.slowdown for change in changes)
    for change in changes:
        if change.request is not None:
            assert change.request.batch == request.batch
            assert chance(predictor, change.request) == pytest.approx(change.probability)


@pytest.mark.parametrize("wanted", [0, 1, -0.1, float("nan"), "0.9", True])
def test_probabilities_that_are_none(
    predictor: Predictor, request_: PredictionRequest, wanted: float
) -> None:
    with pytest.raises(InvalidRequest, match="probability"):
        predictor.fit(request_, probability=wanted)


def test_bad_questions(predictor: Predictor, request_: PredictionRequest) -> None:
    with pytest.raises(UnknownDevice):
        predictor.fit(replace(request_, device="z9000"))
    with pytest.raises(UnknownName, match="wheels"):
        predictor.fit(request_, axis="wheels")
    with pytest.raises(InvalidRequest, match="changes nothing"):
        predictor.fit(request_, axis=Axis("device", lambda steps: request_, start=2))
    graph: Graph = read_graph(from_config(CONFIG, sequence=128), batch=2)
    with pytest.raises(InvalidRequest, match="Graph has sizes"):
        predictor.fit(replace(request_, graph=graph))
    count = find_cluster("dgx-a100-80gb").device_count + 1
    with pytest.raises(InvalidPlan, match=f"{count} devices"):
        predictor.fit(replace(request_, plan=Plan(dp=count), cluster="dgx-a100-80gb"))


def test_an_axis_of_ones_own(predictor: Predictor, request_: PredictionRequest) -> None:
    asked: list[int] = []

    def at(steps: int) -> PredictionRequest:
        asked.append(steps)
        return replace(request_, batch=steps * 16)

    found = predictor.fit(request_, axis=Axis("batch", at, step=16, start=1))
    plain = predictor.fit(request_)
    assert found.largest is not None
    assert plain.largest is not None
    assert abs(found.largest.value - plain.largest.value) < 32
    assert len(set(asked)) <= 4
