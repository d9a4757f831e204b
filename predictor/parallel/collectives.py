"""Collectives: how long a group of equal ranks takes to exchange a tensor.

Where the cluster carries learned times (`ClusterSpec.exchanges`) and they cover the group, those; else the
formulas of `exchange_formulas` on links at the bandwidth that large collectives reach, with a start-up.
A group that spans nodes reduces hierarchically, as NCCL does: reduce-scatter inside a node, all-reduce of the
shards between nodes, all-gather inside a node; or along a tree of nodes, where that is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.parallel.exchange_formulas import COMMON, FloatArray, Level, Wires, algorithms
from predictor.units import MIB

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


@dataclass(frozen=True, slots=True)
class GroupShape:
    """A group of ranks laid node by node.

    Attributes:
        per_node: ranks on a full node; `smallest_node`: ranks on the last one.
        nodes: nodes the group touches.
        size: ranks in all; 0 when all nodes but the last are full.
        racks: racks it touches; `smallest_rack`: ranks in the one with the fewest (0: in one rack, all).
        in_island: whether all ranks of a node lie in one island of it.
    """

    per_node: int
    nodes: int
    smallest_node: int
    size: int = 0
    racks: int = 1
    smallest_rack: int = 0
    in_island: bool = False

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
    racks, smallest_rack = 1, 0
    if cluster.nodes_per_rack is not None and nodes > cluster.nodes_per_rack:
        racks = -(-nodes // cluster.nodes_per_rack)
        smallest_rack = group_size - (racks - 1) * cluster.nodes_per_rack * per_node
    return GroupShape(
        per_node,
        nodes,
        group_size - (nodes - 1) * per_node,
        racks=racks,
        smallest_rack=smallest_rack,
        in_island=cluster.devices_per_island is not None and per_node <= cluster.devices_per_island,
    )


def all_reduce_sent_bytes(size_bytes: float, group_size: int) -> float:
    """Bytes that each rank sends in a ring all-reduce of `size_bytes`: 2 (n - 1) / n of it."""
    return 2.0 * (group_size - 1) / group_size * size_bytes


def all_reduce_floor_s(size_bytes: float, group_size: int, cluster: ClusterSpec) -> float:
    """Lower bound of an all-reduce by the formulas: links at nameplate bandwidth, no start-up.

    Args:
        size_bytes: size of the tensor on each rank.
        group_size: ranks, laid node by node.
    """
    place = group_shape(group_size, cluster)
    if group_size == 1 or size_bytes <= 0:
        return 0.0
    return float(
        _fastest("all_reduce", np.array([size_bytes]), wires_of(place, cluster, lambda link: 1.0))[0]
    )


def all_reduce_time_s(size_bytes: float, group_size: int, cluster: ClusterSpec) -> float:
    """Expected time of an all-reduce among ranks laid node by node: as `collective_time_s`."""
    return collective_time_s("all_reduce", size_bytes, group_shape(group_size, cluster), cluster)


def achieved_fraction(link: LinkSpec) -> float:
    """Share of `link.bytes_per_s` that a large all-reduce reaches, by link kind."""
    return ACHIEVED_FRACTION.get(link.kind, _DEFAULT_FRACTION)


KINDS = tuple(COMMON)
"""Names of the collectives that `collective_time_s` knows."""


def collective_time_s(kind: str, size_bytes: Sizes, place: GroupShape, cluster: ClusterSpec) -> Sizes:
    """Expected time of one collective in a group that lies on `cluster` as `place` says.

    Learned times where the cluster carries some for such a group, else the fastest algorithm that needs no
    help from a switch, on the achieved bandwidths, after a start-up; tensors S that are not large travel by
    slower protocols, as S + RAMP_FRACTION min(S, RAMP_BYTES).

    Args:
        kind: one of KINDS.
        size_bytes: the whole tensor: what every rank holds before an all-reduce or reduce-scatter and after
            an all-gather or broadcast, sends in all to the others (and itself) in an all-to-all, or sends to
            its partner. A float or an array; the result is of the same kind.

    0 for a single rank or an empty tensor. Raises InvalidPlan for an unknown kind.
    """
    if kind not in COMMON:
        raise InvalidPlan(f"collective {kind!r} is unknown; expected one of {', '.join(KINDS)}", field="kind")
    sizes = np.asarray(size_bytes, dtype=np.float64)
    if place.ranks == 1:
        times = np.zeros_like(sizes)
    else:
        found = None if cluster.exchanges is None else cluster.exchanges.times_s(kind, sizes, place, cluster)
        times = np.where(
            sizes > 0, formula_time_s(kind, sizes, place, cluster) if found is None else found, 0.0
        )
    return times if isinstance(size_bytes, np.ndarray) else float(times)


def dispatch_time_s(size_bytes: float, copies: int, place: GroupShape, cluster: ClusterSpec) -> float:
    """Expected time of an all-to-all of tokens that go to `copies` experts each, wherever those are.

    A node gets a token once, n (1 - (1 - 1/n)^copies) of n nodes do, and passes it on inside meanwhile
    (DeepSeek-AI 2024, arXiv:2412.19437, section 3.2.2). Arguments and errors as `collective_time_s`.
    """
    if copies == 1 or place.nodes == 1:
        return collective_time_s("all_to_all", size_bytes, place, cluster)
    reached = place.nodes * (1 - (1 - 1 / place.nodes) ** copies) / copies
    node = GroupShape(place.per_node, 1, place.per_node, in_island=place.in_island)
    return max(
        collective_time_s("all_to_all", size_bytes * reached, place, cluster),
        collective_time_s("all_to_all", size_bytes, node, cluster),
    )


def formula_time_s(kind: str, sizes: FloatArray, place: GroupShape, cluster: ClusterSpec) -> FloatArray:
    """Times by the formulas alone, whatever the cluster carries; for two ranks and more, known kinds."""
    stretched = sizes + RAMP_FRACTION * np.minimum(sizes, RAMP_BYTES)
    wires = wires_of(place, cluster, achieved_fraction)
    return START_S + _fastest(kind, stretched, wires)


def collective_floor_s(
    kind: str, sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, *, own_kernels: bool = False
) -> FloatArray:
    """Lower bounds by the formulas: the fastest algorithm on links at nameplate bandwidth, no start-up.

    Args:
        own_kernels: an inference stack's own all-reduce (one shot). In-switch sums where the link has them.
    """
    wires = wires_of(place, cluster, lambda link: 1.0)
    times = [formula(sizes, wires) for formula in algorithms(kind, wires, own_kernels=own_kernels)]
    return np.asarray(np.minimum.reduce(times))


def _fastest(kind: str, sizes: FloatArray, wires: Wires) -> FloatArray:
    formulas = COMMON[kind]
    found = formulas[0](sizes, wires)
    for formula in formulas[1:]:
        if wires.between.members > 1:
            found = np.minimum(found, formula(sizes, wires))
    return found


def wires_of(place: GroupShape, cluster: ClusterSpec, fraction: Callable[[LinkSpec], float]) -> Wires:
    """The links that a group uses, each at `fraction` of its nameplate bandwidth."""
    near = cluster.island if place.in_island and cluster.island is not None else cluster.intra_node
    far = cluster.inter_node
    uplink = cluster.inter_rack if place.racks > 1 and cluster.inter_rack is not None else far
    port, out = far.bytes_per_s * fraction(far), uplink.bytes_per_s * fraction(uplink)
    per_rack = place.smallest_rack or place.ranks
    return Wires(
        inside=Level(place.per_node, near.latency_s, near.bytes_per_s * fraction(near)),
        # Every rank drives its share through its own port; the node with the fewest ranks is the narrowest.
        between=Level(place.nodes, far.latency_s, place.smallest_node * port),
        across=Level(place.racks, uplink.latency_s, per_rack * out),
        ranks=place.ranks,
        port_bytes_per_s=port,
        uplink_bytes_per_s=out,
        per_node=place.smallest_node,
        per_rack=per_rack,
        in_switch=near.in_switch,
        rails=cluster.rails,
    )


def sent_bytes(kind: str, size_bytes: Sizes, ranks: int) -> Sizes:
    """Bytes that the busiest rank sends in one collective of `collective_time_s`; the root of a broadcast."""
    shares = {"all_reduce": 2.0 * (ranks - 1) / ranks, "broadcast": 1.0, "send_recv": 1.0}
    return size_bytes * (shares.get(kind, (ranks - 1) / ranks) if ranks > 1 else 0.0)
