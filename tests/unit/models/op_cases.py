"""Devices and works that the op-time tests share."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Elements, Family, OpWork, Phase, Rows
from predictor.hardware.spec import DeviceKind, DeviceSpec

DEVICE = DeviceSpec(
    id="example",
    name="Example",
    vendor="nvidia",
    kind=DeviceKind.GPU,
    architecture="Volta",
    memory_bytes=16e9,
    memory_bytes_per_s=900e9,
    vector_flops_per_s=14e12,
    matrix_flops_per_s={"fp32": 14e12, "fp16": 112e12},
    core_count=80,
    clock_hz=1.38e9,
    tdp_w=300.0,
    l2_bytes=6e6,
)


def device(**changes: object) -> DeviceSpec:
    """DEVICE with other fields."""
    return replace(DEVICE, **changes)


def product(m: int, n: int, k: int, batch: int = 1, compute: Compute = Compute.FP32) -> OpWork:
    """An FP32 or FP16 matrix product."""
    size = 4 if compute is Compute.FP32 else 2
    return OpWork(
        family=Family.MATMUL if batch == 1 else Family.BATCHED_MATMUL,
        kind="linear" if batch == 1 else "bmm",
        phase=Phase.FORWARD,
        compute=compute,
        shape=Contraction(batch, m, n, k),
        element_bits=8 * size,
        matrix_flops=2 * batch * m * n * k,
        vector_flops=0,
        read_bytes=size * batch * (m * k + k * n),
        write_bytes=size * batch * m * n,
    )


def pointwise(
    count: int, family: Family = Family.ELEMENTWISE, kind: str = "relu", launches: int = 1
) -> OpWork:
    """A kernel that reads and writes `count` FP32 elements."""
    return OpWork(
        family=family,
        kind=kind,
        phase=Phase.FORWARD,
        compute=Compute.FP32,
        shape=Elements(count),
        element_bits=32,
        matrix_flops=0,
        vector_flops=count,
        read_bytes=4 * count,
        write_bytes=4 * count,
        launch_count=launches,
    )


def softmax(rows: int, columns: int) -> OpWork:
    """Softmax over rows."""
    return replace(
        pointwise(rows * columns), family=Family.SOFTMAX, kind="softmax", shape=Rows(rows, columns)
    )
