from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import Family, Phase
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceKind
from predictor.hardware.sustained import matrix_peak, sustained_fraction, sustained_matrix_rate
from predictor.models.ops.floor import BOUNDS, KERNEL_START_S, floors
from tests.unit.models.op_cases import DEVICE, device, pointwise, product


def test_a_memory_bound_kernel_takes_its_bytes_over_the_bandwidth() -> None:
    floor = floors([pointwise(10**8)], DEVICE)
    assert floor.total_s[0] == pytest.approx(8e8 / 900e9 + KERNEL_START_S)
    assert BOUNDS[floor.bound[0]] == "memory"


def test_a_full_product_takes_its_flops_over_the_rate() -> None:
    # 80 cores, 128 x 128 tiles: 80 x 128 rows by 128 x 4 columns are four full waves.
    floor = floors([product(80 * 128, 4 * 128, 8192)], DEVICE)
    assert floor.total_s[0] == pytest.approx(2 * 80 * 128 * 512 * 8192 / 14e12 + KERNEL_START_S)
    assert BOUNDS[floor.bound[0]] == "compute"


def test_one_tile_more_than_a_wave_costs_a_second_wave() -> None:
    full = floors([product(80 * 128, 128, 8192)], DEVICE).work_s[0]
    more = floors([product(81 * 128, 128, 8192)], DEVICE).work_s[0]
    # Smaller tiles soften the step: 81 tiles of 128 x 128 are 162 of 64 x 128, three waves of half the size.
    assert 1.3 * full < more <= 2.0 * full


def test_a_dropout_draws_its_numbers_on_the_integer_lanes() -> None:
    drawn = pointwise(10**8, kind="dropout")
    floor = floors([drawn, replace(drawn, phase=Phase.BACKWARD)], DEVICE)
    # 36 slots a number on 64 lanes of 80 cores.
    assert floor.compute_s[0] == pytest.approx(36 * 1e8 / (64 * 80 * DEVICE.clock_hz))
    assert floor.compute_s[1] < floor.compute_s[0] / 10


def test_tiny_kernels_are_launch_bound_and_views_are_free() -> None:
    floor = floors([pointwise(10), pointwise(10**8, launches=0)], DEVICE)
    assert BOUNDS[floor.bound[0]] == "launch"
    assert floor.total_s[0] == pytest.approx(KERNEL_START_S, rel=0.01)
    assert floor.launch_s[1] == floor.memory_s[1] == 0.0


@pytest.mark.parametrize("compute", [Compute.FP32, Compute.FP16])
def test_one_row_wastes_no_tile(compute: Compute) -> None:
    floor = floors(
        [product(1, 4096, 4096, compute=compute), product(16, 4096, 4096, compute=compute)], DEVICE
    )
    assert floor.compute_s[0] == pytest.approx(2 * 4096**2 / 14e12)
    assert BOUNDS[floor.bound[0]] == "memory"
    assert floor.compute_s[1] > 4 * floor.compute_s[0]


@pytest.mark.parametrize("compute", [Compute.FP32, Compute.FP16])
@pytest.mark.parametrize("batch", [1, 64])
def test_products_of_2_to_32_rows_or_columns_take_one_tile(compute: Compute, batch: int) -> None:
    """Measured: 2 to 4 rows take what 5 to 16 do. From 4 rows to 5 a T4's answer once rose 3.7 times."""
    rows = floors([product(m, 4096, 4096, batch=batch, compute=compute) for m in range(2, 33)], DEVICE)
    columns = floors([product(4096, n, 4096, batch=batch, compute=compute) for n in range(2, 33)], DEVICE)
    for found in (rows, columns):
        assert found.work_s.max() <= 1.05 * found.work_s.min()
        assert (np.diff(found.work_s) > -1e-12).all()


def test_a_cpu_has_no_tiles() -> None:
    cpu = device(kind=DeviceKind.CPU, core_count=16)
    assert floors([product(1, 1, 10**6)], cpu).compute_s[0] == pytest.approx(2e6 / 14e12)


def test_half_precision_uses_the_tensor_rate() -> None:
    single = floors([product(8192, 8192, 8192)], DEVICE).work_s[0]
    half = floors([product(8192, 8192, 8192, compute=Compute.FP16)], DEVICE).work_s[0]
    assert single / half == pytest.approx(112 / 14, rel=0.2)


def test_a_type_the_device_lacks_runs_on_its_fp32_pipelines() -> None:
    assert sustained_matrix_rate(DEVICE, "bf16") == sustained_matrix_rate(DEVICE, "fp32")


def test_the_power_limit_lowers_the_rate_only_where_it_binds() -> None:
    assert sustained_fraction(DEVICE, "fp32") == 1.0
    assert sustained_fraction(device(tdp_w=70.0), "fp32") == pytest.approx(70 * 54.3e9 / 14e12)
    assert sustained_fraction(device(tdp_w=70.0, architecture="unheard of"), "fp32") == 1.0


def test_few_units_of_64_bits_never_reach_the_power_limit() -> None:
    """A T4 has one for each 32 FP32 lanes; it was held to FP32's .47 of its clock."""
    t4 = find_device("t4-pcie-16gb")
    assert sustained_fraction(t4, "fp32") < 0.5
    assert sustained_fraction(t4, "fp64") == 1.0


def test_no_works_no_floors() -> None:
    assert floors([], DEVICE).total_s.shape == (0,)


@pytest.mark.parametrize("factor", [2, 10])
def test_more_work_never_costs_less(factor: int) -> None:
    small = [product(512, 512, 512), product(512, 512, 512, batch=8), pointwise(10**6)]
    large = [
        product(512 * factor, 512, 512),
        product(512, 512, 512, batch=8 * factor),
        pointwise(factor * 10**6, Family.COPY),
    ]
    assert np.all(floors(large, DEVICE).total_s >= floors(small, DEVICE).total_s)
    assert math.isfinite(floors(large, DEVICE).total_s.sum())


@pytest.mark.parametrize(
    ("name", "compute", "runs_as"),
    [
        ("a100-sxm-80gb", Compute.FP8, "fp16"),
        ("h100-sxm-80gb", Compute.FP4, "fp8"),
        ("h100-sxm-80gb", Compute.FP8, "fp8"),
        # No tensor core of a V100 takes BF16, and it is no narrower than what the FP32 pipelines read.
        ("v100-sxm-16gb", Compute.BF16, "fp32"),
    ],
)
def test_narrow_operands_are_widened_where_no_unit_multiplies_them(
    name: str, compute: Compute, runs_as: str
) -> None:
    found = find_device(name)
    assert matrix_peak(found, compute) == found.matrix_flops_per_s[runs_as]


@pytest.mark.parametrize(
    ("name", "runs"), [("rtx-3090-24gb", True), ("p100-pcie-16gb", False), ("mi210-pcie-64gb", False)]
)
def test_only_tensor_cores_have_their_images_converted(name: str, runs: bool) -> None:
    conversion = replace(pointwise(10**6, launches=3), family=Family.COPY, kind="image_conversion")
    assert bool(floors([conversion], find_device(name)).total_s[0] > 0) is runs


def test_a_core_turns_no_more_than_its_share_of_images() -> None:
    conversion = replace(pointwise(10**8, launches=3), family=Family.COPY, kind="image_conversion")
    a100, ada = find_device("a100-pcie-40gb"), find_device("rtx-4090-24gb")
    wide, narrow = floors([conversion], a100), floors([conversion], ada)
    assert wide.compute_s[0] == pytest.approx(1e8 / (1.4 * a100.core_count * a100.clock_hz))
    assert BOUNDS[narrow.bound[0]] == "memory"
