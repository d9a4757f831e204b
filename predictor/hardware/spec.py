"""Hardware as numbers: devices, links and clusters. SI base units; unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class DeviceKind(StrEnum):
    """Broad class of a device."""

    GPU = "gpu"
    CPU = "cpu"
    TPU = "tpu"
    NPU = "npu"
    EDGE = "edge"
    PHONE = "phone"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device as the framework sees it (one die of a dual-die board).

    Attributes:
        id: slug with form factor and memory, e.g. `a100-pcie-40gb`.
        matrix_flops_per_s: dense peak by compute type (`fp32`, `tf32`, `fp16`, `bf16`, `fp8`, `int8` ...),
            tensor cores included where the device has them for that type.
        vector_flops_per_s: peak of the plain FP32 pipeline.
        memory_bytes: nameplate capacity. memory_bytes_per_s: peak bandwidth.
        core_count: SMs (NVIDIA), CUs (AMD), cores (CPU).
        tdp_w: board power limit by default. idle_w: measured idle draw, if a document states one.
        link_bytes_per_s: per direction to peers inside a node; link_kind: nvlink, xgmi, pcie ...
        sources: document per field group, in words.
    """

    id: str
    name: str
    vendor: str
    kind: DeviceKind
    architecture: str
    memory_bytes: float
    memory_bytes_per_s: float
    vector_flops_per_s: float
    matrix_flops_per_s: Mapping[str, float]
    core_count: int
    clock_hz: float
    tdp_w: float
    l2_bytes: float | None = None
    idle_w: float | None = None
    year: int | None = None
    form_factor: str = ""
    pcie_generation: float | None = None
    link_kind: str = "pcie"
    link_bytes_per_s: float | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""
    estimated_fields: tuple[str, ...] = ()
    """Fields no document states, filled by a stated rule; each one becomes a warning in the answer."""
    reported_memory_bytes: float | None = None
    """Total that the driver reports, if a document states it: ECC takes 6 % of GDDR6, firmware up to 4 %."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link: start-up latency per message and bandwidth per direction per device."""

    kind: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Equal nodes of equal devices."""

    id: str
    device_id: str
    devices_per_node: int
    node_count: int
    intra_node: LinkSpec
    inter_node: LinkSpec
    name: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def device_count(self) -> int:
        """Devices in the whole cluster."""
        return self.devices_per_node * self.node_count
