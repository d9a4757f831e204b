"""Carbon intensity hour by hour: traces from files, and seeded ones for studies where no file is at hand."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, exp, floor, pi
from pathlib import Path
from random import Random

from predictor.errors import InvalidInput, InvalidRequest

HOURS_PER_WEEK = 168


@dataclass(frozen=True, slots=True)
class HourlyTrace:
    """g CO2e per kWh of consecutive hours; after the last hour the trace begins again."""

    g_per_kwh: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        """Raises InvalidRequest for an empty trace, or values that are not above 0."""
        if not self.g_per_kwh:
            raise InvalidRequest("carbon trace: no hours; expected at least one", field="site.trace")
        wrong = next((value for value in self.g_per_kwh if not 0 < value < 5000), None)
        if wrong is not None:
            raise InvalidRequest(
                f"carbon trace: {wrong!r} g per kWh; expected numbers above 0 and below 5000",
                field="site.trace",
            )

    def mean(self, start_hour: float = 0.0, hours: float | None = None) -> float:
        """Mean over a run of constant power that starts at `start_hour`; None: over the whole trace."""
        if hours is None or hours >= 1000 * len(self.g_per_kwh):
            return sum(self.g_per_kwh) / len(self.g_per_kwh)
        if hours <= 0:
            return self.g_per_kwh[floor(start_hour) % len(self.g_per_kwh)]
        total, at, end = 0.0, start_hour, start_hour + hours
        while at < end - 1e-12:
            step = min(floor(at) + 1.0, end) - at
            total += step * self.g_per_kwh[floor(at) % len(self.g_per_kwh)]
            at += step
        return total / hours

    def best_start(self, hours: float, horizon_hours: int | None = None) -> tuple[int, float]:
        """(hour, mean) of the start within the horizon that emits least over a run of `hours`."""
        horizon = len(self.g_per_kwh) if horizon_hours is None else horizon_hours
        means = [self.mean(start, hours) for start in range(max(1, horizon))]
        best = min(range(len(means)), key=means.__getitem__)
        return best, means[best]


def load_trace(path: str | Path) -> HourlyTrace:
    """A CSV file whose last column is g CO2e per kWh, one line an hour; a header is skipped.

    Raises InvalidInput naming the line that is no number.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            lines = [line for line in csv.reader(stream) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{file}: cannot be read ({error}); expected a CSV file", file=file) from None
    values: list[float] = []
    for number, line in enumerate(lines, start=1):
        try:
            values.append(float(line[-1]))
        except ValueError:
            if number == 1:
                continue
            raise InvalidInput(
                f"{file}: line {number}: {line[-1]!r} is no number; expected g CO2e per kWh", file=file
            ) from None
    try:
        return HourlyTrace(tuple(values), str(file))
    except InvalidRequest as error:
        raise InvalidInput(f"{file}: {error.message}", file=file) from None


def seeded_trace(
    mean_g_per_kwh: float, seed: int, *, hours: int = 52 * HOURS_PER_WEEK, swing: float = 0.2
) -> HourlyTrace:
    """A made-up trace around a mean: a daily valley at noon (sun), quiet weekends, weather that lingers.

    For studies of shifting in time where no measured trace is at hand; its source says so. Deterministic.

    Args:
        mean_g_per_kwh: mean of the whole trace, exactly.
        seed: of the weather.
        hours: length.
        swing: daily amplitude over the mean, in [0, 0.5].
    """
    if not 0 <= swing <= 0.5:
        raise InvalidRequest(f"carbon trace: swing is {swing!r}; expected 0 to 0.5", field="swing")
    random = Random(seed)
    weather, raw = 0.0, []
    for hour in range(hours):
        weather = 0.97 * weather + random.gauss(0.0, 0.25 * swing)
        day = swing * cos(2 * pi * (hour % 24 - 1) / 24)
        week = -0.25 * swing if hour // 24 % 7 >= 5 else 0.1 * swing
        raw.append(exp(day + week + weather))
    return _scaled(raw, mean_g_per_kwh, f"made up: seed {seed}, swing {swing:g}")


def _scaled(raw: Sequence[float], mean: float, source: str) -> HourlyTrace:
    factor = mean * len(raw) / sum(raw)
    return HourlyTrace(tuple(factor * value for value in raw), source)
