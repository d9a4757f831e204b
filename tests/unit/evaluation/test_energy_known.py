"""Rows of what is known of measured training energy, and coverage gathered by kind of hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.evaluation.energy_images import ImageRun
from predictor.evaluation.energy_jobs import JobCell
from predictor.evaluation.energy_known import KINDS, card_ratios, interval_rows, known_rows
from predictor.evaluation.rows import EvaluationRow
from tests.unit.models.memory_power_cases import power_samples


def cell(hold: str, card: str, network: str, measured: float, ours: float) -> JobCell:
    return JobCell(hold, network, card, network, measured, (ours, 0.9 * ours, 1.1 * ours))


def test_ratios_between_cards_are_means_of_runs() -> None:
    cells = [
        cell("run:energy", "rtx3090", "nasnet_mobile", 0.2, 0.3),
        cell("run:energy", "rtx3090", "nasnet_mobile", 0.4, 0.3),
        cell("run:energy", "gtx750ti", "nasnet_mobile", 0.3, 0.2),
        cell("run:energy", "rtx3090", "vgg16", 0.3, 0.2),
    ]
    assert card_ratios(cells) == {"nasnet_mobile": (pytest.approx(1.5), pytest.approx(1.0))}


def test_limit_times_time_must_err_twice_as_much() -> None:
    sample = replace(power_samples()[0], device_group="rtx3090", model_group="vgg16", limit_w=300.0)
    runs = [ImageRun(sample, "0", 100.0, 0.3), ImageRun(sample, "1", 200.0, 0.3)]
    cells = [cell("model:energy", "rtx3090", "vgg16", 0.3, 0.33)]
    rows = {(row.group, row.metric): row for row in known_rows(cells, runs)}
    guess = rows["baseline: limit x measured time", "mape"]
    ours = rows["model:energy against half the error of limit x time", "mape"]
    # 300 / 100 - 1 and 300 / 200 - 1.
    assert guess.value == pytest.approx((2.0 + 0.5) / 2)
    assert ours.value == pytest.approx(0.1)
    assert ours.goal == pytest.approx(guess.value / 2)


def test_the_order_of_equal_cards_is_not_asked() -> None:
    cells = [
        cell("model:energy", "rtx3090", "nasnet_mobile", 0.99, 1.5),
        cell("model:energy", "gtx750ti", "nasnet_mobile", 1.0, 1.0),
        cell("model:energy", "rtx3090", "mobilenet_v2", 1.68, 1.2),
        cell("model:energy", "gtx750ti", "mobilenet_v2", 1.0, 1.0),
    ]
    sample = replace(power_samples()[0], device_group="rtx3090", model_group="nasnet_mobile")
    runs = [
        ImageRun(replace(sample, device_group=card, model_group=network), "0", 100.0, 0.3)
        for card in ("rtx3090", "gtx750ti")
        for network in ("nasnet_mobile", "mobilenet_v2")
    ]
    (order,) = [row for row in known_rows(cells, runs) if row.metric == "hit_rate"]
    assert (order.value, order.n) == (1.0, 1)


def test_every_kind_has_one_coverage_row() -> None:
    rows = [
        EvaluationRow("E2", "energy", "device", "device:all", "coverage", 0.91, 0.9, 889),
        EvaluationRow("E2", "energy", "device", "device:p100", "coverage", 0.5, 0.9, 192),
        EvaluationRow("E2", "energy", "device", "device:all", "mape", 0.1, 0.1, 889),
    ]
    assert [(row.id, row.group, row.value) for row in interval_rows(rows)] == [
        ("E6", KINDS["device:all"], 0.91)
    ]
