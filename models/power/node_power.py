"""What a node draws beside its boards: host, memory, network, storage, and what power supplies lose.

    node W = (boards + scale * (host + memory + network + storage)) / (1 - loss)

Parts are bottom-up: SPECpower's two-socket servers, 3 W per 8 GB of memory, data-sheet figures of switches,
network cards and drives. One number, `scale`, is fitted on measured nodes; without any it is 1. Fans are in
`loss` of air-cooled nodes and absent in immersion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, fsum

import numpy as np

# SPECpower_ssj2008 (summary of 2026-03-09), 195 two-socket servers published since 2021: medians of active
# idle and of full load, with 384 GB of memory.
HOST_IDLE_W, HOST_FULL_W, HOST_MEMORY_GB = 147.0, 704.0, 384.0
HOST_LOAD = 0.3
"""Share of the host's range that feeding and driving eight devices takes (launches, preprocessing)."""
MEMORY_W_PER_GB = 3.0 / 8.0
"""codecarbon's constant for DRAM."""
# NDR InfiniBand port with its cable, one for each device; NVSwitch baseboard of an eight-device node, its
# share; a drive of those that such nodes carry for each device.
PORT_W, SWITCH_W, DRIVE_W = 25.0, 60.0, 12.0
SUPPLY_LOSS = 0.06
"""80 PLUS Titanium supplies lose 4 to 6 % between half and full load."""
FANS = 0.08
"""Air-cooled eight-device servers spend about a twelfth on fans; immersion none."""


@dataclass(frozen=True, slots=True)
class NodeRest:
    """What stands around the devices of one node, in W before losses.

    Attributes:
        devices: per node. host_w, memory_w, network_w, storage_w: while a job runs.
        loss: share of the input lost in supplies (and spent on fans).
        scale: fitted factor on the four parts.
    """

    devices: int
    host_w: float
    memory_w: float
    network_w: float
    storage_w: float
    loss: float
    scale: float = 1.0

    @property
    def rest_w(self) -> float:
        """Everything beside the boards, before losses."""
        return self.scale * (self.host_w + self.memory_w + self.network_w + self.storage_w)

    def node_w(self, boards_w: float) -> float:
        """Input power of a node whose boards draw `boards_w` together."""
        return (boards_w + self.rest_w) / (1.0 - self.loss)

    def parts_w(self, boards_w: float) -> Mapping[str, float]:
        """Where a node's input goes; sums to `node_w`."""
        parts = {
            "devices": boards_w,
            "host": self.scale * self.host_w,
            "memory": self.scale * self.memory_w,
            "network": self.scale * self.network_w,
            "storage": self.scale * self.storage_w,
        }
        return parts | {"supply_and_fans": self.node_w(boards_w) - fsum(parts.values())}


def node_rest(devices: int = 8, *, memory_gb_per_device: float = 256.0, air_cooled: bool = True) -> NodeRest:
    """A node of `devices` accelerators: one host socket for four of them, at least one."""
    sockets = max(1, ceil(devices / 4))
    host = (HOST_IDLE_W + HOST_LOAD * (HOST_FULL_W - HOST_IDLE_W)) * sockets / 2
    memory_gb = memory_gb_per_device * devices
    switched = devices if devices > 2 else 0
    return NodeRest(
        devices=devices,
        host_w=host,
        memory_w=MEMORY_W_PER_GB * max(0.0, memory_gb - HOST_MEMORY_GB * sockets / 2),
        network_w=PORT_W * devices + SWITCH_W * switched,
        storage_w=DRIVE_W * devices,
        loss=SUPPLY_LOSS + (FANS if air_cooled else 0.0),
    )


MEASURED_SCALE = 0.82
"""Fitted on MLPerf Training v4.0 power logs (ten points of eight-H100 nodes; docs/benchmarks/energy.md)."""
NODE_LOG_SPREAD = 0.1
"""All ten points lie within this of the answer, each benchmark left out in turn; nine of ten with none."""


def fit_scale(rest: NodeRest, boards_w: Sequence[float], measured_w: Sequence[float]) -> NodeRest:
    """`rest` with the factor that explains measured nodes best, on average over them."""
    bare = replace(rest, scale=1.0).rest_w
    wanted = [
        (node * (1.0 - rest.loss) - boards) / bare for boards, node in zip(boards_w, measured_w, strict=True)
    ]
    return replace(rest, scale=max(0.1, float(np.mean(wanted))))
