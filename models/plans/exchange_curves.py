"""Times of collectives as measured ones teach them: curves of the nearest systems, and trees on what is left.

    t = floor(links, size) * exp(curve(size) + trees(facts, size, curve))

`curve` is the mean of measured log(time / floor) over the systems that resemble the question, each the less
the farther it is in ranks, nodes, link and collective. Only the floor reads a cluster's latencies and
bandwidths, and the result never falls with size: so more bandwidth never slows an exchange, and calibrated
links keep their meaning. The trees see the device's own nameplate link. A system that is known itself needs
no trees. What resembles nothing measured has no learned time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import UnknownName
from predictor.hardware.catalog import find_device
from predictor.hardware.links import own_link
from predictor.hardware.spec import ClusterSpec, ExchangeOrigin, LinkSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.corpus.chips import chip_of
from predictor.models.plans.exchange_rows import (
    LINKS,
    OPS,
    ExchangeFacts,
    ExchangeTable,
    FloatArray,
    floor_s,
    numbers_of,
)
from predictor.parallel.collectives import GroupShape

MODEL_NAME = "exchanges"
BOOSTER = "trees"
SAME = 0.05
"""Curves this near are of the same device, ranks and links."""
_COUNTS = 3.0
"""Curves farther than this beyond the nearest hardly count in the mean."""
REACH = 2.0
"""Farthest curve, in squared scales, that still says something: beyond it the formulas answer."""
_GRID = np.arange(6.0, 36.01, 0.5)
"""log2 of bytes at which a question's curve is laid out: 64 B to 64 GiB."""
_FULL = (16.0, 26.0)
"""A curve counts as measured when it reaches from 64 KiB to 64 MiB."""
_FORGET_OCTAVES = 1.0
_LEAST_WEIGHT = 1e-4
_OTHER_SYSTEM, _OTHER_HOST = 60.0, 3.0
_SETTINGS = 65536

# How unlike two collectives are: halves of an all-reduce are nearly one kind, one partner is another world.
_UNLIKE = np.array(
    [
        [0.0, 0.7, 0.7, 1.5, 2.5],
        [0.7, 0.0, 0.2, 1.0, 2.0],
        [0.7, 0.2, 0.0, 1.0, 2.0],
        [1.5, 1.0, 1.0, 0.0, 2.0],
        [2.5, 2.0, 2.0, 2.0, 0.0],
    ]
)

SYSTEMS: Mapping[str, str] = {
    "aws-p3dn-24xlarge": "nccl-tests-logs/AWS p3dn.24xlarge",
    "aws-p4d-24xlarge": "nccl-tests-logs/AWS p4d.24xlarge EKS",
    "aws-p4de-24xlarge": "nccl-tests-logs/AWS p4de.24xlarge",
    "aws-p5-48xlarge": "nccl-tests-logs/AWS p5.48xlarge",
    "gcp-a3-mega": "nccl-tests-logs/GCP a3-megagpu-8g",
    "mi300x-8": "nccl-tests-logs/AAC10 MI300X Slurm",
}
"""Catalogued cluster -> the system that timed collectives across its nodes."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Distances at which a curve counts e^-1/2: octaves of rate, ranks and nodes; penalties for the rest."""

    rate: float
    ranks: float
    nodes: float
    op: float
    kind: float
    timer: float

    def distance(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """(C,) squared distances of rows of numbers from one row."""
        difference = left != right
        return np.asarray(
            self.op * _UNLIKE[left[:, 0].astype(np.intp), int(right[0])] ** 2
            + self.kind * (difference[:, 1] + difference[:, 3] + difference[:, 4])
            + self.timer * difference[:, 2]
            + ((left[:, 5] - right[5]) / self.ranks) ** 2
            + ((left[:, 6] - right[6]) / self.nodes) ** 2
            + ((left[:, 7] - right[7]) / self.rate) ** 2
            + 4.0 * difference[:, 8]
        )


@dataclass(frozen=True, slots=True)
class Curves:
    """C measured curves: facts, their numbers, and points (log2 bytes, log ratio)."""

    facts: tuple[ExchangeFacts, ...]
    numbers: FloatArray
    points: tuple[tuple[FloatArray, FloatArray], ...]

    @property
    def full(self) -> NDArray[np.bool_]:
        """(C,) whether a curve reaches from small to large tensors."""
        low, high = _FULL
        return np.array([sizes[0] <= low and sizes[-1] >= high for sizes, _ in self.points])

    @classmethod
    def of(cls, table: ExchangeTable) -> Curves:
        """The curves of a table, points by size."""
        points = []
        for number in range(len(table.curves)):
            rows = np.flatnonzero(table.curve == number)
            rows = rows[np.argsort(table.log_size[rows], kind="stable")]
            points.append((table.log_size[rows], table.log_ratio[rows]))
        return cls(table.curves, numbers_of(table.curves), tuple(points))

    def distances(self, facts: ExchangeFacts, scales: Scales) -> FloatArray:
        """(C,) of a question; curves of other systems are far where its own is known.

        Servers wire PCIe as they like (a socket in between costs L40S all but a twentieth of the rate), so
        over it another device is never near.
        """
        found = scales.distance(self.numbers, np.array(facts.numbers))
        if facts.near == "pcie":
            found = found + _OTHER_HOST * np.array([item.chip != facts.chip for item in self.facts])
        if facts.system:
            others = np.array([item.system != facts.system for item in self.facts])
            if not others.all():
                found = found + _OTHER_SYSTEM * others
        return found

    def mean(self, distance: FloatArray, log_size: FloatArray) -> FloatArray:
        """(g,) weighted mean of the curves at some sizes; beyond its ends a curve fades."""
        weight = np.exp(-0.5 * (distance - distance.min()))
        total, mass = np.zeros_like(log_size), np.zeros_like(log_size)
        for number in np.flatnonzero(weight > _LEAST_WEIGHT):
            sizes, ratios = self.points[number]
            beyond = np.maximum(0.0, np.maximum(sizes[0] - log_size, log_size - sizes[-1]))
            part = weight[number] * np.exp(-beyond / _FORGET_OCTAVES)
            total += part * np.interp(log_size, sizes, ratios)
            mass += part
        return np.asarray(total / mass)


def tree_columns(facts: ExchangeFacts, log_size: FloatArray, mean: FloatArray, nearest: float) -> FloatArray:
    """(g, 12) what the trees read of a question at some sizes."""
    fixed = np.broadcast_to(np.array(facts.numbers), (len(log_size), 9))
    far = np.full(len(log_size), nearest)
    return np.column_stack([fixed, log_size, mean, far])


@dataclass(frozen=True, slots=True)
class ExchangeSpreads:
    """90 % log half-widths: known system at other sizes, a device that others timed, a similar one."""

    known_system: float
    known_device: float
    similar: float


@dataclass(frozen=True, slots=True)
class LearnedCurve:
    """Where a group's time comes from.

    Attributes:
        log_ratio: (grid,) log of time over floor. nearest: distance of the nearest full curve.
        systems: whose curves count, the nearest first. log_spread: 90 % log half-width.
    """

    log_ratio: FloatArray
    nearest: float
    systems: tuple[str, ...]
    log_spread: float


class ExchangeModel:
    """Learned times of collectives (ExchangeTimes). Safe to share between threads."""

    def __init__(
        self,
        curves: Curves,
        scales: Scales,
        booster: Any,
        spreads: ExchangeSpreads,
        *,
        own_kernels: bool = False,
    ) -> None:
        """`booster`: trees on `tree_columns`, or None. `own_kernels`: as `with_own_kernels`."""
        self.own_kernels = own_kernels
        self.curves, self.scales, self.booster, self.spreads = curves, scales, booster, spreads
        self._laid: dict[Hashable, FloatArray | None] = {}
        self._learned: dict[ExchangeFacts, LearnedCurve | None] = {}
        self._facts: dict[Hashable, ExchangeFacts | None] = {}

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> ExchangeModel | None:
        """None for a bundle without the model. Raises InvalidBundle: of other collectives or links."""
        params = bundle.matching(MODEL_NAME, ops=OPS, links=LINKS)
        return None if params is None else cls._of(params, bundle.booster(MODEL_NAME, BOOSTER))

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> ExchangeModel:
        """A model straight from training."""
        return cls._of(trained.params, load_booster(trained.boosters[BOOSTER]))

    @classmethod
    def _of(cls, params: Mapping[str, Any], booster: Any) -> ExchangeModel:
        facts = tuple(ExchangeFacts(**item["facts"]) for item in params["curves"])
        points = tuple((np.array(item["log_size"]), np.array(item["log_ratio"])) for item in params["curves"])
        curves = Curves(facts, numbers_of(facts), points)
        return cls(curves, Scales(**params["scales"]), booster, ExchangeSpreads(**params["spreads"]))

    def with_own_kernels(self) -> ExchangeModel:
        """The same for inference stacks that reduce in a node by kernels of their own, not the library's."""
        return ExchangeModel(self.curves, self.scales, self.booster, self.spreads, own_kernels=True)

    def times_s(
        self, kind: str, size_bytes: FloatArray, place: Hashable, cluster: ClusterSpec
    ) -> FloatArray | None:
        """(n,) seconds, None for groups unlike any that was timed. `place`: a GroupShape."""
        if not isinstance(place, GroupShape):
            return None
        key = (kind, place, cluster.id, cluster.device_id, *_links(cluster))
        if key not in self._laid:
            if len(self._laid) >= _SETTINGS:
                self._laid.clear()
            self._laid[key] = self._lay(kind, place, cluster)
        grid = self._laid[key]
        if grid is None:
            return None
        log_size = np.log2(np.maximum(size_bytes, 1.0))
        log_time = np.interp(log_size, _GRID, grid)
        # Beyond the grid a byte costs what it costs at its end.
        return np.asarray(np.exp(log_time) * np.exp2(np.maximum(0.0, log_size - _GRID[-1])))

    def learned(self, kind: str, place: GroupShape, cluster: ClusterSpec) -> LearnedCurve | None:
        """What measured systems say about a group, None where nothing like it was timed."""
        facts = self._facts_of(kind, place, cluster)
        if facts is None:
            return None
        if facts not in self._learned:
            self._learned[facts] = self._curve(facts)
        return self._learned[facts]

    def log_ratios(self, facts: ExchangeFacts, log_size: FloatArray) -> tuple[FloatArray, float]:
        """(g,) log(time / floor) at some sizes, and the distance of the nearest curve."""
        distance = self.curves.distances(facts, self.scales)
        nearest, mean = float(distance.min()), self.curves.mean(distance, log_size)
        known = facts.system and any(item.system == facts.system for item in self.curves.facts)
        if known or self.booster is None:
            return mean, nearest
        trees = self.booster.inplace_predict(tree_columns(facts, log_size, mean, nearest))
        return mean + np.asarray(trees, dtype=np.float64), nearest

    def _lay(self, kind: str, place: GroupShape, cluster: ClusterSpec) -> FloatArray | None:
        """(grid,) log seconds that never fall with size."""
        curve = self.learned(kind, place, cluster)
        if curve is None:
            return None
        floor = floor_s(kind, np.exp2(_GRID), place, cluster, self._library(kind, place))
        return np.asarray(np.maximum.accumulate(np.log(floor) + curve.log_ratio))

    def _curve(self, facts: ExchangeFacts) -> LearnedCurve | None:
        distance = self.curves.distances(facts, self.scales)
        full = self.curves.full
        nearest = float(distance[full].min(initial=np.inf))
        if nearest > REACH:
            return None
        log_ratio, _ = self.log_ratios(facts, _GRID)
        order = np.argsort(distance, kind="stable")
        near = [number for number in order if full[number] and distance[number] <= nearest + _COUNTS]
        systems = tuple(dict.fromkeys(self.curves.facts[number].system for number in near))
        spreads = self.spreads
        if facts.system:
            width = spreads.known_system
        else:
            known = nearest < SAME and facts.nodes == 1
            width = spreads.known_device if known else spreads.similar
        return LearnedCurve(log_ratio, nearest, systems, width)

    def origin(self, kind: str, place: Hashable, cluster: ClusterSpec) -> ExchangeOrigin | None:
        """Where a group's times come from, None where the formulas answer."""
        curve = self.learned(kind, place, cluster) if isinstance(place, GroupShape) else None
        return None if curve is None else ExchangeOrigin(curve.systems, curve.log_spread)

    def _library(self, kind: str, place: GroupShape) -> str:
        return "custom" if self.own_kernels and kind == "all_reduce" and place.nodes == 1 else "nccl"

    def _facts_of(self, kind: str, place: GroupShape, cluster: ClusterSpec) -> ExchangeFacts | None:
        near = cluster.island if place.in_island and cluster.island is not None else cluster.intra_node
        far = cluster.inter_node.kind if place.nodes > 1 else ""
        if kind not in OPS or near.kind not in LINKS or far not in LINKS or place.racks > 1:
            return None
        if place.ranks != place.per_node * place.nodes:
            return None
        rate = _nameplate(cluster.device_id, near)
        if rate is None:
            return None
        system = SYSTEMS.get(cluster.id, "") if place.nodes > 1 else ""
        library = self._library(kind, place)
        reduces = near.in_switch and kind == "all_reduce" and library == "nccl"
        return ExchangeFacts(
            kind,
            library,
            "loop",
            near.kind,
            far,
            place.per_node,
            place.nodes,
            reduces,
            rate,
            chip_of(cluster.device_id),
            system,
        )


def _links(cluster: ClusterSpec) -> tuple[LinkSpec | None, ...]:
    return cluster.intra_node, cluster.inter_node, cluster.island, cluster.inter_rack


_BRIDGE_BYTES_PER_S = 300e9
"""NVLink bridge between two PCIe boards (A100, H100 NVL)."""


def _nameplate(device_id: str, link: LinkSpec) -> float | None:
    """What the device's data sheet says about such a link: not what a user's file or a calibration says."""
    try:
        own = own_link(find_device(device_id))
    except UnknownName:
        return None
    if own.kind == link.kind:
        return own.bytes_per_s
    return _BRIDGE_BYTES_PER_S if link.kind == "nvlink" else None


def curve_params(curves: Curves) -> list[dict[str, Any]]:
    """Curves as plain values for a bundle."""
    return [
        {
            "facts": asdict(facts),
            "log_size": [round(float(value), 3) for value in sizes],
            "log_ratio": [round(float(value), 4) for value in ratios],
        }
        for facts, (sizes, ratios) in zip(curves.facts, curves.points, strict=True)
    ]
