"""Energy under a cap (E5): each cap of Zeus left out in turn, everywhere, and told from the others.

A held-out reading is predicted from the same job's readings at its other caps (`PowerModel.anchored`) by a
model that never saw the cap on any card. Rows of hold `workload` know nothing of the job at all: time and
energy relative to the default limit, from the graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.evaluation.energy_jobs import SUITE, is_zeus, workload
from predictor.evaluation.rows import EvaluationRow, absolute_errors, coverage_row, error_rows
from predictor.models.calibration import conformal_quantile
from predictor.models.power.board_power import PowerModel, Reading, headroom
from predictor.models.power.cap import is_between
from predictor.models.power.rows import PowerSample
from predictor.models.power.training import train_power

TIME_GOAL, ENERGY_GOAL, OPTIMUM_GOAL = 0.04, 0.06, 0.8


@dataclass(frozen=True, slots=True)
class CapCell:
    """A reading under a cap and our answer; seconds of an epoch, or relative to the default limit.

    `between`: the job was read at a lower and at a higher cap as well.
    """

    hold: str
    job: str
    limit_w: float
    measured_s: float
    measured_w: float
    time_s: float
    power_w: float
    between: bool = False


def cap_cells(samples: Sequence[PowerSample]) -> Iterator[CapCell]:
    """All readings of Zeus with their cap left out, then with their workload left out."""
    sweeps: dict[str, list[PowerSample]] = {}
    for sample in samples:
        if is_zeus(sample):
            sweeps.setdefault(sample.job, []).append(sample)
    for limit_w in sorted({sample.limit_w for sample in samples if is_zeus(sample)}):
        model = _model([s for s in samples if not (is_zeus(s) and s.limit_w == limit_w)])
        for sweep in sweeps.values():
            yield from _anchored(model, sweep, limit_w)
    for group in sorted({workload(sample) for sample in samples if is_zeus(sample)}):
        model = _model([sample for sample in samples if workload(sample) != group])
        for sweep in sweeps.values():
            if workload(sweep[0]) == group:
                yield from _relative(model, sweep)


def _model(samples: Sequence[PowerSample]) -> PowerModel:
    return PowerModel.from_trained(train_power(samples, calibrate=False))


def _anchored(model: PowerModel, sweep: Sequence[PowerSample], limit_w: float) -> Iterator[CapCell]:
    others = [s for s in sweep if s.limit_w != limit_w]
    readings = [Reading(s.limit_w, s.time_s, s.power_w) for s in others]
    for sample in sweep:
        if sample.limit_w == limit_w and readings:
            time_s, power_w = model.anchored(sample.profile, sample.device, readings, limit_w)
            between = is_between(limit_w, [other.limit_w for other in others])
            yield CapCell("cap", sample.job, limit_w, sample.time_s, sample.power_w, time_s, power_w, between)


def _relative(model: PowerModel, sweep: Sequence[PowerSample]) -> Iterator[CapCell]:
    free = max(sweep, key=lambda sample: sample.limit_w)
    curve = model.curve(free.profile, free.device)
    base_w = model.predict(free.profile, free.device, free.limit_w).value
    base = float(curve.stretch(headroom(free.device, free.limit_w)))
    for sample in sweep:
        power_w = model.predict(sample.profile, sample.device, sample.limit_w).value
        stretch = float(curve.stretch(headroom(sample.device, sample.limit_w))) / base
        yield CapCell(
            "workload",
            sample.job,
            sample.limit_w,
            sample.time_s / free.time_s,
            sample.power_w / free.power_w,
            stretch,
            power_w / base_w,
        )


def cap_rows(cells: Sequence[CapCell]) -> list[EvaluationRow]:
    """Errors of time and energy, and how often the best cap is within one step of the measured one."""
    rows: list[EvaluationRow] = []
    for hold in dict.fromkeys(cell.hold for cell in cells):
        own = [cell for cell in cells if cell.hold == hold]
        scored = hold == "cap"
        name = "cap held out" if scored else "workload held out, over the default limit"
        # The default limit itself is the reference of relative rows.
        judged = own if scored else [cell for cell in own if cell.measured_s != 1.0]
        quantities: Mapping[str, tuple[list[float], list[float], float | None]] = {
            "time": ([c.time_s for c in judged], [c.measured_s for c in judged], TIME_GOAL),
            "power": ([c.power_w for c in judged], [c.measured_w for c in judged], None),
            "energy": (
                [c.time_s * c.power_w for c in judged],
                [c.measured_s * c.measured_w for c in judged],
                ENERGY_GOAL,
            ),
        }
        for quantity, (ours, measured, goal) in quantities.items():
            rows += error_rows(
                absolute_errors(ours, measured),
                id="E5",
                suite=SUITE,
                hold=hold,
                group=f"{name}: {quantity}",
                goal_mean=goal if scored else None,
            )
            if scored:
                inside = _inside(own, np.abs(np.log(np.array(measured) / np.array(ours))))
                rows += coverage_row(inside, id="E5", suite=SUITE, hold=hold, group=f"{name}: {quantity}")
        hits = optimum_hits(own)
        rows.append(
            EvaluationRow(
                "E5",
                SUITE,
                hold,
                f"{name}: best cap within one step",
                "hit_rate",
                float(np.mean(hits)),
                OPTIMUM_GOAL if scored else None,
                len(hits),
            )
        )
    return rows


def _inside(cells: Sequence[CapCell], left: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether log errors lie in intervals calibrated on the other networks, by what the readings enclose."""
    networks = np.array([cell.job.split(" ", 2)[:2][-1] for cell in cells])
    between = np.array([cell.between for cell in cells])
    inside = np.zeros(len(cells), dtype=np.bool_)
    for network in np.unique(networks):
        for kind in (False, True):
            own = (networks == network) & (between == kind)
            others = left[(networks != network) & (between == kind)]
            inside[own] = left[own] <= (conformal_quantile(others) if others.size else np.inf)
    return inside


def optimum_hits(cells: Sequence[CapCell]) -> list[bool]:
    """Per job: whether the cap of least predicted energy is at most one step from that of least measured."""
    sweeps: dict[str, list[CapCell]] = {}
    for cell in cells:
        sweeps.setdefault(cell.job, []).append(cell)
    hits = []
    for sweep in sweeps.values():
        ordered = sorted(sweep, key=lambda cell: cell.limit_w)
        ours = np.argmin([cell.time_s * cell.power_w for cell in ordered])
        best = np.argmin([cell.measured_s * cell.measured_w for cell in ordered])
        hits.append(bool(abs(int(ours) - int(best)) <= 1))
    return hits
