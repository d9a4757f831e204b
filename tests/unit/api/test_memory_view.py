"""Memory over one iteration: its totals are the program's, and its pictures say what it holds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.memory_view import LINES, MemorySeries
from predictor.cli.memory_picture import WRITERS, memory_html, memory_shapes, memory_svg
from predictor.features.architectures.from_config import from_config
from predictor.features.programs.liveness import Part
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest

CONFIG = {
    "model_type": "gpt2",
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 1000,
    "n_positions": 64,
}


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


@pytest.fixture(scope="module")
def job() -> PredictionRequest:
    graph = from_config(CONFIG, sequence=64)
    return PredictionRequest(graph, "a100-sxm-80gb", 16, "train", precision="bf16", optimizer="adamw")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def series(predictor: Predictor, job: PredictionRequest) -> MemorySeries:
    return predictor.memory_series(job)


@pytest.mark.parametrize(("release", "keeps"), [("", False), ("2.0", False), ("1.13", True)])
def test_releases_before_2_keep_gradients_from_one_iteration_to_the_next(
    predictor: Predictor, job: PredictionRequest, release: str, keeps: bool
) -> None:
    series = predictor.memory_series(replace(job, framework_version=release))
    gradients = series.lines["gradients"]
    assert gradients[0] == (gradients.max() if keeps else 0)


def test_the_total_is_the_timelines(
    predictor: Predictor, job: PredictionRequest, series: MemorySeries
) -> None:
    program = predictor.rank(job).program
    assert program.timeline is not None
    assert series.total_bytes == pytest.approx(program.timeline.total_bytes)
    assert series.total_bytes[series.peak_step] == program.memory.live_peak_bytes
    assert set(series.lines) <= set(LINES)
    lines = {name: values[series.peak_step] for name, values in series.lines.items()}
    found = predictor.predict(job).memory_breakdown_bytes
    assert lines["gradients"] == found["gradients"]
    assert lines["optimizer_state"] == found["optimizer_state"]


def test_what_is_alive_adds_up_to_the_peak(series: MemorySeries) -> None:
    alive = sum(tensor.size_bytes for tensor in series.alive)
    at = {name: values[series.peak_step] for name, values in series.lines.items()}
    inputs = 16 * 64 * 8
    assert alive == at["activations"] + at["gradients"] + at["workspace"] - inputs
    sizes = [tensor.size_bytes for tensor in series.alive]
    assert sizes == sorted(sizes, reverse=True)
    assert {tensor.held_for for tensor in series.alive} >= {"saved for backward"}
    assert all(tensor.node for tensor in series.alive)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(dp=4, zero=3),
        Plan(microbatches=4, recompute="full"),  # type: ignore[arg-type]
        Plan(pp=2, microbatches=4),
    ],
)
def test_plans_peak_where_their_worst_stage_does(
    predictor: Predictor, job: PredictionRequest, plan: Plan
) -> None:
    request = replace(job, plan=plan)
    cost, series = predictor.memory(request), predictor.memory_series(request)
    assert cost.stage is not None
    assert cost.stage.moment != "optimizer"
    assert series.stage == cost.stage.stage
    assert series.total_bytes.max() == pytest.approx(cost.stage.peak_bytes)
    assert len(series.parts) == len(series.nodes) == len(series.total_bytes)
    assert Part.BACKWARD in series.parts


def test_pictures_show_every_line_and_the_peak(series: MemorySeries) -> None:
    text = memory_svg(series, "a <model>").decode()
    root = ET.fromstring(text)
    polygons = [item for item in root.iter() if item.tag.endswith("polygon")]
    # An area and a legend's square each.
    assert len(polygons) == 2 * len(series.lines)
    words = "".join(root.itertext())
    for word in ("a <model>", "forward", "backward", "activations", "optimizer state", "peak"):
        assert word in words
    page = memory_html(series, "a <model>").decode()
    assert "a &lt;model&gt;" in page
    assert series.alive[0].name in page


def test_areas_are_stacked_without_a_gap(series: MemorySeries) -> None:
    from predictor.cli.drawing import Area

    areas = [shape for shape in memory_shapes(series, "") if isinstance(shape, Area)][: len(series.lines)]
    for below, above in pairwise(areas):
        half = len(below.points) // 2
        assert np.allclose(below.points[:half], above.points[half:][::-1])


def test_png(series: MemorySeries) -> None:
    image = pytest.importorskip("PIL.Image")
    from io import BytesIO

    found = image.open(BytesIO(WRITERS[".png"](series, "a model")))
    assert found.format == "PNG"
    assert found.size == (1920, 1080)
    colours = {colour for _, colour in found.getcolors(1 << 20)}
    # Paper and the six or fewer colours of the lines, at least.
    assert {(255, 255, 255), (0, 114, 178)} <= colours


@pytest.mark.parametrize(
    "plan",
    [
        Plan(pp=2),
        Plan(pp=4),
        Plan(tp=2),
        Plan(pp=2, tp=2),
        Plan(dp=2, tp=2),
        Plan(microbatches=4),
        Plan(pp=2, microbatches=4),
    ],
)
def test_cached_keys_lie_where_their_layers_and_heads_are(predictor: Predictor, plan: Plan) -> None:
    step = from_config({**CONFIG, "n_positions": 2048}, past_length=2000)
    whole = PredictionRequest(step, "a100-sxm-80gb", 64, precision="bf16")  # type: ignore[arg-type]
    # 64 samples x 2001 positions x 128 numbers of 2 bytes, keys and values of 4 layers.
    cached_bytes = 64 * 2001 * 128 * 2 * 2 * 4
    alone, split = (
        predictor.predict(replace(whole, plan=one)).memory_breakdown_bytes["activations"]
        for one in (Plan(), plan)
    )
    assert alone == pytest.approx(cached_bytes, rel=0.02)
    assert split == pytest.approx(cached_bytes / plan.device_count, rel=0.06)
