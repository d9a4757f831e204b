"""Stages on different devices: the cut against all cuts, equal devices against the plain pipeline."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from predictor.api import Predictor
from predictor.api.mixed_pipeline import mixed_pipeline
from predictor.compose.mixed_stages import mixed_ends
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Schedule

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stages, pieces = int(rng.integers(1, 5)), int(rng.integers(5, 9))
    cost = rng.random((stages, pieces)) * rng.uniform(0.5, 3.0, (stages, 1))
    ends = mixed_ends(cost)

    def largest(cut: tuple[int, ...]) -> float:
        return max(float(cost[s, a:b].sum()) for s, (a, b) in enumerate(pairwise((0, *cut, pieces))))

    best = min(largest(cut) for cut in combinations(range(1, pieces), stages - 1))
    assert largest(tuple(ends[:-1].tolist())) == pytest.approx(best, rel=1e-12)
    assert ends[-1] == pieces


def test_a_device_of_twice_the_speed_gets_two_thirds() -> None:
    slow = np.ones(12)
    assert mixed_ends(np.stack([slow, slow / 2])).tolist() == [4, 12]
    assert mixed_ends(np.stack([slow / 2, slow])).tolist() == [8, 12]


def test_more_stages_than_pieces() -> None:
    with pytest.raises(InvalidPlan, match="3 pipeline stages"):
        mixed_ends(np.ones((3, 2)))


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor.load()


def asked(graph: str = "gpt2.onnx", **plan: object) -> PredictionRequest:
    return PredictionRequest(
        str(EXAMPLES / graph),
        "a100-sxm-80gb",
        batch=16,
        mode="train",  # type: ignore[arg-type]
        precision="amp",  # type: ignore[arg-type]
        cluster="dgx-a100-80gb:1",
        plan=Plan(**{"pp": 2, "microbatches": 8, **plan}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("graph", ["gpt2.onnx", "unet.onnx", "resnet50.onnx"])
@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ZERO_BUBBLE])
def test_equal_devices_are_the_plain_pipeline(predictor: Predictor, graph: str, schedule: Schedule) -> None:
    request = asked(graph, schedule=schedule)
    plain = predictor.predict(request)
    mixed = mixed_pipeline(predictor, request, ["a100-sxm-80gb"] * 2)
    # The plain cut also weighs what crosses it.
    assert mixed.iteration_time_s.value == pytest.approx(plain.iteration_time_s.value, rel=0.02)
    assert sum(mixed.time_breakdown_s.values()) == pytest.approx(mixed.iteration_time_s.value)
    assert mixed.fits
    most = max(stage.peak.device_peak.value for stage in mixed.stages)
    assert most == pytest.approx(plain.device_peak_bytes.value, rel=0.1)


def test_a_slower_device_gets_less_and_takes_longer(predictor: Predictor) -> None:
    request = asked(dp=2)
    fast = mixed_pipeline(predictor, request, ["a100-sxm-80gb", "a100-sxm-80gb"])
    both = mixed_pipeline(predictor, request, ["a100-sxm-80gb", "v100-sxm-32gb"])
    slow = mixed_pipeline(predictor, request, ["v100-sxm-32gb", "v100-sxm-32gb"])
    times = [each.iteration_time_s.value for each in (fast, both, slow)]
    assert times == sorted(times)
    assert both.stages[0].pieces[1] > fast.stages[0].pieces[1]
    assert both.stages[1].peak.capacity_bytes < both.stages[0].peak.capacity_bytes
    assert both.throughput_samples_per_s.value == pytest.approx(16 / times[1])


def test_what_cannot_be_mixed_is_said(predictor: Predictor) -> None:
    with pytest.raises(InvalidRequest, match="one a stage"):
        mixed_pipeline(predictor, asked(), ["a100-sxm-80gb"])
    chunks = asked(schedule=Schedule.INTERLEAVED, virtual_stages=2)
    with pytest.raises(InvalidPlan, match="one chunk each"):
        mixed_pipeline(predictor, chunks, ["a100-sxm-80gb"] * 2)
