"""What visits the device over the host's link when states, weights or activations live elsewhere.

Copies over the host's link run beside the kernels; where they take longer than what they run beside, the
device waits. ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840): gradients go to the host while backward goes
on, the host steps, weights come back. ZeRO-Infinity (Rajbhandari et al. 2021, arXiv:2104.07857) puts them on
NVMe.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.links import pcie_bytes_per_s
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.parallel.plan import Plan
from predictor.types import OffloadTarget

FloatArray = NDArray[np.float64]

# Copies from pinned memory reach 12.3 of 15.75 GB/s on PCIe 3 x16 and 25 of 31.5 on PCIe 4.
_COPY_FRACTION = 0.8
_DEFAULT_PCIE_GENERATION = 3
# Two sockets of eight channels DDR4-3200 (25.6 GB/s each), a host of the A100's time; a stream of updates
# reaches about three quarters of it.
HOST_BYTES_PER_S = 0.75 * 16 * 25.6e9
# One drive of PCIe 4 x4 per two devices: 7 GB/s read.
NVME_BYTES_PER_S = 3.5e9


@dataclass(frozen=True, slots=True)
class HostLinks:
    """Rates that one device sees, bytes/s.

    Attributes:
        copy_bytes_per_s: to or from where offloaded tensors live.
        step_bytes_per_s: traffic of the host's optimizer step, as all devices of a node share the host.
    """

    copy_bytes_per_s: float
    step_bytes_per_s: float


def host_links(plan: Plan, device: DeviceSpec, cluster: ClusterSpec | None) -> HostLinks:
    """The link between a device and its host."""
    per_node = 1 if cluster is None else min(cluster.devices_per_node, plan.device_count)
    copy = _COPY_FRACTION * pcie_bytes_per_s(device.pcie_generation or _DEFAULT_PCIE_GENERATION)
    step = HOST_BYTES_PER_S / per_node
    if plan.offload_to is OffloadTarget.NVME:
        copy = min(copy, NVME_BYTES_PER_S)
        step = min(step, NVME_BYTES_PER_S)
    return HostLinks(copy, step)


def pass_waits_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    kept_bytes: FloatArray,
    weight_bytes: FloatArray,
    gradient_bytes: FloatArray,
    links: HostLinks,
) -> tuple[FloatArray, FloatArray]:
    """(forward, backward) seconds that the device waits for copies beside its kernels, array by array.

    Forward sends activations out and takes weights in; backward takes both in and sends gradients out. The
    two directions of the link do not disturb one another.

    Args:
        kept_bytes, weight_bytes, gradient_bytes: what travels in a pass; 0 where it stays on the device.
    """
    rate = links.copy_bytes_per_s
    forward = np.maximum(kept_bytes, weight_bytes) / rate
    backward = np.maximum(kept_bytes + weight_bytes, gradient_bytes) / rate
    return np.maximum(0.0, forward - forward_s), np.maximum(0.0, backward - backward_s)


def host_step_s(weight_bytes: FloatArray, state_per_byte: float, links: HostLinks) -> FloatArray:
    """Time of the host's step over these weights, and of sending them back to the device.

    The step reads weights, gradients and states, and writes all but the gradients.

    Args:
        state_per_byte: bytes of optimizer state per byte of weights, 2 for Adam.
    """
    traffic = (3.0 + 2.0 * state_per_byte) * weight_bytes
    return traffic / links.step_bytes_per_s + weight_bytes / links.copy_bytes_per_s
