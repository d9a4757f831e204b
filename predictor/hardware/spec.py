"""Hardware as numbers: devices, links and clusters. SI base units; unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from predictor.checks import positive_number, real_number, whole_number
from predictor.errors import InvalidRequest
from predictor.units import MIB

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DeviceKind(StrEnum):
    """Broad class of a device."""

    GPU = "gpu"
    CPU = "cpu"
    TPU = "tpu"
    NPU = "npu"
    EDGE = "edge"
    PHONE = "phone"

    @property
    def is_host(self) -> bool:
        """Whether jobs run on the processor and in the memory of the host itself."""
        return self in (DeviceKind.CPU, DeviceKind.PHONE)


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

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a number that no device has: 0, negative, NaN, a slip of unit."""
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise InvalidRequest(
                    f"device {self.id!r}: {name} is {getattr(self, name)!r}; expected text",
                    field=f"device.{name}",
                )
        try:
            object.__setattr__(self, "kind", DeviceKind(self.kind))
        except ValueError:
            raise InvalidRequest(
                f"device {self.id!r}: kind is {self.kind!r}; expected one of {', '.join(DeviceKind)}",
                field="device.kind",
            ) from None
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name in _NEEDED:
                self._check(name, value, low, high)
        for name in ("core_count", "year"):
            if (value := getattr(self, name)) is not None:
                what = f"device {self.id!r}: {name}"
                whole = whole_number(value, what, f"device.{name}", "a whole number")
                object.__setattr__(self, name, whole)
        if not isinstance(self.matrix_flops_per_s, Mapping):
            raise InvalidRequest(
                f"device {self.id!r}: matrix_flops_per_s is {self.matrix_flops_per_s!r}; expected rates by "
                "compute type",
                field="device.matrix_flops_per_s",
            )
        for compute, rate in self.matrix_flops_per_s.items():
            self._check(f"matrix_flops_per_s[{compute}]", rate, *_RANGES["vector_flops_per_s"])
        if self.idle_w is not None and self.idle_w >= self.tdp_w:
            raise InvalidRequest(
                f"device {self.id!r}: idle_w is {self.idle_w:g}; expected less than tdp_w, {self.tdp_w:g}",
                field="device.idle_w",
            )

    def _check(self, name: str, value: object, low: float, high: float) -> None:
        what, expected = f"device {self.id!r}: {name}", f"a number from {low:g} to {high:g}"
        real_number(value, what, f"device.{name}", expected, low, high)


# Bounds around any device ever built, in SI units: they catch NaN, zeros and slips of unit.
_RANGES: Mapping[str, tuple[float, float]] = {
    "memory_bytes": (1e6, 1e17),
    "memory_bytes_per_s": (1e6, 1e17),
    "vector_flops_per_s": (1e6, 1e19),
    "core_count": (1, 1e9),
    "clock_hz": (1e5, 1e12),
    "tdp_w": (1e-3, 1e6),
    "l2_bytes": (1, 1e16),
    "idle_w": (1e-6, 1e6),
    "year": (1940, 2200),
    "pcie_generation": (1, 20),
    "link_bytes_per_s": (1, 1e17),
    "reported_memory_bytes": (1e6, 1e17),
}
_NEEDED = frozenset(
    ("memory_bytes", "memory_bytes_per_s", "vector_flops_per_s", "core_count", "clock_hz", "tdp_w")
)
_TEXTS = ("id", "name", "vendor", "architecture", "form_factor", "link_kind", "notes")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """A link: start-up latency per message and bandwidth per direction per device.

    `log_spread`: 90 % log half-width of times over it, where measured jobs told it. `in_switch`: its switch
    sums what passes (SHARP), so that a large all-reduce can beat twice the time of sending it once.
    """

    kind: str
    latency_s: float
    bytes_per_s: float
    log_spread: float | None = None
    in_switch: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a bandwidth that is not above 0 or a latency below 0."""
        link = f"link {self.kind!r}"
        positive_number(self.bytes_per_s, f"{link}: bytes_per_s", "cluster", "bandwidth above 0")
        real_number(self.latency_s, f"{link}: latency_s", "cluster", "seconds from 0 to 3600", 0, 3600)


@dataclass(frozen=True, slots=True)
class ExchangeOrigin:
    """Systems that timed such an exchange, the nearest first, and the 90 % log half-width of its times."""

    systems: tuple[str, ...]
    log_spread: float


class ExchangeTimes(Protocol):
    """Times of collectives as measurements teach them; a cluster carries one to whoever prices exchanges."""

    def times_s(
        self, kind: str, size_bytes: NDArray[np.float64], place: Hashable, cluster: ClusterSpec
    ) -> NDArray[np.float64] | None:
        """(n,) seconds of a collective among ranks placed so, None where nothing like it was measured."""

    def origin(self, kind: str, place: Hashable, cluster: ClusterSpec) -> ExchangeOrigin | None:
        """Where such times come from, None where nothing like it was measured."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Equal nodes of equal devices.

    Attributes:
        devices_per_node: devices that `intra_node` joins; `inter_node`: the share of one device in the
            node's ports while all of them send.
        ports_per_node: network ports of a node; None: one per device.
        rails: port i of every node hangs on switch i, so what leaves for another rail first crosses the node.
        devices_per_island, island: neighbours inside a node with a link of their own, e.g. NVLink pairs in
            a PCIe server; both or neither.
        nodes_per_rack, inter_rack: nodes that share a rack (or a non-blocking pod), and a device's share of
            what leaves it, oversubscription included; both or neither.
        exchanges: learned times, attached by whoever loads the models.
    """

    id: str
    device_id: str
    devices_per_node: int
    node_count: int
    intra_node: LinkSpec
    inter_node: LinkSpec
    name: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    ports_per_node: int | None = None
    rails: bool = False
    devices_per_island: int | None = None
    island: LinkSpec | None = None
    nodes_per_rack: int | None = None
    inter_rack: LinkSpec | None = None
    exchanges: ExchangeTimes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises InvalidRequest for counts that are no whole numbers of at least 1, and for half a level."""
        for name in ("devices_per_node", "node_count"):
            self._count(name)
        for name in ("ports_per_node", "devices_per_island", "nodes_per_rack"):
            if getattr(self, name) is not None:
                self._count(name)
        for size, link in (("devices_per_island", "island"), ("nodes_per_rack", "inter_rack")):
            if (getattr(self, size) is None) != (getattr(self, link) is None):
                raise InvalidRequest(
                    f"cluster {self.id!r}: {size} and {link} belong together; state both or neither",
                    field=f"cluster.{link}",
                )

    def _count(self, name: str) -> None:
        value = getattr(self, name)
        count = whole_number(value, f"cluster {self.id!r}: {name}", f"cluster.{name}", "at least 1")
        object.__setattr__(self, name, count)

    @property
    def device_count(self) -> int:
        """Devices in the whole cluster."""
        return self.devices_per_node * self.node_count

    @property
    def rack_count(self) -> int:
        """Racks that the nodes fill; 1 where none are stated."""
        return -(-self.node_count // (self.nodes_per_rack or self.node_count))

    def using(self, devices_per_node: int) -> ClusterSpec:
        """The cluster with only so many devices of each node in use: they share all ports that they reach.

        A device drives one port. Where ports are fewer than devices, those in use divide them. Raises
        InvalidRequest when a node has fewer devices.
        """
        used = whole_number(
            devices_per_node, f"cluster {self.id!r}: devices in use", "cluster.devices_per_node", "at least 1"
        )
        if used > self.devices_per_node:
            raise InvalidRequest(
                f"cluster {self.id!r}: {used} devices of each node, but a node has {self.devices_per_node}",
                field="cluster.devices_per_node",
            )
        ports = self.ports_per_node or self.devices_per_node
        port_bytes_per_s = self.inter_node.bytes_per_s * self.devices_per_node / ports
        share = port_bytes_per_s * min(ports, used) / used
        factor = share / self.inter_node.bytes_per_s
        above = self.inter_rack
        return replace(
            self,
            devices_per_node=used,
            ports_per_node=min(ports, used),
            inter_node=replace(self.inter_node, bytes_per_s=share),
            inter_rack=None if above is None else replace(above, bytes_per_s=above.bytes_per_s * factor),
        )

    def log_spread(self, device_count: int) -> float | None:
        """90 % log half-width of exchanges among so many devices, None where a link was never measured."""
        spreads = [self.intra_node.log_spread]
        if device_count > self.devices_per_node:
            spreads.append(self.inter_node.log_spread)
        known = [spread for spread in spreads if spread is not None]
        return max(known) if len(known) == len(spreads) else None


# What driver, firmware and ECC keep of the nameplate capacity: an A100-40GB (40.0 GiB) shows 39.4 GiB to CUDA
# programs, an RTX 3090 (24.0 GiB) 23.7 GiB. Taken as the larger of a share and a fixed amount.
_RESERVED_FRACTION = 0.015
_RESERVED_BYTES = 256 * MIB


def usable_bytes(device: DeviceSpec) -> float:
    """Capacity that context, tensors and buffers share: the vendor's monitor's total where it is stated."""
    if device.reported_memory_bytes is not None:
        return float(device.reported_memory_bytes)
    reserved = max(_RESERVED_FRACTION * device.memory_bytes, _RESERVED_BYTES)
    return float(max(0.0, device.memory_bytes - reserved))
