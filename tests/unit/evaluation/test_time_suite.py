"""Parts of suite time: thinning, groups, and calibration by single operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.evaluation.few_rows import KnownCell, calibrated_errors, micro_rows
from predictor.evaluation.time_held import Held, held_rows, joined_held, parts_of
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.device_calibration import CLASSES, FACTORS, Prior, Sample
from predictor.models.steps.rows import AggregateTable
from predictor.models.steps.training import thinned
from predictor.types import Mode, Precision

ROW = WholeModelRow("g", "m", "f", "v100-pcie-32gb", "v100", 8, 1.0, Mode.INFER, Precision.FP32)


def _table(count: int, source: str) -> AggregateTable:
    """Iterations of one op, all of another size."""
    rows = tuple(replace(ROW, measured_s=1.0 + i) for i in range(count))
    ones = np.ones(count)
    return AggregateTable(
        rows=rows,
        source=np.full(count, source),
        log_time=np.log([row.measured_s for row in rows]),
        launches=ones,
        rest_s=ones,
        row=np.arange(count),
        floor_s=ones,
        parts=np.ones((count, 4)),
        log_learned=ones,
        timed=np.zeros(count, dtype=np.bool_),
        class_code=np.zeros(count, dtype=np.intp),
        features=np.ones((count, 2), dtype=np.float32),
    )


def test_only_crowded_sources_are_thinned_and_always_alike() -> None:
    held = joined_held([Held(_table(n, name), np.zeros(n)) for n, name in ((200, "big"), (20, "small"))])
    chosen = thinned(held.table, 4, crowded=100)
    assert chosen[200:].all()
    assert 25 < chosen[:200].sum() < 80
    assert np.array_equal(chosen, thinned(held.table, 4, crowded=100))


def test_errors_and_bias_of_what_was_held_out() -> None:
    held = Held(_table(4, "made"), np.log([1.1, 2.2, 3.3, 4.4]))
    rows = {row.metric: row for row in held_rows("T6", "device", "all", held, goals=(0.12, None))}
    assert rows["mape"].value == pytest.approx(0.1)
    assert rows["mape"].goal == 0.12
    assert rows["log_bias"].value == pytest.approx(np.log(1.1))
    assert [mask.sum() for mask in parts_of(np.array(list("aab")))] == [2]


def _cells(device: str, slow: float, model: str, count: int) -> list[KnownCell]:
    random = np.random.default_rng(len(device))
    found = []
    for _ in range(count):
        kernel_s = random.uniform(0.5, 2.0, len(CLASSES))
        measured_s = slow * float(kernel_s.sum()) * float(np.exp(random.normal(0.0, 0.02)))
        found.append(KnownCell(replace(ROW, device=device, model=model), Sample(kernel_s, 0.0, measured_s)))
    return found


def test_a_few_operators_tell_how_slow_a_device_is() -> None:
    slow = {"v100-pcie-32gb": 1.6, "t4-pcie-16gb": 0.7, "p4-pcie-8gb": 1.3, "l4-pcie-24gb": 0.8}
    jobs = [cell for name, factor in slow.items() for cell in _cells(name, factor, "bert", 12)]
    kernels = [
        cell for name, factor in slow.items() for kind in "abc" for cell in _cells(name, factor, kind, 4)
    ]
    (row,) = micro_rows(jobs, kernels, "T2", "time", goal=0.09)
    uncalibrated = np.mean([abs(1 / factor - 1) for factor in slow.values()])
    assert row.value < 0.3 * uncalibrated
    assert row.n == len(jobs)
    assert not micro_rows(jobs, [], "T2", "time")


def test_runs_of_one_configuration_tell_about_another() -> None:
    """Half of the jobs are compiled; products are slow in all of them, fused kernels in those alone."""
    random = np.random.default_rng(2)
    product, fused = (CLASSES.index(f"forward {kind}") for kind in ("product", "fused"))
    samples, groups = [], []
    for compiled in (False, True) * 40:
        kernel_s = np.zeros(len(CLASSES))
        kernel_s[[product, fused]] = random.uniform(0.1, 1.0), compiled * random.uniform(0.1, 1.0)
        measured_s = float(1.5 * kernel_s[product] + 2.0 * kernel_s[fused])
        samples.append(Sample(kernel_s, 0.0, measured_s))
        groups.append(str(compiled))
    prior = Prior((0.3,) * len(FACTORS), 0.05)
    errors = calibrated_errors(samples, np.array(groups), "v100-pcie-32gb", prior, 5, draws=2)
    assert len(errors) == 2 * (80 - 10)
    assert errors.mean() < 0.05
    unknown = calibrated_errors(samples, np.array(groups), "v100-pcie-32gb", prior, 1, draws=2)
    assert errors.mean() < unknown.mean()
