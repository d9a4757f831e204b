"""Replicas against split replicas by time to a target: the plans are answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from predictor.api import Predictor
from predictor.api.hybrid_splits import hybrid_splits
from predictor.errors import InvalidRequest
from predictor.request import PredictionRequest
from predictor.search.time_to_target import EpochCurve, crossover_devices

GPT2 = str(Path(__file__).resolve().parents[3] / "examples" / "gpt2.onnx")
SAMPLES = 100_000


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def asked(batch: int | None = 8) -> PredictionRequest:
    return PredictionRequest(
        GPT2,
        "a100-sxm-80gb",
        batch=batch,
        mode="train",  # type: ignore[arg-type]
        precision="amp",  # type: ignore[arg-type]
        cluster="dgx-a100-80gb:1",
    )


def test_times_are_those_of_the_answers(predictor: Predictor) -> None:
    curve = EpochCurve(least_epochs=10, critical_batch=32)
    found = hybrid_splits(predictor, asked(), (1, 2, 4), (1, 2), samples=SAMPLES, epochs=curve)
    assert [(item.split.replicas, item.split.ways) for item in found if item.split.devices == 1] == [(1, 1)]
    for item in found:
        split, plan = item.split, item.plan
        assert plan.device_count == split.devices
        answer = predictor.predict(replace(asked(8 * split.replicas), plan=plan))
        assert answer.iteration_time_s.value == split.iteration_s
        steps = -(-SAMPLES // (8 * split.replicas))
        assert split.time_s == pytest.approx(split.iteration_s * steps * curve(8 * split.replicas))


def test_splitting_wins_where_larger_batches_need_many_more_epochs(predictor: Predictor) -> None:
    cheap, dear = EpochCurve(10, 1e9), EpochCurve(10, 0.5)
    crossings = []
    for curve in (cheap, dear):
        found = hybrid_splits(predictor, asked(), (1, 2, 4), (1, 2), samples=SAMPLES, epochs=curve)
        crossings.append(crossover_devices([item.split for item in found]))
    assert crossings[0] is None
    assert crossings[1] == 2


def test_a_batch_is_needed(predictor: Predictor) -> None:
    with pytest.raises(InvalidRequest, match="no batch"):
        hybrid_splits(predictor, asked(None), (1,), (1,), samples=SAMPLES, epochs=EpochCurve(1, 1))
