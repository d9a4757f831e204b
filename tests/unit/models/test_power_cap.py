from __future__ import annotations

import numpy as np
import pytest

from predictor.models.power.cap import (
    KNEE,
    CapCurve,
    CapReading,
    clock_at,
    dynamic_power,
    fit_curve,
    is_between,
)


def test_power_and_clock_invert_each_other() -> None:
    clocks = np.linspace(0.15, 1.0, 30)
    assert clock_at(dynamic_power(clocks)) == pytest.approx(clocks, abs=2e-3)
    assert dynamic_power(1.0) == 1.0


def test_below_the_knee_power_follows_the_clock_alone() -> None:
    assert dynamic_power(KNEE / 2) == pytest.approx(dynamic_power(KNEE) / 2)
    # Above it the voltage rises as well: the last per cents of clock are the dearest.
    assert dynamic_power(1.0) - dynamic_power(0.9) > 1.7 * (dynamic_power(0.7) - dynamic_power(0.6))


def test_a_cap_stretches_what_follows_the_clock() -> None:
    curve = CapCurve(demand=1.0, share=0.5, duty=1.0, sharpness=50.0)
    room = float(dynamic_power(0.5))
    assert curve.stretch(room) == pytest.approx(0.5 / 0.5 + 0.5, rel=0.02)
    waiting = CapCurve(demand=1.0, share=0.5, duty=0.2, sharpness=50.0)
    assert waiting.stretch(room) == pytest.approx(1.1, rel=0.02)
    assert curve.kernel_slowdown(1.0) == 1.0


def test_a_light_job_feels_no_cap() -> None:
    assert CapCurve(demand=0.3, share=1.0, duty=1.0, sharpness=6.0).kernel_slowdown(0.7) < 1.01


def test_readings_move_the_curve() -> None:
    truth = CapCurve(demand=1.3, share=0.7, duty=1.0, sharpness=6.0)
    guess = CapCurve(demand=0.9, share=0.5, duty=1.0, sharpness=6.0)
    rooms = (0.4, 0.6, 0.8, 1.0)
    readings = [CapReading(room, 50.0 * float(truth.stretch(room)), 100.0) for room in rooms]
    found, base = fit_curve(guess, readings)
    assert np.exp(base) * found.stretch(0.3) == pytest.approx(50.0 * truth.stretch(0.3), rel=0.04)
    assert found.demand == pytest.approx(1.3, rel=0.25)


def test_a_limit_lies_between_readings_or_beyond_them() -> None:
    assert is_between(150.0, [100.0, 200.0])
    assert is_between(200.0, [200.0])
    assert not is_between(150.0, [200.0, 250.0])
    assert not is_between(150.0, [])
