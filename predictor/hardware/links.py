"""Links of which no file says more than a kind: PCIe rates, latencies and the port of a default cluster."""

from __future__ import annotations

from collections.abc import Mapping

from predictor.hardware.spec import DeviceSpec, LinkSpec

# Per step of a ring: slope of small all-reduces over 2, 4 and 8 ranks in the AIConfigurator NCCL tables
# (NVLink 0.8 to 1.3 µs, PCIe 1.5 µs) and nccl-tests logs (xGMI 0.8 µs); InfiniBand: aiconfigurator
# systems/gb300.yaml and a RoCE pair in the logs (4.5 µs); EFA: p4de and p5 logs, two nodes (27 to 60 µs);
# Ethernet: EFA's upper end.
LATENCY_S: Mapping[str, float] = {
    "nvlink": 1.0e-6,
    "xgmi": 1.0e-6,
    "pcie": 1.5e-6,
    "infiniband": 5.0e-6,
    "roce": 5.0e-6,
    "efa": 40.0e-6,
    "ethernet": 60.0e-6,
}
_DEFAULT_LATENCY_S = 5.0e-6

# GT/s per lane and payload share of the line code: 8b/10b up to generation 2, 128b/130b up to 5, then flits.
_PCIE_LANE = {
    1: (2.5, 0.8),
    2: (5.0, 0.8),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}

_DEFAULT_PCIE_GENERATION = 3


def link_latency_s(kind: str) -> float:
    """Latency per message of a link of this kind."""
    return LATENCY_S.get(kind, _DEFAULT_LATENCY_S)


def pcie_bytes_per_s(generation: float, lanes: int = 16) -> float:
    """Nameplate bandwidth per direction: transfer rate per lane x lanes / 8 x line-code share."""
    rate, share = _PCIE_LANE[max(1, min(6, int(generation)))]
    return rate * 1e9 * share * lanes / 8


def own_link(device: DeviceSpec) -> LinkSpec:
    """The device's link to its peers: the one its file states, else PCIe x16 (generation 3 if unknown)."""
    bandwidth = device.link_bytes_per_s
    kind = device.link_kind if bandwidth else "pcie"
    if not bandwidth:
        bandwidth = pcie_bytes_per_s(device.pcie_generation or _DEFAULT_PCIE_GENERATION)
    reduces = kind == "nvlink" and device.architecture in _REDUCING and device.form_factor in _SWITCHED
    return LinkSpec(kind, link_latency_s(kind), bandwidth, in_switch=reduces)


# NVSwitch of the third generation and later sums what passes; boards with bridges have none.
_REDUCING = frozenset({"Hopper", "Blackwell", "Blackwell Ultra"})
_SWITCHED = frozenset({"sxm", "superchip"})


def default_port(device: DeviceSpec) -> LinkSpec:
    """Link to other nodes when none is named: one InfiniBand port per device, at the rate that fits its PCIe.

    100 Gb/s (PCIe 3), 200 Gb/s (4, as in DGX A100), 400 Gb/s (5, DGX H100), 800 Gb/s (6, DGX B300).
    """
    generation = max(3, min(6, int(device.pcie_generation or _DEFAULT_PCIE_GENERATION)))
    return LinkSpec("infiniband", link_latency_s("infiniband"), 12.5e9 * 2 ** (generation - 3))
