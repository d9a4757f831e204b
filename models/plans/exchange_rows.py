"""Timed exchanges as curves over size: log(measured / floor) of equal ranks, links and library.

The floor is the fastest alpha-beta algorithm at nameplate bandwidths after the start of a collective. Rows
that differ in element type alone are one curve where the switch has no part in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.hardware.spec import ClusterSpec
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.exchanges import Exchange, exchange_of
from predictor.parallel.collectives import START_S, GroupShape, collective_floor_s

if TYPE_CHECKING:
    import polars as pl

FloatArray = NDArray[np.float64]

OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv")
LIBRARIES = ("nccl", "custom", "oneccl")
TIMERS = ("loop", "profiler")
LINKS = ("", "nvlink", "xgmi", "pcie", "infiniband", "roce", "efa", "ethernet")
"""Kinds of links that were timed; "" stands for none."""
_OWN_START_S = 3e-6
"""Start of an inference stack's own kernel, which needs no handshake: replays of 128 bytes take 3 to 5 µs."""


@dataclass(frozen=True, slots=True)
class ExchangeFacts:
    """All that is known of a curve, and of a question.

    Attributes:
        op, library, timer, near, far: names of OPS, LIBRARIES, TIMERS, LINKS; `far` is "" in one node.
        per_node, nodes: ranks of a node, nodes. in_switch: whether a switch may sum this exchange.
        rate: nameplate bytes/s of the device's own link to its peers.
        chip: of the device; matters where hosts wire devices as they like (PCIe).
        system: who ran it on what; "" for nobody known.
    """

    op: str
    library: str
    timer: str
    near: str
    far: str
    per_node: int
    nodes: int
    in_switch: bool
    rate: float
    chip: str = ""
    system: str = ""

    @property
    def numbers(self) -> tuple[float, ...]:
        """As a row of numbers: codes, logs, flags."""
        codes = (OPS.index(self.op), LIBRARIES.index(self.library), TIMERS.index(self.timer))
        links = (LINKS.index(self.near), LINKS.index(self.far))
        logs = (float(np.log2(self.per_node)), float(np.log2(self.nodes)), float(np.log2(self.rate)))
        return (*map(float, codes), *map(float, links), *logs, float(self.in_switch))


@dataclass(frozen=True, slots=True)
class ExchangeTable:
    """n timed exchanges on C curves.

    Attributes:
        curves: (C,) what each is about. curve: (n,) index of each row's. log_size: (n,) log2 of bytes.
        log_ratio: (n,) log(measured / floor).
    """

    curves: tuple[ExchangeFacts, ...]
    curve: NDArray[np.intp]
    log_size: FloatArray
    log_ratio: FloatArray

    def __len__(self) -> int:
        return len(self.log_ratio)

    @property
    def system(self) -> NDArray[np.str_]:
        """(n,) system of each row."""
        return np.array([facts.system for facts in self.curves])[self.curve]

    @property
    def octave(self) -> NDArray[np.intp]:
        """(n,) size to the next power of two."""
        return np.asarray(np.rint(self.log_size), dtype=np.intp)

    def take(self, mask: NDArray[np.bool_]) -> ExchangeTable:
        """The rows of a mask, and the curves that they lie on."""
        kept, index = np.unique(self.curve[mask], return_inverse=True)
        curves = tuple(self.curves[number] for number in kept)
        return ExchangeTable(curves, index, self.log_size[mask], self.log_ratio[mask])


def facts_of(row: Exchange) -> ExchangeFacts:
    """What a measured exchange is about."""
    return ExchangeFacts(
        op=row.collective,
        library=row.library,
        timer=row.timer,
        near=row.intra[0],
        far=row.inter[0] if row.inter else "",
        per_node=row.per_node,
        nodes=row.nodes,
        in_switch=row.in_switch and row.collective == "all_reduce",
        rate=row.intra[1],
        chip=chip_of(row.device),
        system=row.system,
    )


def exchange_table(frames: Iterable[pl.DataFrame]) -> ExchangeTable:
    """The table of some sources' rows; equal exchanges are one row. Raises InvalidData without any."""
    seconds: dict[tuple[ExchangeFacts, int], tuple[Exchange, list[float]]] = {}
    for frame in frames:
        for configuration, value in frame.select("configuration", "value").iter_rows():
            row = exchange_of(configuration)
            key = (facts_of(row), row.size_bytes)
            seconds.setdefault(key, (row, []))[1].append(value)
    if not seconds:
        raise InvalidData("no timed exchanges in the corpus; build its sources of collectives first")
    keys = sorted(seconds, key=str)
    curves = tuple(dict.fromkeys(facts for facts, _ in keys))
    position = {facts: number for number, facts in enumerate(curves)}
    logs = [np.log(times).mean() - np.log(floor_of(row)) for row, times in map(seconds.__getitem__, keys)]
    return ExchangeTable(
        curves,
        np.array([position[facts] for facts, _ in keys], dtype=np.intp),
        np.log2(np.array([size for _, size in keys], dtype=np.float64)),
        np.array(logs),
    )


def floor_of(row: Exchange) -> float:
    """Seconds below which no algorithm gets this exchange done."""
    intra, inter = row.links()
    cluster = ClusterSpec("", row.device, row.per_node, row.nodes, intra, inter)
    place = GroupShape(row.per_node, row.nodes, row.per_node, row.ranks)
    sizes = np.array([float(row.size_bytes)])
    return float(floor_s(row.collective, sizes, place, cluster, row.library)[0])


def floor_s(
    kind: str, sizes: FloatArray, place: GroupShape, cluster: ClusterSpec, library: str
) -> FloatArray:
    """(n,) start of the library plus the formulas' floor."""
    own = library == "custom"
    start_s = _OWN_START_S if own else START_S
    if own:
        # Such kernels do not let the switch sum.
        cluster = replace(cluster, intra_node=replace(cluster.intra_node, in_switch=False))
    return np.asarray(start_s + collective_floor_s(kind, sizes, place, cluster, own_kernels=own))


def numbers_of(facts: Sequence[ExchangeFacts]) -> FloatArray:
    """(C, 9) rows of `ExchangeFacts.numbers`."""
    return np.array([item.numbers for item in facts], dtype=np.float64).reshape(len(facts), -1)
