"""Operator measurements as training tables: one per op family, features and target beside their groups.

A measured latency is dispatch + kernel. Dispatch is a constant of a device and a family here, the 0.5 %
quantile of its latencies (its smallest calls are all dispatch); rows barely above it say nothing about the
kernel and are dropped. The target is log((latency - dispatch + kernel start) / floor).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData
from predictor.features.rows import FEATURE_NAMES, FeatureMatrix, feature_matrix
from predictor.features.tiles import FloatArray
from predictor.features.work import Family, OpWork
from predictor.features.work_json import work_from_json
from predictor.hardware.spec import DeviceSpec
from predictor.models.corpus.build import read_source
from predictor.models.floor import KERNEL_START_S, floors

DISPATCH_QUANTILE = 0.005
# A kernel must last a fifth of its dispatch to be seen through it.
_VISIBLE_RATIO = 1.2
# A set of fewer rows than this counts by its rows, a larger one counts as one.
_FULL_SET_ROWS = 200

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
    tables: dict[Family, list[OpTable]] = {}
    for (family, device), rows in sorted(measured.items()):
        if family in FEATURE_NAMES:
            tables.setdefault(family, []).append(_table(family, rows, device, devices[device]))
    return {family: _joined(parts) for family, parts in tables.items()}


def dispatch_s(subjects: Sequence[str], latencies_s: FloatArray) -> float:
    """Dispatch of one call: the smallest, over the family's ops, of the low quantile of latencies."""
    names = np.array(subjects)
    return min(float(np.quantile(latencies_s[names == name], DISPATCH_QUANTILE)) for name in np.unique(names))


def _table(family: Family, rows: Sequence[_Measured], name: str, device: DeviceSpec) -> OpTable:
    random = [row for row in rows if row.subset == "random"] or list(rows)
    floor_of_calls = dispatch_s([row.subject for row in random], np.array([row.latency_s for row in random]))
    kept = [row for row in rows if row.latency_s > _VISIBLE_RATIO * floor_of_calls]
    works = [row.work for row in kept]
    kernel_s = np.array([row.latency_s for row in kept]) - floor_of_calls + KERNEL_START_S
    total_s = floors(works, device).total_s
    subset = np.array([row.subset for row in kept])
    return OpTable(
        family=family,
        features=feature_matrix(family, works, device),
        target=np.log(kernel_s / total_s),
        floor_s=total_s,
        device=np.full(len(kept), name),
        subset=subset,
        shape=np.array([row.shape for row in kept], dtype=np.intp),
        weight=_set_weights(subset),
    )


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
