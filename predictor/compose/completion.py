"""A whole training run from answers for one step: seconds, joules, kWh, g CO2e and USD to its end.

    total = steps * (answer of a training step) + validation steps * (answer of a forward step)

Under an hourly trace the run's carbon follows its hours: a start within a horizon is chosen for the least
carbon of a run of constant power. Everything unknown for a step is unknown for the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from predictor.errors import InvalidRequest
from predictor.hardware.accounting import Accounting
from predictor.types import Footprint, Interval, Prediction

Epochs = Callable[[float], float]
S_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long a run is: of `epochs` over `samples`, to a target by batch, or of a number of `steps`.

    Attributes:
        samples: of the data set; 0 where `steps` says all.
        epochs: a number, or a function of the global batch (a learning curve).
        steps: instead of both. validation_samples: read forward only after each epoch.
    """

    samples: int = 0
    epochs: float | Epochs = 1.0
    steps: int | None = None
    validation_samples: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a length that no run has."""
        if self.steps is not None and self.steps < 1:
            raise InvalidRequest(f"steps is {self.steps}; expected at least 1", field="steps")
        if self.steps is None and self.samples < 1:
            raise InvalidRequest(
                "give the number of steps, or the samples of the data set with epochs", field="samples"
            )
        if self.steps is not None and self.validation_samples:
            raise InvalidRequest("validation follows epochs; give samples and epochs", field="validation")
        if not callable(self.epochs) and not self.epochs > 0:
            raise InvalidRequest(f"epochs is {self.epochs!r}; expected a number above 0", field="epochs")
        if self.validation_samples < 0:
            raise InvalidRequest("validation samples: expected 0 or more", field="validation")

    def epochs_at(self, batch: float) -> float | None:
        """Epochs at a global batch; None where steps are given."""
        if self.steps is not None:
            return None
        return float(self.epochs(batch)) if callable(self.epochs) else self.epochs

    def steps_at(self, batch: float) -> float:
        """Training steps, the last batch of an epoch counted whole."""
        epochs = self.epochs_at(batch)
        return float(self.steps or 0) if epochs is None else epochs * ceil(self.samples / batch)

    def validation_steps_at(self, batch: float) -> float:
        """Forward-only steps."""
        epochs = self.epochs_at(batch)
        return 0.0 if epochs is None else epochs * ceil(self.validation_samples / batch)


@dataclass(frozen=True, slots=True)
class StartChoice:
    """When to start under an hourly trace: the hour of least carbon, and g CO2e then and as asked."""

    hour: int
    carbon_g: Interval
    asked_hour: float
    asked_carbon_g: Interval
    kind: str
    source: str

    @property
    def saved_share(self) -> float:
        """Carbon saved over the asked start, in [0, 1)."""
        return max(0.0, 1.0 - self.carbon_g.value / self.asked_carbon_g.value)


@dataclass(frozen=True, slots=True)
class Completion:
    """A run to its end. Energy of the boards (scope device); `footprint` is of the run, None if unasked.

    Attributes:
        batch: global. epochs: None where steps were given. steps, validation_steps: numbers of steps.
        validation_share: of the energy.
    """

    batch: float
    epochs: float | None
    steps: float
    validation_steps: float
    time_s: Interval
    energy_j: Interval
    validation_share: float
    fits: bool
    footprint: Footprint | None = None
    start: StartChoice | None = None


def complete(
    step: Prediction,
    batch: float,
    length: RunLength,
    *,
    validation: Prediction | None = None,
    accounting: Accounting | None = None,
    horizon_hours: int | None = None,
) -> Completion:
    """The run of `length` whose training step is `step` and validation step is `validation`.

    Args:
        step, validation: answers; their footprints, where asked for, are of runs as long as this one.
        accounting: what the footprints were asked with; its site's trace chooses the start.
        horizon_hours: starts considered from the asked hour on; None asks for no choice.

    Raises InvalidRequest when the length asks for validation and no answer for it is given, or a start is to
    be chosen without a trace.
    """
    steps, checks = length.steps_at(batch), length.validation_steps_at(batch)
    if checks and validation is None:
        raise InvalidRequest("validation steps without an answer for one", field="validation")
    parts: list[tuple[float, Prediction]] = [(steps, step)]
    if checks and validation is not None:
        parts.append((checks, validation))
    time_s = _sum([answer.iteration_time_s.scaled(count) for count, answer in parts])
    energies = [answer.energy_j.scaled(count) for count, answer in parts]
    energy_j = _sum(energies)
    found = _run_footprint(parts)
    start = None
    if horizon_hours is not None:
        start = _start(found, accounting, time_s.value / S_PER_HOUR, horizon_hours)
    return Completion(
        batch=batch,
        epochs=length.epochs_at(batch),
        steps=steps,
        validation_steps=checks,
        time_s=time_s,
        energy_j=energy_j,
        validation_share=energies[1].value / energy_j.value if len(parts) > 1 else 0.0,
        fits=all(answer.fits for _, answer in parts),
        footprint=found,
        start=start,
    )


def _sum(parts: Sequence[Interval]) -> Interval:
    # Steps of one run err alike, so bounds add up.
    return Interval(sum(p.value for p in parts), sum(p.low for p in parts), sum(p.high for p in parts))


def _run_footprint(parts: Sequence[tuple[float, Prediction]]) -> Footprint | None:
    found = [_scaled(answer.footprint, count) for count, answer in parts if answer.footprint is not None]
    if len(found) < len(parts):
        return None
    first = found[0]
    if len(found) == 1:
        return first
    names = dict.fromkeys(name for one in found for name in one.parts_j)
    return replace(
        first,
        energy_j=_sum([one.energy_j for one in found]),
        parts_j={name: sum(one.parts_j.get(name, 0.0) for one in found) for name in names},
        carbon_g=_known([one.carbon_g for one in found]),
        embodied_g=None if first.embodied_g is None else sum(one.embodied_g or 0.0 for one in found),
        cost_usd=_known([one.cost_usd for one in found]),
    )


def _known(parts: Sequence[Interval | None]) -> Interval | None:
    known = [part for part in parts if part is not None]
    return _sum(known) if len(known) == len(parts) else None


def _scaled(found: Footprint, count: float) -> Footprint:
    def scaled(part: Interval | None) -> Interval | None:
        return None if part is None else part.scaled(count)

    return replace(
        found,
        energy_j=found.energy_j.scaled(count),
        parts_j=_times(found.parts_j, count),
        carbon_g=scaled(found.carbon_g),
        embodied_g=None if found.embodied_g is None else count * found.embodied_g,
        cost_usd=scaled(found.cost_usd),
    )


def _times(parts: Mapping[str, float], count: float) -> dict[str, float]:
    return {name: count * value for name, value in parts.items()}


def _start(
    found: Footprint | None, accounting: Accounting | None, hours: float, horizon_hours: int
) -> StartChoice:
    place = accounting.place if accounting is not None else None
    if accounting is None or place is None or place.trace is None or found is None:
        raise InvalidRequest(
            "choosing a start needs an hourly trace: a site file with `trace`, or --trace",
            field="horizon_hours",
        )
    if horizon_hours < 1:
        raise InvalidRequest("horizon: expected at least one hour", field="horizon_hours")
    trace = place.trace
    asked = trace.mean(accounting.start_hour, hours)
    first = ceil(accounting.start_hour)
    means = {first + hour: trace.mean(first + hour, hours) for hour in range(horizon_hours)}
    best = min(means, key=lambda hour: (means[hour], hour))
    made = found.embodied_g or 0.0

    def at(mean: float) -> Interval:
        grid = found.carbon_g
        assert grid is not None
        ratio = mean / asked
        return Interval(*(made + (bound - made) * ratio for bound in (grid.value, grid.low, grid.high)))

    return StartChoice(best, at(means[best]), accounting.start_hour, at(asked), accounting.kind, trace.source)
