"""Where the step model starts an op: what a cache holds, and of what the op level knows nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import Convolution, Elements, Family, OpWork, Phase
from predictor.features.programs.work_table import work_table
from predictor.hardware.catalog import find_device
from predictor.models.ops.floor import floors
from predictor.models.steps.features import CLASSES, classes, device_facts
from predictor.models.steps.op_base import OpBase, op_base

LARGE_CACHE, SMALL_CACHE, PROCESSOR = "rtx-4090-24gb", "rtx-3090-24gb", "core-i9-10940x"


def addition(elements: int, parameter_bytes: int = 0) -> OpWork:
    return OpWork(
        family=Family.ELEMENTWISE,
        kind="add",
        phase=Phase.FORWARD,
        compute=Compute.FP16,
        shape=Elements(elements),
        element_bits=16,
        matrix_flops=0,
        vector_flops=elements,
        read_bytes=4 * elements,
        write_bytes=2 * elements,
        parameter_bytes=parameter_bytes,
        launch_count=1,
    )


def base_of(work: OpWork, device: str, *, unmeasured: bool = True) -> tuple[OpBase, float]:
    """Its start, and its floor alone."""
    spec = find_device(device)
    floor_s = floors([work], spec).total_s
    table = work_table([work])
    found = op_base(table, floor_s, 1.5 * floor_s, np.array([unmeasured]), device_facts(spec))
    return found, float(floor_s[0])


def test_operands_far_below_the_cache_cost_no_memory_traffic() -> None:
    elements = 1_000_000
    found, alone = base_of(addition(elements), LARGE_CACHE)
    written_s = 2 * elements / find_device(LARGE_CACHE).memory_bytes_per_s
    assert written_s < found.floor_s[0] - 2e-6 < 0.6 * (alone - 2e-6)


def test_operands_far_beyond_the_cache_come_from_memory() -> None:
    found, alone = base_of(addition(2_000_000_000), SMALL_CACHE)
    assert found.floor_s[0] == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(("device", "unmeasured"), [(PROCESSOR, True), (LARGE_CACHE, False)])
def test_processors_and_measured_kernels_keep_their_floors(device: str, unmeasured: bool) -> None:
    found, alone = base_of(addition(1_000_000), device, unmeasured=unmeasured)
    assert found.floor_s[0] == pytest.approx(alone)


def test_weights_come_from_memory() -> None:
    work = addition(1_000_000, parameter_bytes=4_000_000)
    found, alone = base_of(work, LARGE_CACHE)
    assert found.floor_s[0] == pytest.approx(alone)


@pytest.mark.parametrize(("compute", "said"), [(Compute.FP32, np.log(1.5)), (Compute.FP16, 0.0)])
def test_the_op_level_speaks_of_convolutions_in_fp32_alone(compute: Compute, said: float) -> None:
    work = OpWork(
        family=Family.CONVOLUTION,
        kind="conv",
        phase=Phase.FORWARD,
        compute=compute,
        shape=Convolution(8, 64, 64, 1, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1)),
        element_bits=16,
        matrix_flops=2 * 8 * 64 * 64 * 9 * 56 * 56,
        vector_flops=0,
        read_bytes=8 * 64 * 56 * 56 * 2 + 64 * 64 * 9 * 2,
        write_bytes=8 * 64 * 56 * 56 * 2,
        parameter_bytes=64 * 64 * 9 * 2,
        launch_count=1,
    )
    found, _ = base_of(work, SMALL_CACHE)
    assert found.log_learned[0] == pytest.approx(said)
    other, _ = base_of(replace(addition(1000), compute=compute), SMALL_CACHE)
    assert other.log_learned[0] == pytest.approx(np.log(1.5))


def depthwise(window: int, *, channels_last: bool, compute: Compute = Compute.FP16) -> OpWork:
    """ConvMixer-1536/20 at batch 1024: 32 x 32 points."""
    shape = Convolution(
        1024,
        1536,
        1536,
        1536,
        (32, 32),
        (32, 32),
        (window, window),
        (1, 1),
        (1, 1),
        channels_last=channels_last,
    )
    tensor_bytes = 2 * 1024 * 1536 * 32 * 32
    return OpWork(
        family=Family.CONVOLUTION,
        kind="depthwise_conv",
        phase=Phase.FORWARD,
        compute=compute,
        shape=shape,
        element_bits=16,
        matrix_flops=2 * 1024 * 1536 * 32 * 32 * window**2,
        vector_flops=0,
        read_bytes=tensor_bytes,
        write_bytes=tensor_bytes,
        parameter_bytes=2 * 1536 * window**2,
        launch_count=1,
    )


def test_large_depthwise_windows_channels_last_are_products_padded_to_tiles() -> None:
    """Twenty such layers were timed at 8.16 s on the RTX 4090, all of the network included."""
    slow, _ = base_of(depthwise(9, channels_last=True), LARGE_CACHE)
    assert 20 * slow.floor_s[0] == pytest.approx(8.1, rel=0.02)
    assert classes(work_table([depthwise(9, channels_last=True)]))[0] == CLASSES.index("conv")


@pytest.mark.parametrize(
    "work",
    [
        depthwise(9, channels_last=False),
        depthwise(7, channels_last=True),
        depthwise(9, channels_last=True, compute=Compute.FP32),
    ],
)
def test_other_depthwise_convolutions_keep_their_floor(work: OpWork) -> None:
    found, alone = base_of(work, LARGE_CACHE)
    assert found.floor_s[0] <= alone
    assert classes(work_table([work]))[0] == CLASSES.index("depthwise_conv")
