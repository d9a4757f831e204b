"""Operator measurements as training tables: one per op family, features and target beside their groups.

One timed call is: the host prepares (lead), launches, then finishes its bookkeeping while the kernel runs.
So latency is max(dispatch, lead + kernel). Dispatch is what the smallest calls of an op take (0.5 %
quantile). The lead is read off elementwise kernels, whose time is linear in bytes: it is the intercept of
that line, 0.5 to 0.6 of the dispatch on every device, and taken to be the same share for other ops. Of a
call no longer than its dispatch the kernel is unknown but short: its floor stands in, so that nothing is
learned where nothing was seen (leaving those rows out would keep only the slow ones of the small). The
target is log((latency - lead + kernel start) / floor).

Two shape sets of one device may contradict each other: the P4's linear layers take 3.3 times as long in one
as in the other, aligned or not, deep or not, where other boards' sets agree within a fifth. A passive board
of 75 W ran one of them hot. Nobody says which an iteration is; each set moves half-way to the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.programs.work import Family, OpWork
from predictor.features.programs.work_json import work_from_json
from predictor.features.tables.rows import FEATURE_NAMES, FeatureMatrix, feature_matrix
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.corpus.build import read_source
from predictor.models.ops.floor import KERNEL_START_S, floors

DISPATCH_QUANTILE = 0.005
# A kernel must last a fifth of its dispatch to be seen through it.
_VISIBLE_RATIO = 1.2
# Latencies in multiples of dispatch between which an elementwise kernel is visible and the fit is not all
# slope.
_LINEAR_RANGE = (1.5, 20.0)
# A set of fewer rows than this counts by its rows, a larger one counts as one.
_FULL_SET_ROWS = 200

# Kernels of this length show a board's level; sets whose levels differ by more contradict each other.
LONG_S = 1e-3
_CONTRADICTION = 2.0

TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class OpTable:
    """Rows of one family, each array (n, ...).

    Attributes:
        features: columns of FEATURE_NAMES.
        target: log(measured kernel time / floor).
        floor_s: the floors.
        device: catalogue ids; subset: which of the source's shape sets.
        shape: equal works have equal numbers, whatever the device.
        weight: every (device, subset) counts alike; mean 1.
    """

    family: Family
    features: FeatureMatrix
    target: FloatArray
    floor_s: FloatArray
    device: TextArray
    subset: TextArray
    shape: NDArray[np.intp]
    weight: FloatArray

    def __len__(self) -> int:
        return len(self.target)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> OpTable:
        """The chosen rows; weights keep their proportions."""
        return OpTable(
            self.family,
            self.features[rows],
            self.target[rows],
            self.floor_s[rows],
            self.device[rows],
            self.subset[rows],
            self.shape[rows],
            self.weight[rows],
        )


@dataclass(frozen=True, slots=True)
class _Measured:
    subject: str
    subset: str
    shape: int
    work: OpWork
    latency_s: float


def load_tables(corpus: Path, source: str, devices: Mapping[str, DeviceSpec]) -> Mapping[Family, OpTable]:
    """Tables of every family that the source measured on `devices` (by catalogue id), in a fixed order.

    Raises InvalidData when the corpus has no such source or no row of a device.
    """
    import polars as pl

    frame = read_source(corpus, source).filter(pl.col("quantity") == "latency")
    works: dict[str, tuple[int, OpWork, str]] = {}
    measured: dict[tuple[Family, str], list[_Measured]] = {}
    columns = ("subject", "device", "configuration", "value")
    for subject, device, configuration, latency_s in frame.select(columns).iter_rows():
        if device not in devices:
            continue
        if configuration not in works:
            facts = json.loads(configuration)
            works[configuration] = len(works), work_from_json(facts["work"]), facts["set"]
        shape, work, subset = works[configuration]
        measured.setdefault((work.family, device), []).append(
            _Measured(subject, subset, shape, work, latency_s)
        )
    absent = set(devices) - {device for _, device in measured}
    if absent:
        raise InvalidData(f"source {source}: no op rows on {', '.join(sorted(absent))}")
    lead = _lead_fractions(measured)
    tables: dict[Family, list[OpTable]] = {}
    for (family, device), rows in sorted(measured.items()):
        if family in FEATURE_NAMES:
            tables.setdefault(family, []).append(_table(family, rows, device, devices[device], lead[device]))
    return {family: _joined(parts) for family, parts in tables.items()}


def dispatch_s(latencies_s: FloatArray) -> float:
    """Time of a call whose kernel is negligible: the low quantile of one op's latencies on one device."""
    return float(np.quantile(latencies_s, DISPATCH_QUANTILE))


def lead_fraction(moved: FloatArray, latencies_s: FloatArray) -> float:
    """Share of one elementwise op's dispatch that precedes its kernel.

    Args:
        moved: (n,) bytes of each call. latencies_s: (n,) times of the calls.

    Fits latency = lead + bytes * slope by relative least squares, where the kernel is well visible.
    """
    dispatch = dispatch_s(latencies_s)
    low, high = (ratio * dispatch for ratio in _LINEAR_RANGE)
    visible = (latencies_s > low) & (latencies_s < high)
    design = np.stack([np.ones(int(visible.sum())), moved[visible]], axis=1) / latencies_s[visible, None]
    scale = np.abs(design).max(axis=0)
    (lead, _), *_ = np.linalg.lstsq(design / scale, np.ones(len(design)), rcond=None)
    return float(np.clip(lead / scale[0] / dispatch, 0.0, 1.0))


def _lead_fractions(measured: Mapping[tuple[Family, str], Sequence[_Measured]]) -> dict[str, float]:
    """By device: the median over its elementwise ops."""
    found: dict[str, float] = {}
    for (family, device), rows in measured.items():
        if family is Family.ELEMENTWISE:
            fractions = [
                lead_fraction(
                    np.array([row.work.moved_bytes for row in group], dtype=np.float64),
                    np.array([row.latency_s for row in group]),
                )
                for group in _by_subject(rows).values()
            ]
            found[device] = float(np.median(fractions))
    return found


def _by_subject(rows: Sequence[_Measured]) -> dict[str, list[_Measured]]:
    groups: dict[str, list[_Measured]] = {}
    for row in rows:
        groups.setdefault(row.subject, []).append(row)
    return groups


def _table(family: Family, rows: Sequence[_Measured], name: str, device: DeviceSpec, lead: float) -> OpTable:
    kept: list[_Measured] = []
    kernel_s: list[float] = []
    for _, group in sorted(_by_subject(rows).items()):
        # The random shapes hold tiny calls, the transformer shapes hardly any.
        small = [row.latency_s for row in group if row.subset == "random"] or [row.latency_s for row in group]
        dispatch = dispatch_s(np.array(small))
        kept += group
        for row in group:
            visible = row.latency_s > _VISIBLE_RATIO * dispatch
            kernel_s.append(row.latency_s - lead * dispatch + KERNEL_START_S if visible else np.nan)
    works = [row.work for row in kept]
    total_s = floors(works, device).total_s
    seen = np.array(kernel_s)
    seen = np.where(np.isnan(seen), total_s, seen)
    subset = np.array([row.subset for row in kept])
    return OpTable(
        family=family,
        features=feature_matrix(family, works, device),
        target=reconciled(np.log(seen / total_s), subset, total_s > LONG_S),
        floor_s=total_s,
        device=np.full(len(kept), name),
        subset=subset,
        shape=np.array([row.shape for row in kept], dtype=np.intp),
        weight=_set_weights(subset),
    )


def reconciled(target: FloatArray, subset: TextArray, long: NDArray[np.bool_]) -> FloatArray:
    """(n,) log times over floors of one op family on one device, its two shape sets moved to one level.

    Their levels are the medians of their `long` kernels; sets that do not contradict each other stay.
    """
    names = np.unique(subset)
    levels = {
        name: np.median(target[long & (subset == name)]) for name in names if (long & (subset == name)).any()
    }
    if len(levels) != 2 or abs(np.subtract(*levels.values())) < np.log(_CONTRADICTION):
        return target
    middle = float(np.mean(list(levels.values())))
    return np.asarray(target + np.array([middle - levels[name] for name in subset.tolist()]))


def _set_weights(subset: TextArray) -> FloatArray:
    weight = np.zeros(len(subset))
    for name in np.unique(subset):
        chosen = subset == name
        weight[chosen] = 1.0 / max(_FULL_SET_ROWS, int(chosen.sum()))
    return weight


def _joined(parts: Sequence[OpTable]) -> OpTable:
    weight = np.concatenate([part.weight for part in parts])
    return OpTable(
        parts[0].family,
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.target for part in parts]),
        np.concatenate([part.floor_s for part in parts]),
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.subset for part in parts]),
        np.concatenate([part.shape for part in parts]),
        weight / weight.mean(),
    )
