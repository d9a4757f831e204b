"""Rates that a device sustains: what the data sheet says, held against the power limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.hardware.catalog import find_device, list_devices
from predictor.hardware.sustained import matrix_peak, sustained_matrix_rate


@pytest.mark.parametrize("name", ["t4", "a100", "h100", "rtx-4090-24gb", "mi210-pcie-64gb", "epyc-7763"])
@pytest.mark.parametrize("compute", ["fp32", "tf32", "fp16"])
def test_faster_plain_pipelines_never_slow_products_down(name: str, compute: str) -> None:
    device = find_device(name)
    faster = replace(device, vector_flops_per_s=2 * device.vector_flops_per_s)
    before, after = sustained_matrix_rate(device, compute), sustained_matrix_rate(faster, compute)
    assert after >= before * (1 - 1e-12)


def test_products_in_single_precision_run_on_the_faster_of_two_units() -> None:
    device = find_device("a100")
    faster = replace(device, vector_flops_per_s=4 * device.vector_flops_per_s)
    assert matrix_peak(faster, "fp32") == faster.vector_flops_per_s
    for shipped in list_devices():
        assert matrix_peak(shipped, "fp32") >= shipped.vector_flops_per_s
