"""Collectives on alpha-beta links: how long a group of equal ranks takes to exchange a tensor.

A group that spans nodes reduces hierarchically, as NCCL does: reduce-scatter inside a node, all-reduce of the
shards between nodes, all-gather inside a node. The stages are pipelined, so the slower link rules. Each rank
sends 2 (n - 1) / n of the tensor in total: ring all-reduce, Patarasuk and Yuan 2009,
doi:10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.units import MIB

FloatArray: TypeAlias = NDArray[np.float64]
Sizes = TypeVar("Sizes", float, FloatArray)

# Time before the first byte moves (launch and handshake of one collective): intercept of small all-reduces
# over 2, 4 and 8 ranks in the AIConfigurator NCCL tables (H100 4.7, A100 8, B200 7 µs).
START_S = 6e-6

# Share of the nameplate bandwidth that all-reduces of 128 MiB and more reach, per link kind: medians over the
# AIConfigurator NCCL tables and public nccl-tests logs. NVLink 0.57 (2 ranks) to 0.96 (8 ranks, in-switch
# reduction); PCIe 0.38 to 0.80, by how many root ports the ring crosses; EFA 0.37 to 0.79.
ACHIEVED_FRACTION: Mapping[str, float] = {
    "nvlink": 0.72,
    "xgmi": 0.70,
    "pcie": 0.60,
    "infiniband": 0.84,
    "ethernet": 0.60,
    "efa": 0.60,
}
_DEFAULT_FRACTION = 0.70

# Small and middle tensors travel by protocols that trade bandwidth for latency: up to RAMP_BYTES a byte costs
# 1 + RAMP_FRACTION times what it costs in a large tensor (same tables, 128 KiB to 32 MiB: 1.35 to 1.5).
RAMP_BYTES = 16 * MIB
RAMP_FRACTION = 0.4

# (stretched sizes, place, cluster, achieved bytes/s inside a node per device, between nodes per device) -> s
Formula: TypeAlias = "Callable[[FloatArray, GroupShape, ClusterSpec, float, float], FloatArray]"


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group of ranks laid node by node.

    Attributes:
        per_node: ranks on a full node; `smallest_node`: ranks on the last one.
        nodes: nodes the group touches.
        size: ranks in all; 0 when all nodes but the last are full.
    """

    per_node: int
    nodes: int
    smallest_node: int
    size: int = 0

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.size or self.per_node * (self.nodes - 1) + self.smallest_node


def group_shape(group_size: int, cluster: ClusterSpec) -> GroupShape:
    """How `group_size` ranks fill the nodes of `cluster`. Raises InvalidPlan when they do not fit."""
    if group_size < 1:
        raise InvalidPlan(f"collective: group of {group_size} ranks; expected at least 1", field="group_size")
    if group_size > cluster.device_count:
        raise InvalidPlan(
            f"collective: {group_size} ranks, but cluster {cluster.id} has {cluster.device_count} devices; "
            "use fewer ranks or a larger cluster",
            field="group_size",
        )
    per_node = min(group_size, cluster.devices_per_node)
    nodes = -(-group_size // per_node)
    return GroupShape(per_node, nodes, group_size - (nodes - 1) * per_node)


def all_reduce_sent_bytes(size_bytes: float, group_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of `size_bytes`: 2 (n - 1) / n of it."""
    return 2.0 * (group_size - 1) / group_size * size_bytes


def all_reduce_floor_s(size_bytes: float, group_size: int, cluster: ClusterSpec) -> float:
    """Lower bound of an all-reduce: every link at its nameplate bandwidth, one latency per step, no start-up.

    Args:
        size_bytes: size of the tensor on each rank.
        group_size: ranks, laid node by node.
    """
    return _all_reduce_s(size_bytes, group_size, cluster, start_s=0.0, fraction=lambda link: 1.0)


def all_reduce_time_s(size_bytes: float, group_size: int, cluster: ClusterSpec) -> float:
    """Expected time of an all-reduce: the floor with achieved bandwidths and the start-up of a collective.

    With k ranks a node, m nodes, latencies a, achieved bandwidths b per device and the tensor S stretched by
    the slower protocols of smaller tensors, S + RAMP_FRACTION min(S, RAMP_BYTES):

        start + 2 (k - 1) a_intra + 2 (m - 1) a_inter
              + max(2 (k - 1) / k * S / b_intra,  2 (m - 1) / m * S / (k b_inter))

    0 for a single rank or an empty tensor.
    """
    stretched_bytes = size_bytes + RAMP_FRACTION * min(size_bytes, RAMP_BYTES)
    return _all_reduce_s(stretched_bytes, group_size, cluster, start_s=START_S, fraction=achieved_fraction)


def achieved_fraction(link: LinkSpec) -> float:
    """Share of `link.bytes_per_s` that a large all-reduce reaches, by link kind."""
    return ACHIEVED_FRACTION.get(link.kind, _DEFAULT_FRACTION)


KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send_recv")
"""Names of the collectives that `collective_time_s` knows."""


def collective_time_s(kind: str, size_bytes: Sizes, place: GroupShape, cluster: ClusterSpec) -> Sizes:
    """Expected time of one collective in a group that lies on `cluster` as `place` says.

    Args:
        kind: one of KINDS.
        size_bytes: the whole tensor: what every rank holds before an all-reduce or reduce-scatter and after
            an all-gather or broadcast, sends in all to the others (and itself) in an all-to-all, or sends to
            its partner. A float or an array; the result is of the same kind.

    0 for a single rank or an empty tensor. Raises InvalidPlan for an unknown kind.
    """
    ranks = place.ranks
    formula = _FORMULAS.get(kind)
    if formula is None:
        raise InvalidPlan(f"collective {kind!r} is unknown; expected one of {', '.join(KINDS)}", field="kind")
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if ranks == 1:
        times = np.zeros_like(sizes)
    else:
        stretched = sizes + RAMP_FRACTION * np.minimum(sizes, RAMP_BYTES)
        intra, inter = cluster.intra_node, cluster.inter_node
        rates = (
            intra.bytes_per_s * achieved_fraction(intra),
            inter.bytes_per_s * achieved_fraction(inter),
        )
        times = np.where(sizes > 0, START_S + formula(stretched, place, cluster, *rates), 0.0)
    return times if isinstance(size_bytes, np.ndarray) else float(times)


def sent_bytes(kind: str, size_bytes: Sizes, ranks: int) -> Sizes:
    """Bytes that the busiest rank sends in one collective of `collective_time_s`; the root of a broadcast."""
    shares = {"all_reduce": 2.0 * (ranks - 1) / ranks, "broadcast": 1.0, "send_recv": 1.0}
    return size_bytes * (shares.get(kind, (ranks - 1) / ranks) if ranks > 1 else 0.0)


def _ring(passes: int) -> Formula:
    """Rings inside nodes and between them, pipelined: 2 passes reduce and gather, 1 does either."""

    def time_s(
        sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, intra_rate: float, inter_rate: float
    ) -> FloatArray:
        k, m = place.per_node, place.nodes
        latency_s = passes * (k - 1) * cluster.intra_node.latency_s
        latency_s += passes * (m - 1) * cluster.inter_node.latency_s
        inside = passes * (k - 1) / k * sizes / intra_rate
        between = passes * (m - 1) / m * sizes / (place.smallest_node * inter_rate)
        return latency_s + np.maximum(inside, between)

    return time_s


def _all_to_all(
    sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, intra_rate: float, inter_rate: float
) -> FloatArray:
    """Every rank sends 1 / n to each other one: inside its node, and beyond over its own port."""
    k, m, n = place.per_node, place.nodes, place.ranks
    latency_s = (k - 1) * cluster.intra_node.latency_s + (m - 1) * cluster.inter_node.latency_s
    inside, between = (k - 1) / n * sizes / intra_rate, (n - place.smallest_node) / n * sizes / inter_rate
    return latency_s + np.maximum(inside, between if m > 1 else 0.0)


def _broadcast(
    sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, intra_rate: float, inter_rate: float
) -> FloatArray:
    """A pipelined chain through all ranks."""
    k, m = place.per_node, place.nodes
    latency_s = (k - 1) * cluster.intra_node.latency_s + (m - 1) * cluster.inter_node.latency_s
    between = sizes / (place.smallest_node * inter_rate) if m > 1 else 0.0
    return latency_s + np.maximum(sizes / intra_rate if k > 1 else 0.0, between)


def _send_recv(
    sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, intra_rate: float, inter_rate: float
) -> FloatArray:
    """One message over one link: between nodes when the pair, or ring, spans them."""
    if place.nodes > 1:
        return cluster.inter_node.latency_s + sizes / inter_rate
    return cluster.intra_node.latency_s + sizes / intra_rate


_FORMULAS: Mapping[str, Formula] = {
    "all_reduce": _ring(2),
    "reduce_scatter": _ring(1),
    "all_gather": _ring(1),
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}


def _all_reduce_s(
    size_bytes: float,
    group_size: int,
    cluster: ClusterSpec,
    *,
    start_s: float,
    fraction: Callable[[LinkSpec], float],
) -> float:
    shape = group_shape(group_size, cluster)
    if group_size == 1 or size_bytes <= 0:
        return 0.0
    intra, inter = cluster.intra_node, cluster.inter_node
    latency_s = 2 * (shape.per_node - 1) * intra.latency_s + 2 * (shape.nodes - 1) * inter.latency_s
    inside_s = 2 * (shape.per_node - 1) / shape.per_node * size_bytes / (intra.bytes_per_s * fraction(intra))
    # Every rank drives its share through its own port; the node with the fewest ranks is the narrowest.
    ports_bytes_per_s = shape.smallest_node * inter.bytes_per_s * fraction(inter)
    between_s = 2 * (shape.nodes - 1) / shape.nodes * size_bytes / ports_bytes_per_s
    return start_s + latency_s + max(inside_s, between_s)
