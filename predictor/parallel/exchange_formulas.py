"""Alpha-beta times of collectives by algorithm: latencies and bytes on the narrowest link, nothing learned.

With k ranks a node, m nodes, r racks and n ranks in all, a tensor of S bytes crosses

    ring         2 (n - 1) / n of S out of every rank for an all-reduce, half of it for a reduce-scatter or an
                 all-gather; level by level: (k - 1) / k inside a node, (m - 1) / m over the ports of a node
                 together, (r - 1) / r over what leaves a rack (Patarasuk and Yuan 2009,
                 doi:10.1016/j.jpdc.2008.09.002)
    tree         2 S in and out of every rank: a chain inside a node, 2 log2 steps between nodes and racks
                 (double binary trees: Sanders, Speck and Traff 2009, doi:10.1016/j.parco.2009.09.001)
    in the switch  S (1 + 1 / k): every rank hands over its tensor, and one k-th of the sum comes back to be
                 spread by the switch; two steps
    one shot     (k - 1) S: every rank reads the tensors of all others; one step, for small tensors

Levels are pipelined: latencies add, the narrowest level rules. Every formula falls with bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """Links of one level: `members` at it, seconds per message, bytes/s of all ports that a member has."""

    members: int
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Wires:
    """What a group of ranks has to exchange over.

    Attributes:
        inside: ranks of a node and a rank's own link. between: nodes, and the ports of the node with the
            fewest ranks together. across: racks, and the uplinks of the rack with the fewest ranks.
        ranks: in all. port_bytes_per_s: one rank's share of the network. uplink_bytes_per_s: of its rack's
            way out. per_node, per_rack: ranks of the node, and of the rack, with the fewest.
        in_switch: whether the switch inside a node sums. rails: what leaves for another rail crosses the
            node first.
    """

    inside: Level
    between: Level
    across: Level
    ranks: int
    port_bytes_per_s: float
    uplink_bytes_per_s: float
    per_node: int
    per_rack: int
    in_switch: bool = False
    rails: bool = False

    @property
    def levels(self) -> tuple[Level, Level, Level]:
        """From the inside out."""
        return self.inside, self.between, self.across


Formula: TypeAlias = Callable[[FloatArray, Wires], FloatArray]
"""(n,) bytes on given wires -> (n,) seconds, without the start of a collective."""


def ring(passes: int) -> Formula:
    """Rings at all levels, pipelined: two passes reduce and gather, one does either."""

    def time_s(sizes: FloatArray, wires: Wires) -> FloatArray:
        latency_s = passes * sum((level.members - 1) * level.latency_s for level in wires.levels)
        per_byte = max((level.members - 1) / level.members / level.bytes_per_s for level in wires.levels)
        return latency_s + passes * per_byte * sizes

    return time_s


def tree(sizes: FloatArray, wires: Wires) -> FloatArray:
    """An all-reduce up and down a double binary tree of nodes, each a chain of its ranks."""
    latency_s = 2 * (wires.inside.members - 1) * wires.inside.latency_s + _climb_s(wires)
    per_byte = max(1 / level.bytes_per_s for level in wires.levels if level.members > 1)
    return np.asarray(latency_s + 2 * per_byte * sizes)


def _climb_s(wires: Wires) -> float:
    """Up a tree of nodes, and of racks, and down again."""
    outer = (wires.between, wires.across)
    return 2 * sum(ceil(log2(level.members)) * level.latency_s for level in outer)


def in_switch(sizes: FloatArray, wires: Wires) -> FloatArray:
    """An all-reduce that the switch of each node sums; between nodes a tree or ring of the sums."""
    k, outer = wires.inside.members, (wires.between, wires.across)
    latency_s = 2 * wires.inside.latency_s + _climb_s(wires)
    per_byte = (1 + 1 / k) / wires.inside.bytes_per_s
    beyond = max(2 * (level.members - 1) / level.members / level.bytes_per_s for level in outer)
    return np.asarray(latency_s + max(per_byte, beyond) * sizes)


def one_shot(sizes: FloatArray, wires: Wires) -> FloatArray:
    """An all-reduce in which every rank reads everything: one step inside a node."""
    return np.asarray(wires.inside.latency_s + (wires.inside.members - 1) / wires.inside.bytes_per_s * sizes)


def all_to_all(sizes: FloatArray, wires: Wires) -> FloatArray:
    """Every rank sends 1 / n to each other one: inside its node, and beyond over its own port.

    With rails only what stays on a rank's rail leaves by its own port: the rest crosses the node first.
    """
    n, k = wires.ranks, wires.inside.members
    latency_s = sum((level.members - 1) * level.latency_s for level in wires.levels)
    away = (n - wires.per_node) / n if wires.between.members > 1 else 0.0
    forwarded = away * (k - 1) / k if wires.rails else 0.0
    inside = ((k - 1) / n + forwarded) / wires.inside.bytes_per_s
    far = (n - wires.per_rack) / n / wires.uplink_bytes_per_s if wires.across.members > 1 else 0.0
    return np.asarray(latency_s + max(inside, away / wires.port_bytes_per_s, far) * sizes)


def broadcast(sizes: FloatArray, wires: Wires) -> FloatArray:
    """A pipelined chain through all ranks."""
    latency_s = sum((level.members - 1) * level.latency_s for level in wires.levels)
    per_byte = max(1 / level.bytes_per_s for level in wires.levels if level.members > 1)
    return np.asarray(latency_s + per_byte * sizes)


def send_recv(sizes: FloatArray, wires: Wires) -> FloatArray:
    """One message over one link: the outermost that the pair, or ring, spans."""
    if wires.across.members > 1:
        return np.asarray(wires.across.latency_s + sizes / wires.uplink_bytes_per_s)
    if wires.between.members > 1:
        return np.asarray(wires.between.latency_s + sizes / wires.port_bytes_per_s)
    return np.asarray(wires.inside.latency_s + sizes / wires.inside.bytes_per_s)


COMMON: Mapping[str, tuple[Formula, ...]] = {
    "all_reduce": (ring(2), tree),
    "reduce_scatter": (ring(1),),
    "all_gather": (ring(1),),
    "all_to_all": (all_to_all,),
    "broadcast": (broadcast,),
    "send_recv": (send_recv,),
}
"""Collective -> what every library can do."""


def algorithms(kind: str, wires: Wires, *, own_kernels: bool = False) -> tuple[Formula, ...]:
    """What a library may choose from on these wires.

    Args:
        own_kernels: an inference stack's own all-reduce inside a node, which can do it in one shot.
    """
    found = COMMON[kind]
    if kind == "all_reduce" and wires.inside.members > 1:
        if wires.in_switch:
            found = (*found, in_switch)
        if own_kernels and wires.between.members == 1:
            found = (*found, one_shot)
    return found
