"""Parameter servers by where they stand: bytes through the busiest node, and the bandwidth that hides them.

Model of M bytes, N workers: colocated, one server 2 (N - 1) M; colocated, N shards 4 (N - 1) M / N; separate,
one server 2 N M; separate, N shards 2 M. A server per rack adds up its rack's gradients first, so that one
gradient and one model cross to the other racks instead of one per worker. Luo et al. 2018, "Parameter Hub",
SoCC, arXiv:1805.07891.
"""

from __future__ import annotations

from dataclasses import dataclass

from predictor.checks import positive_number, whole_number
from predictor.types import ServerPlacement


def busiest_node_bytes(placement: ServerPlacement | str, model_bytes: float, workers: int) -> float:
    """Bytes through the busiest node per step, gradients in and weights out."""
    placement = ServerPlacement.parse(placement)
    workers = whole_number(workers, "workers", "workers", "at least 1")
    positive_number(model_bytes, "model_bytes", "model_bytes", "bytes above 0")
    factors = {
        ServerPlacement.COLOCATED_CENTRAL: 2 * (workers - 1),
        ServerPlacement.COLOCATED_SHARDED: 4 * (workers - 1) / workers,
        ServerPlacement.SEPARATE_CENTRAL: 2 * workers,
        ServerPlacement.SEPARATE_SHARDED: 2,
    }
    return factors[placement] * model_bytes


@dataclass(frozen=True, slots=True)
class ServerStep:
    """A step with parameter servers.

    Attributes:
        busiest_bytes: through the busiest node. bound_bytes_per_s: bandwidth of a node that hides them behind
            compute.
        cross_rack_bytes: through the uplink of one rack.
        step_s: with pipelined exchange, the longest of compute and the two exchanges.
        bottleneck: compute, node or rack.
    """

    busiest_bytes: float
    bound_bytes_per_s: float
    cross_rack_bytes: float
    step_s: float
    bottleneck: str

    def samples_per_dollar(self, samples: float, dollars_per_hour: float) -> float:
        """Samples of one step over what its time costs."""
        return samples / self.step_s * 3600.0 / dollars_per_hour


def cross_rack_bytes(model_bytes: float, workers: int, racks: int, *, hierarchical: bool) -> float:
    """Bytes through the uplink of one rack per step, both ways; 0 for a single rack."""
    if racks <= 1:
        return 0.0
    in_rack = -(-workers // racks)
    return 2 * model_bytes * (1 if hierarchical else in_rack)


def server_step(
    placement: ServerPlacement | str,
    *,
    model_bytes: float,
    compute_s: float,
    workers: int,
    node_bytes_per_s: float,
    racks: int = 1,
    rack_bytes_per_s: float | None = None,
    hierarchical: bool = False,
) -> ServerStep:
    """One step of `workers`, spread evenly over `racks`.

    Args:
        node_bytes_per_s: bandwidth of a node's port. rack_bytes_per_s: of a rack's uplink; None as a port.
        hierarchical: a server per rack that reduces the gradients of its rack.
    """
    for name, value in (("compute_s", compute_s), ("node_bytes_per_s", node_bytes_per_s)):
        positive_number(value, name, name, "above 0")
    racks = whole_number(racks, "racks", "racks", "at least 1")
    busiest = busiest_node_bytes(placement, model_bytes, workers)
    crossing = cross_rack_bytes(model_bytes, workers, racks, hierarchical=hierarchical)
    times = {
        "compute": compute_s,
        "node": busiest / node_bytes_per_s,
        "rack": crossing / (rack_bytes_per_s or node_bytes_per_s),
    }
    bottleneck = max(times, key=lambda name: times[name])
    return ServerStep(busiest, busiest / compute_s, crossing, times[bottleneck], bottleneck)
