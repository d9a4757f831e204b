"""How far a few measured jobs bring a GPU that no model has seen: the calibration of `perfcast calibrate`.

Cells come from fits without their chip. Per machine a few drawn cells set its factors, under a prior learned
on the machines of other chips, and the cells that were not drawn are scored; several draws are averaged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from predictor.evaluation.rows import EvaluationRow, absolute_errors
from predictor.evaluation.time_held import TextArray
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.catalog import find_device
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.device_calibration import (
    CLASSES,
    Prior,
    Sample,
    fit_calibration,
    kernel_classes,
    learn_prior,
    predicted_s,
)
from predictor.models.steps.boosting import Fitted, timed_total, total_of
from predictor.models.steps.features import FEATURES
from predictor.models.steps.harness import harness_keys
from predictor.models.steps.rows import AggregateTable
from predictor.models.steps.total import REST_FACTOR

KNOWN = 5
DRAWS = 10
SEED = 5
_PRIOR_KERNELS = 40
_PHASE = FEATURES.index("phase")
_REST_CLASS = CLASSES.index("forward elementwise")


@dataclass(frozen=True, slots=True)
class KnownCell:
    """A measured cell, and its job as a fit without its chip sees it."""

    row: WholeModelRow
    sample: Sample


def job_samples(fitted: Fitted, table: AggregateTable, *, harness: bool = False) -> list[Sample]:
    """(r,) each iteration's predicted kernel seconds by class, its host seconds and its measured seconds.

    `harness` adds what each source's way of timing does, copies to the elementwise kernels.
    """
    total = total_of(table, find_device, fitted.prior.harness)
    phase = table.features[:, _PHASE]
    summed = np.bincount(
        table.row * len(CLASSES) + kernel_classes(table.class_code, phase),
        weights=fitted.op_seconds(table, find_device),
        minlength=len(table) * len(CLASSES),
    )
    kernel_s = np.asarray(summed, dtype=np.float64).reshape(len(table), len(CLASSES))
    kernel_s[:, _REST_CLASS] += REST_FACTOR * table.rest_s
    launch_s = total.host_s
    if harness:
        added, keys = fitted.prior.harness, harness_keys(table.rows, table.source)
        kernel_s *= np.exp(added.work_log(keys))[:, None]
        timed = timed_total(table, find_device, added)
        kernel_s[:, _REST_CLASS] += timed.fixed_s
        launch_s = timed.host_s
    measured_s = [row.measured_s for row in table.rows]
    return [
        Sample(kernels, float(host_s), float(seconds))
        for kernels, host_s, seconds in zip(kernel_s, launch_s, measured_s, strict=True)
    ]


def known_rows(
    cells: Sequence[KnownCell],
    id: str,
    suite: str,
    machine_of: Callable[[WholeModelRow], Hashable],
    *,
    known: int = KNOWN,
    least: int = KNOWN + 1,
    goal: float | None = None,
) -> list[EvaluationRow]:
    """The mean over machines of the mean error on cells not drawn; none where other chips lack rows.

    Machines of fewer than `least` cells are not scored.
    """
    machines: dict[Hashable, list[KnownCell]] = defaultdict(list)
    for cell in cells:
        machines[machine_of(cell.row)].append(cell)
    chosen = [part for part in machines.values() if len(part) >= max(least, known + 1)]
    errors = []
    for part in chosen:
        chip = part[0].row.device_group
        others = [[c.sample for c in other] for other in chosen if other[0].row.device_group != chip]
        if len(others) > 1:
            errors.append(_mean_error(part, learn_prior(others), known))
    if not errors:
        return []
    group = f"{id} device, {known} rows of it known: mean of {len(errors)} machines"
    count = sum(map(len, chosen))
    return [EvaluationRow(id, suite, "device", group, "mape", float(np.mean(errors)), goal, count)]


def micro_rows(
    cells: Sequence[KnownCell],
    micro: Sequence[KnownCell],
    id: str,
    suite: str,
    *,
    known: int = KNOWN,
    goal: float | None = None,
) -> list[EvaluationRow]:
    """Errors on all cells of devices of which a few operators (`micro`), of several kinds, are known."""
    jobs, kernels = _by_device(cells), _by_device(micro)
    errors, count = [], 0
    for device in sorted(jobs.keys() & kernels.keys()):
        others = [
            [cell.sample for cell in (*jobs[name], *kernels[name][:_PRIOR_KERNELS])]
            for name in sorted(jobs.keys() & kernels.keys())
            if name != device
        ]
        if len(others) > 1 and len(kernels[device]) >= known:
            count += len(jobs[device])
            errors += _micro_errors(jobs[device], kernels[device], learn_prior(others), known)
    if not errors:
        return []
    group = f"{id} device, {known} operators of it known"
    return [EvaluationRow(id, suite, "device", group, "mape", float(np.mean(errors)), goal, count)]


def calibrated_errors(
    samples: Sequence[Sample], groups: TextArray, device: str, prior: Prior, count: int, draws: int
) -> FloatArray:
    """Errors of one device's jobs after `count` of each group (n,) calibrated it together; none of those."""
    random = np.random.default_rng(SEED)
    measured_s = np.array([sample.measured_s for sample in samples])
    errors = []
    for _ in range(draws):
        order = random.permutation(len(samples))
        drawn = np.concatenate([order[groups[order] == name][:count] for name in np.unique(groups)])
        found = fit_calibration([samples[i] for i in drawn], find_device(device), prior)
        left = np.setdiff1d(order, drawn)
        predicted = [predicted_s(samples[i], found) for i in left]
        errors.append(absolute_errors(predicted, measured_s[left]))
    return np.concatenate([np.zeros(0), *errors])


def _by_device(cells: Sequence[KnownCell]) -> dict[str, list[KnownCell]]:
    found: dict[str, list[KnownCell]] = defaultdict(list)
    for cell in cells:
        found[cell.row.device].append(cell)
    return found


def _micro_errors(
    jobs: Sequence[KnownCell], kernels: Sequence[KnownCell], prior: Prior, known: int
) -> list[float]:
    """Errors of all jobs, averaged over draws of operators."""
    random = np.random.default_rng(SEED)
    device = find_device(jobs[0].row.device)
    draws = []
    for _ in range(DRAWS):
        order = [kernels[i] for i in random.permutation(len(kernels))]
        kinds = list({cell.row.model: cell for cell in order}.values())
        drawn = (kinds + [cell for cell in order if all(cell is not kind for kind in kinds)])[:known]
        found = fit_calibration([cell.sample for cell in drawn], device, prior)
        predicted = [predicted_s(cell.sample, found) for cell in jobs]
        draws.append(absolute_errors(predicted, [cell.sample.measured_s for cell in jobs]))
    return [float(error) for error in np.mean(draws, axis=0)]


def _mean_error(part: Sequence[KnownCell], prior: Prior, known: int) -> float:
    random = np.random.default_rng(SEED)
    device = find_device(part[0].row.device)
    means = []
    for _ in range(DRAWS):
        order = random.permutation(len(part))
        drawn, left = ([part[i].sample for i in places] for places in (order[:known], order[known:]))
        found = fit_calibration(drawn, device, prior)
        errors = absolute_errors([predicted_s(s, found) for s in left], [s.measured_s for s in left])
        means.append(float(errors.mean()))
    return float(np.mean(means))
