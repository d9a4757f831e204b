"""Where the ranks of a plan sit: nodes that a communication group touches, and links between stages.

Rank r stands on node r // devices per node; the plan's placement says how its axes become ranks. Groups of
one kind can lie differently when they straddle nodes: the one over the most nodes stands for all, for a step
takes as long as its slowest group.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidPlan
from predictor.hardware.spec import ClusterSpec
from predictor.parallel.collectives import GroupShape
from predictor.parallel.plan import Plan, axes_of

IntArray = NDArray[np.int64]
_GRID = ("tp", "cp", "ep", "dp", "pp")


def axis_sizes(plan: Plan) -> tuple[int, ...]:
    """Sizes of the rank grid along tp, cp, ep, dp (what is left of it outside ep) and pp."""
    return plan.tp, plan.cp, plan.ep, plan.dp // plan.ep, plan.pp


def group_place(plan: Plan, group: str, cluster: ClusterSpec) -> GroupShape:
    """How the groups named `group` (predictor.parallel.plan.GROUPS) lie on the nodes of `cluster`.

    Raises InvalidPlan when the plan needs more devices than the cluster has, or for an unknown group.
    """
    _check(plan, cluster)
    return _place(axis_sizes(plan), plan.placement, axes_of(group), _bounds(cluster), 0, True)


def _bounds(cluster: ClusterSpec) -> tuple[int, int, int]:
    """Devices of an island, of a node and of a rack; 0 for levels that the cluster lacks."""
    per_node = cluster.devices_per_node
    return cluster.devices_per_island or 0, per_node, per_node * (cluster.nodes_per_rack or 0)


def shard_place(plan: Plan, group: str, cluster: ClusterSpec, shards: int) -> tuple[GroupShape, GroupShape]:
    """The two levels of hybrid sharding: (ranks that share one copy, ranks that hold the same shard).

    Args:
        group: the group whose gradients are averaged, `dp_cp` or `expert_dp_cp`.
        shards: members that share a copy; neighbours in rank order. Must divide the group.
    """
    _check(plan, cluster)
    axes = axes_of(group)
    args = axis_sizes(plan), plan.placement, axes, _bounds(cluster)
    if plan.group_size(group) % shards:
        raise InvalidPlan(
            f"plan: {shards} shards do not divide the {plan.group_size(group)} ranks of group {group}; take "
            "a shard_group that does",
            field="plan.shard_group",
        )
    return _place(*args, shards, True), _place(*args, shards, False)


def boundary_crosses_node(plan: Plan, cluster: ClusterSpec) -> NDArray[np.bool_]:
    """(pp,) whether any rank of stage s sends to stage s + 1 over the nodes' ports; the last wraps around."""
    _check(plan, cluster)
    return _crossings(axis_sizes(plan), plan.placement, cluster.devices_per_node)


def boundary_crosses_rack(plan: Plan, cluster: ClusterSpec) -> NDArray[np.bool_]:
    """(pp,) as `boundary_crosses_node`, for the uplinks of racks; nothing leaves the only rack."""
    _check(plan, cluster)
    if cluster.nodes_per_rack is None:
        return np.zeros(plan.pp, dtype=np.bool_)
    return _crossings(axis_sizes(plan), plan.placement, cluster.devices_per_node * cluster.nodes_per_rack)


def _check(plan: Plan, cluster: ClusterSpec) -> None:
    if plan.device_count > cluster.device_count:
        raise InvalidPlan(
            f"plan: {plan.device_count} devices, but cluster {cluster.id} has {cluster.device_count}; use "
            "fewer or name a larger cluster",
            field="plan",
        )


def rank_grid(sizes: tuple[int, ...], placement: tuple[str, ...]) -> IntArray:
    """(tp, cp, ep, dp, pp) number of the rank at each place of the grid."""
    strides, stride = {}, 1
    for axis in placement:
        strides[axis] = stride
        stride *= sizes[_GRID.index(axis)]
    grid = np.zeros(sizes, dtype=np.int64)
    for index, axis in enumerate(_GRID):
        shape = [1] * len(sizes)
        shape[index] = sizes[index]
        grid = grid + (np.arange(sizes[index]) * strides[axis]).reshape(shape)
    return grid


def group_members(sizes: tuple[int, ...], placement: tuple[str, ...], axes: tuple[str, ...]) -> IntArray:
    """(groups, members) ranks of every group that spans `axes`, ascending within each."""
    grid = rank_grid(sizes, placement)
    inner = [index for index, axis in enumerate(_GRID) if axis in axes]
    outer = [index for index, axis in enumerate(_GRID) if axis not in axes]
    rows = grid.transpose(outer + inner).reshape(-1, prod(sizes[index] for index in inner))
    return np.sort(rows, axis=1)


@lru_cache(maxsize=65536)
def _place(
    sizes: tuple[int, ...],
    placement: tuple[str, ...],
    axes: tuple[str, ...],
    bounds: tuple[int, int, int],
    shards: int,
    inside: bool,
) -> GroupShape:
    """Place of the worst group; `shards` above 0 cuts each into copies of that many members.

    `inside` looks at the members of a copy, else at those that hold the same part of each copy.
    """
    per_island, per_node, per_rack = bounds
    members = group_members(sizes, placement, axes)
    if shards:
        copies = members.reshape(len(members), -1, shards)
        if not inside:
            copies = copies.transpose(0, 2, 1)
        members = copies.reshape(-1, copies.shape[-1])
    nodes = np.sort(members // per_node, axis=1)
    touched = 1 + (np.diff(nodes, axis=1) != 0).sum(axis=1)
    widest = nodes[touched == touched.max()]
    # Groups of one kind repeat a few patterns.
    patterns = np.unique(widest - widest[:, :1], axis=0)
    counts = [np.unique(pattern, return_counts=True)[1] for pattern in patterns]
    # The node with the fewest ranks has the fewest ports.
    worst = min(counts, key=lambda count: (count.min(), -count.max()))
    racks, smallest_rack = _worst_racks(members, per_rack)
    return GroupShape(
        int(worst.max()),
        len(worst),
        int(worst.min()),
        int(worst.sum()),
        racks,
        smallest_rack,
        bool(per_island) and _within_islands(members, per_node, per_island),
    )


def _worst_racks(members: IntArray, per_rack: int) -> tuple[int, int]:
    """(racks, ranks in the rack with the fewest) of the group over the most racks; (1, 0) within one."""
    if not per_rack:
        return 1, 0
    counts = [np.unique(row, return_counts=True)[1] for row in np.unique(members // per_rack, axis=0)]
    most = max(len(count) for count in counts)
    return (most, int(min(count.min() for count in counts if len(count) == most))) if most > 1 else (1, 0)


def _within_islands(members: IntArray, per_node: int, per_island: int) -> bool:
    """Whether no group has ranks in two islands of one node."""
    nodes, islands = members // per_node, members // per_island
    return all(len(np.unique(islands[row])) == len(np.unique(nodes[row])) for row in range(len(members)))


@lru_cache(maxsize=4096)
def _crossings(sizes: tuple[int, ...], placement: tuple[str, ...], per_box: int) -> NDArray[np.bool_]:
    """(pp,) whether a boundary between boxes of so many devices lies between two stages of any row."""
    grid = rank_grid(sizes, placement)
    stages = np.moveaxis(grid, -1, 0).reshape(sizes[-1], -1) // per_box
    crosses: NDArray[np.bool_] = (stages != np.roll(stages, -1, axis=0)).any(axis=1)
    return crosses
