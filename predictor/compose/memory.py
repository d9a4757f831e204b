"""Peak memory against what the device can give: the answer's memory fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from predictor.features.work import Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.memory import MemoryModel
from predictor.parallel.plan import Plan
from predictor.types import Interval
from predictor.units import MIB

# What driver, firmware and ECC keep of the nameplate capacity: an A100-40GB (40.0 GiB) shows 39.4 GiB to CUDA
# programs, an RTX 3090 (24.0 GiB) 23.7 GiB. Taken as the larger of a share and a fixed amount.
_RESERVED_FRACTION = 0.015
_RESERVED_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Memory of one device of the plan; `breakdown_bytes` sums to `device_peak.value`."""

    device_peak: Interval
    allocator_peak: Interval
    breakdown_bytes: Mapping[str, float]
    capacity_bytes: float
    fits: bool
    out_of_range: bool


def usable_bytes(device: DeviceSpec) -> float:
    """Capacity that context, tensors and buffers share: the vendor's monitor's total where it is stated."""
    if device.reported_memory_bytes is not None:
        return float(device.reported_memory_bytes)
    reserved = max(_RESERVED_FRACTION * device.memory_bytes, _RESERVED_BYTES)
    return float(max(0.0, device.memory_bytes - reserved))


def compose_memory(program: Program, device: DeviceSpec, plan: Plan, model: MemoryModel) -> MemoryCost:
    """Peak of one replica's device and whether its central value fits."""
    estimate = model.predict(program, device, plan.dp)
    capacity = usable_bytes(device)
    return MemoryCost(
        device_peak=estimate.device_peak,
        allocator_peak=estimate.allocator_peak,
        breakdown_bytes=estimate.breakdown_bytes,
        capacity_bytes=capacity,
        fits=estimate.device_peak.value <= capacity,
        out_of_range=estimate.out_of_range,
    )
