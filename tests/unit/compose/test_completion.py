"""Runs to completion: totals are steps times answers, unknown stays unknown, starts follow the trace."""

from __future__ import annotations

from dataclasses import replace
from math import isclose

import pytest

from predictor.compose.completion import RunLength, complete
from predictor.errors import InvalidRequest
from predictor.hardware.accounting import Accounting
from predictor.hardware.carbon_trace import HourlyTrace
from predictor.hardware.sites import Site
from predictor.search.time_to_target import EpochCurve
from predictor.types import Coverage, Footprint, Interval, Prediction

TRACE = HourlyTrace((400.0, 400.0, 100.0, 100.0, 400.0, 400.0), "six hours")
HERE = Accounting(site=Site("here", "here", trace=TRACE))


def answer(energy_j: float, time_s: float = 0.5) -> Prediction:
    """A step of half a second."""
    return Prediction(
        iteration_time_s=Interval(time_s, 0.9 * time_s, 1.1 * time_s),
        throughput_samples_per_s=Interval.exact(32 / time_s),
        device_peak_bytes=Interval.exact(1.0),
        allocator_peak_bytes=Interval.exact(1.0),
        fits=True,
        energy_j=Interval(energy_j, 0.8 * energy_j, 1.25 * energy_j),
        average_power_w=Interval.exact(energy_j / time_s),
        time_breakdown_s={"forward": time_s},
        memory_breakdown_bytes={"parameters": 1.0},
        energy_breakdown_j={"static": energy_j},
        coverage=Coverage(learned=1.0),
        bundle="b",
        graph="g",
        device="d",
        device_count=1,
    )


def stepped(energy_j: float = 100.0, grams: float | None = 2.0) -> Prediction:
    carbon = None if grams is None else Interval(grams, grams / 2, 2 * grams)
    foot = Footprint(
        "node", Interval.exact(2 * energy_j), {"devices": energy_j, "host": energy_j}, carbon_g=carbon
    )
    return replace(answer(energy_j), footprint=foot)


def test_a_run_is_its_steps() -> None:
    step = stepped()
    run = complete(step, 32.0, RunLength(samples=1000, epochs=3.0))
    assert run.steps == 3 * 32
    assert run.validation_steps == 0
    assert run.validation_share == 0
    assert isclose(run.energy_j.value, 96 * step.energy_j.value)
    assert isclose(run.time_s.high, 96 * step.iteration_time_s.high)
    assert run.footprint is not None
    assert isclose(sum(run.footprint.parts_j.values()), run.footprint.energy_j.value)
    assert run.start is None


def test_validation_adds_forward_steps() -> None:
    run = complete(
        stepped(100.0), 32.0, RunLength(1000, 2.0, validation_samples=320), validation=stepped(30.0, 0.5)
    )
    assert run.validation_steps == 20
    assert isclose(run.energy_j.value, 64 * 100.0 + 20 * 30.0)
    assert isclose(run.validation_share, 600.0 / run.energy_j.value)
    assert run.footprint is not None
    assert run.footprint.carbon_g is not None
    assert isclose(run.footprint.carbon_g.value, 64 * 2.0 + 20 * 0.5)


def test_a_curve_makes_large_batches_train_longer() -> None:
    length = RunLength(10_000, EpochCurve(10.0, 1000.0))
    small, large = complete(stepped(), 100.0, length), complete(stepped(), 1000.0, length)
    assert small.epochs == pytest.approx(11.0)
    assert large.epochs == pytest.approx(20.0)
    assert large.steps == 200
    assert small.steps == pytest.approx(1100)


def test_unknown_carbon_stays_unknown() -> None:
    run = complete(stepped(grams=None), 32.0, RunLength(steps=10))
    assert run.epochs is None
    assert run.footprint is not None
    assert run.footprint.carbon_g is None
    assert run.footprint.cost_usd is None
    assert complete(answer(5.0), 32.0, RunLength(steps=10)).footprint is None


def test_the_start_of_least_carbon_covers_the_whole_run() -> None:
    step = stepped()
    steps = round(2 * 3600 / step.iteration_time_s.value)
    run = complete(step, 1.0, RunLength(steps=steps), accounting=HERE, horizon_hours=6)
    assert run.start is not None
    assert run.start.hour == 2
    assert run.start.kind == "average"
    assert run.start.saved_share == pytest.approx(0.75, abs=0.01)
    assert run.start.carbon_g.value < run.start.asked_carbon_g.value


@pytest.mark.parametrize(
    ("length", "fault"),
    [
        (lambda: RunLength(), "samples"),
        (lambda: RunLength(steps=0), "steps"),
        (lambda: RunLength(100, 0.0), "epochs"),
        (lambda: RunLength(steps=5, validation_samples=5), "validation"),
        (lambda: RunLength(100, 1.0, validation_samples=-1), "validation"),
    ],
)
def test_lengths_that_no_run_has(length, fault: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidRequest, match=fault):
        length()


def test_choosing_a_start_needs_a_trace() -> None:
    with pytest.raises(InvalidRequest, match="trace"):
        complete(stepped(), 1.0, RunLength(steps=5), accounting=Accounting(site="de"), horizon_hours=4)
    with pytest.raises(InvalidRequest, match="validation"):
        complete(stepped(), 1.0, RunLength(100, 1.0, validation_samples=10))
