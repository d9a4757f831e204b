"""Kernel measurements as training tables: features and target of each kernel model beside their groups.

Rows of scope `kernel` hold no host; those of `kernel_and_dispatch` were kept only where the kernel lasts at
least twice the dispatch, so it hid the host. Both are the kernel's time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import OpWork
from predictor.features.programs.work_json import work_from_json
from predictor.features.tables.kernel_facts import Run
from predictor.features.tables.kernel_rows import KernelModel, kernel_model, kernel_rows
from predictor.features.tables.rows import FeatureMatrix
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.corpus.build import read_source

TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Rows of one model, each array (n, ...).

    Attributes:
        features: columns of kernel_rows.NAMES. target: log(measured / base). base_s: the bases.
        device: catalogue ids; chip: what leaves together with them when a device is held out.
        subset: which of the source's tables; library: stack and kernel that ran.
        compute: arithmetic; shape: equal works have equal numbers, whatever ran them where.
    """

    model: KernelModel
    features: FeatureMatrix
    target: FloatArray
    base_s: FloatArray
    device: TextArray
    chip: TextArray
    subset: TextArray
    library: TextArray
    compute: TextArray
    shape: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.target)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> KernelTable:
        """The chosen rows."""
        return KernelTable(
            self.model,
            self.features[rows],
            self.target[rows],
            self.base_s[rows],
            self.device[rows],
            self.chip[rows],
            self.subset[rows],
            self.library[rows],
            self.compute[rows],
            self.shape[rows],
        )


# Chips of one generation that differ in memory or clock only: they leave together.
TWINS: Mapping[str, str] = {
    "h100": "hopper",
    "h200": "hopper",
    "b200": "blackwell",
    "gb200superchip": "blackwell",
}


@dataclass(slots=True)
class _Collected:
    works: list[OpWork]
    runs: list[Run]
    latency_s: list[float]
    subset: list[str]
    library: list[str]
    shape: list[int]
    chip: str


def load_kernel_tables(
    corpus: Path, sources: Sequence[str], devices: Mapping[str, DeviceSpec]
) -> Mapping[KernelModel, KernelTable]:
    """Tables of every kernel model that the sources measured on `devices` (catalogue ids), in a fixed order.

    Raises InvalidData when the corpus lacks a source.
    """
    found: dict[tuple[KernelModel, str], _Collected] = {}
    parsed: dict[str, tuple[OpWork, Run, str, int]] = {}
    shapes: dict[OpWork, int] = {}
    columns = ("device", "configuration", "value", "device_group")
    for device, configuration, latency_s, chip in (
        row for source in sources for row in read_source(corpus, source).select(columns).iter_rows()
    ):
        if device not in devices:
            continue
        if configuration not in parsed:
            facts = json.loads(configuration)
            work = work_from_json(facts["work"])
            run = Run(
                facts["stack"], facts["kernel"], facts["copies"], facts["stores"], facts.get("skew"),
                facts.get("ranks", 1),
            )  # fmt: skip
            parsed[configuration] = work, run, facts["set"], shapes.setdefault(work, len(shapes))
        work, run, subset, shape = parsed[configuration]
        model = kernel_model(work, devices[device])
        if model is None:
            continue
        rows = found.setdefault((model, device), _Collected([], [], [], [], [], [], chip))
        rows.works.append(work)
        rows.runs.append(run)
        rows.latency_s.append(latency_s)
        rows.subset.append(subset)
        rows.library.append(f"{run.stack}/{run.kernel}")
        rows.shape.append(shape)
    tables: dict[KernelModel, list[KernelTable]] = {}
    for (model, device), rows in sorted(found.items()):
        tables.setdefault(model, []).append(_table(model, device, devices[device], rows))
    return {model: joined(parts) for model, parts in tables.items()}


def _table(model: KernelModel, name: str, device: DeviceSpec, rows: _Collected) -> KernelTable:
    made = kernel_rows(model, rows.works, device, rows.runs)
    count = len(rows.works)
    return KernelTable(
        model=model,
        features=made.features,
        target=np.log(np.array(rows.latency_s) / made.base_s),
        base_s=made.base_s,
        device=np.full(count, name),
        chip=np.full(count, TWINS.get(rows.chip, rows.chip)),
        subset=np.array(rows.subset),
        library=np.array(rows.library),
        compute=np.array([work.compute.value for work in rows.works]),
        shape=np.array(rows.shape, dtype=np.intp),
    )


def joined(parts: list[KernelTable]) -> KernelTable:
    """All rows of all parts, in order."""
    return KernelTable(
        parts[0].model,
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in (
                "features", "target", "base_s", "device", "chip", "subset", "library", "compute", "shape",
            )
        ),
    )  # fmt: skip
