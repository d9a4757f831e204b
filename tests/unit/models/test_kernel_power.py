from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from predictor.hardware.catalog import find_device
from predictor.models.bundle import TrainedModel
from predictor.models.power.board_power import idle_power_w
from predictor.models.power.kernel_power import KernelPowerModel, kernel_rows, stored_bits, tiles_of
from predictor.models.power.kernel_power_training import (
    KernelTable,
    kernel_table,
    log_errors,
    shape_folds,
    train_kernel_power,
)
from tests.unit.models.op_cases import pointwise, product

CHIPS = {"h200-sxm-141gb": "h200", "b200-sxm-180gb": "b200"}


def rows() -> Any:
    """Products on two chips whose power follows one law of utilisation."""
    import polars as pl

    generator = np.random.default_rng(5)
    found = []
    for name, chip in CHIPS.items():
        device = find_device(name)
        for shape in range(40):
            for exponent in range(8):
                time_s = 1e-6 * 3.0**exponent
                use, traffic = generator.uniform(0.01, 0.9, 2)
                watts = device.tdp_w * min(0.98, 0.2 + 0.6 * use**0.6 + 0.2 * traffic)
                facts = {
                    "bits": 16.0,
                    "compute": "bf16",
                    "envelope_w": watts,
                    "family": "matmul",
                    "flops": use * device.matrix_flops_per_s["bf16"] * time_s,
                    "latency_s": time_s,
                    "moved_bytes": traffic * device.memory_bytes_per_s * time_s,
                    "precision": "bfloat16",
                    "stack": "vllm",
                    "table_roughness": 0.02,
                    "sizes": [512.0, 512.0, 512.0],
                    "tiles": 64.0,
                }
                found.append(("gemm", name, json.dumps(facts), chip, f"gemm {shape}"))
    columns = ("subject", "device", "configuration", "device_group", "model_group")
    return pl.DataFrame(found, schema=columns, orient="row")


@pytest.fixture(scope="module")
def table() -> KernelTable:
    return kernel_table(rows())


@pytest.fixture(scope="module")
def trained(table: KernelTable) -> TrainedModel:
    return train_kernel_power(table)


def test_one_law_serves_a_chip_that_was_not_measured(table: KernelTable) -> None:
    from predictor.models.power.kernel_power_training import fit_kernel_power

    held = table.take(table.chip == "h200")
    errors = log_errors(fit_kernel_power(table.take(table.chip == "b200")), held)
    assert np.median(np.abs(errors)) < 0.1


def test_known_chips_are_told_better(table: KernelTable, trained: TrainedModel) -> None:
    assert np.median(np.abs(log_errors(trained, table))) < 0.03
    spread = trained.params["log_spread"]
    assert spread["new_device"] > spread["known_device"] > 0  # type: ignore[index, call-overload, operator]


def test_shapes_leave_together(table: KernelTable) -> None:
    fold = shape_folds(table, 5)
    for shape in np.unique(table.shape):
        assert len(set(fold[table.shape == shape])) == 1


def test_watts_stay_between_idle_and_limit(trained: TrainedModel) -> None:
    model, works = KernelPowerModel.from_trained(trained), [product(4096, 4096, 4096), pointwise(10**6)]
    for name in (*CHIPS, "a100-sxm-80gb"):
        device = find_device(name)
        for scale in (1e-7, 1e-5, 1e-2):
            watts = model.watts(works, np.array([scale, scale]), device)
            assert (idle_power_w(device) <= watts).all()
            assert (watts <= device.tdp_w).all()


def test_a_busier_kernel_draws_no_less(trained: TrainedModel) -> None:
    model, device = KernelPowerModel.from_trained(trained), find_device("a100-sxm-80gb")
    work = product(4096, 4096, 4096)
    slow, fast = (model.watts([work], np.array([t]), device)[0] for t in (1e-1, 1e-2))
    assert slow < fast


def test_facts_of_a_product() -> None:
    device = find_device("v100-pcie-32gb")
    facts = kernel_rows([product(256, 512, 1024)], np.array([1e-3]), device)
    assert facts.compute_utilisation[0] == pytest.approx(
        2 * 256 * 512 * 1024 / device.matrix_flops_per_s["fp32"] / 1e-3
    )
    assert tiles_of(product(256, 512, 1024)) == 2 * 4
    assert stored_bits(product(256, 512, 1024)) == 32.0
