"""Measured kernels as iterations of one op: they hold the aggregate model to what single ops take.

A sample of the operator sources, per device, op family and shape set; only kernels that their call does not
hide. In the loss such a row's one op has share 1 (predictor.models.steps.boosting). Contradicting shape sets
meet half-way, as they do where the op level is trained (predictor.models.ops.op_rows).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from predictor.features.dtype import Compute
from predictor.features.programs.work import Family, OpWork
from predictor.features.programs.work_json import work_from_json
from predictor.features.programs.work_table import work_table
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceKind, DeviceSpec
from predictor.models.corpus.build import Progress, missing_sources, read_source, silent
from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.whole_model import WholeModelRow
from predictor.models.ops.floor import KERNEL_START_S
from predictor.models.ops.op_rows import LONG_S, dispatch_s, lead_fraction, reconciled
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.features import (
    CLASSES,
    FEATURES,
    LATEST_VERSION,
    JobContext,
    aggregate_features,
    classes,
    device_facts,
    parts,
)
from predictor.models.steps.op_base import op_base
from predictor.models.steps.rows import AggregateTable, joined_tables
from predictor.models.steps.timed_kernels import timed_kernels
from predictor.types import Mode, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

SHAPE_SETS = "neusight"
"""Source whose sets are shapes of the same calls; another's are kinds of calls."""
SOURCES = (SHAPE_SETS, "aiconfigurator-ops")
FAMILY = "kernel"
"""Model family of the rows: they are no model, and leave with none."""
_SAMPLE = 150
"""Rows per device, op family and shape set."""
_VISIBLE = 2.0
_SHORTEST_ATTENTION_S = 1e-4
"""Floor below which attention says nothing of networks: it waits, on few blocks, for four to six times its
floor, and most samples are so small. The op level knows how long; the step model has one share for all."""
_PRECISIONS: Mapping[Compute, Precision] = {
    Compute.FP32: Precision.FP32,
    Compute.TF32: Precision.TF32,
    Compute.FP16: Precision.FP16,
    Compute.BF16: Precision.BF16,
}


@dataclass(frozen=True, slots=True)
class _Kernel:
    work: OpWork
    subset: str
    seconds: float


def kernel_table(
    corpus: Path,
    op_time: OpTimeModel,
    find_device: Callable[[str], DeviceSpec],
    seed: int,
    *,
    keep: Callable[[str], bool] = lambda device: True,
    progress: Progress = silent,
) -> AggregateTable | None:
    """Iterations of one op on the devices (catalogue ids) that `keep` accepts; None where there are none."""
    tables = []
    for source in SOURCES:
        if missing_sources(corpus, (source,)):
            continue
        for done, (name, kernels) in enumerate(sorted(_sampled(corpus, source, keep, seed).items())):
            progress(f"kernels of {source}", done, 0)
            device = find_device(name)
            if device.kind is DeviceKind.GPU:
                tables.append(_table(source, name, device, kernels, op_time))
    return _without_short_attention(joined_tables(tables)) if tables else None


def _without_short_attention(table: AggregateTable) -> AggregateTable:
    is_attention = table.class_code == CLASSES.index("attention")
    return table.take(~is_attention | (table.floor_s > _SHORTEST_ATTENTION_S))


def _sampled(
    corpus: Path, source: str, keep: Callable[[str], bool], seed: int
) -> Mapping[str, Sequence[_Kernel]]:
    """By device."""
    import polars as pl

    # Rows of whole layers (experts, states) are no ops of these families.
    families = [family.value for family in Family]
    frame = read_source(corpus, source).filter(
        (pl.col("quantity") == "latency") & pl.col("model_group").is_in(families)
    )
    random = np.random.default_rng(seed)
    found: dict[str, list[_Kernel]] = defaultdict(list)
    for (device,), rows in sorted(frame.group_by("device")):
        if keep(str(device)):
            found[str(device)] = _of_device(rows, random)
    return found


def _of_device(rows: pl.DataFrame, random: np.random.Generator) -> list[_Kernel]:
    """A sample of one device's visible kernels, without the host's part of their calls."""
    import polars as pl

    rows = rows.sort("subject", "configuration", "value")
    hidden = rows["scope"] == "kernel_and_dispatch"
    lead = _lead_fraction(rows.filter(hidden & (pl.Series(rows["model_group"]) == "elementwise")))
    cells: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for _, part in sorted(rows.group_by("subject", "scope"), key=lambda pair: str(pair[0])):
        seconds = part["value"].to_numpy()
        if part["scope"][0] == "kernel_and_dispatch" and len(part) > 1 / 0.005:
            dispatch = dispatch_s(seconds)
            seen = seconds > _VISIBLE * dispatch
            seconds = seconds - lead * dispatch + KERNEL_START_S
            part, seconds = part.filter(seen), seconds[seen]
        sets = part["configuration"].str.json_path_match("$.set")
        keys = zip(part["model_group"], sets, strict=True)
        for key, facts, second in zip(keys, part["configuration"], seconds, strict=True):
            cells[key].append((facts, float(second)))
    found: list[_Kernel] = []
    for (_, subset), members in sorted(cells.items()):
        for i in np.sort(random.permutation(len(members))[:_SAMPLE]):
            facts, second = members[i]
            work = work_from_json(json.loads(facts)["work"])
            if work.compute in _PRECISIONS:
                found.append(_Kernel(work, subset, second))
    return found


def _lead_fraction(rows: pl.DataFrame) -> float:
    """Share of a call's dispatch that precedes its kernel (predictor.models.ops.op_rows); 0 where unknown."""
    found = []
    for _, part in rows.group_by("subject"):
        works = [json.loads(text)["work"] for text in part["configuration"]]
        moved = np.array([work["read_bytes"] + work["write_bytes"] for work in works], dtype=np.float64)
        if len(part) > 1 / 0.005:
            found.append(lead_fraction(moved, part["value"].to_numpy()))
    return float(np.median(found)) if found else 0.0


def _table(
    source: str, name: str, device: DeviceSpec, kernels: Sequence[_Kernel], op_time: OpTimeModel
) -> AggregateTable:
    works = [kernel.work for kernel in kernels]
    costs = op_time.costs(works, device)
    table, facts = work_table(works), device_facts(device)
    code = classes(table)
    base = op_base(table, costs.floor_s, costs.time_s, costs.unmeasured, facts)
    nothing = np.zeros(len(works))
    # Precision is the only part of the context in which kernels differ.
    features = np.zeros((len(works), len(FEATURES)), dtype=np.float32)
    for precision in sorted({_PRECISIONS[work.compute] for work in works}):
        chosen = np.array([_PRECISIONS[work.compute] is precision for work in works])
        features[chosen] = aggregate_features(
            table.take(chosen),
            nothing[chosen],
            base.log_learned[chosen],
            facts,
            JobContext(Mode.INFER, precision, Runtime.EAGER),
            code[chosen],
        )
    seconds = np.array([kernel.seconds for kernel in kernels])
    if source == SHAPE_SETS:
        seconds = _reconciled_s(kernels, seconds, costs.floor_s)
    rows = tuple(
        WholeModelRow(
            graph=FAMILY,
            model=f"{FAMILY}-{kernel.work.family.value}",
            family=FAMILY,
            device=name,
            device_group=chip_of(name),
            batch=1,
            measured_s=kernel.seconds,
            mode=Mode.INFER,
            precision=_PRECISIONS[kernel.work.compute],
            launch="graph",
            framework_version=LATEST_VERSION,
        )
        for kernel in kernels
    )
    return AggregateTable(
        rows=rows,
        source=np.full(len(rows), source),
        log_time=np.log(seconds),
        launches=nothing,
        rest_s=nothing,
        row=np.arange(len(rows), dtype=np.intp),
        floor_s=base.floor_s,
        parts=parts(table, facts),
        log_learned=base.log_learned,
        timed=timed_kernels(works, costs.unmeasured, device),
        class_code=code,
        features=features,
    )


def _reconciled_s(kernels: Sequence[_Kernel], seconds: FloatArray, floor_s: FloatArray) -> FloatArray:
    """(n,) times, each family's two shape sets moved to one level where they contradict each other."""
    target = np.log(seconds / floor_s)
    families = np.array([kernel.work.family.value for kernel in kernels])
    subsets = np.array([kernel.subset for kernel in kernels])
    for family in np.unique(families):
        of = families == family
        target[of] = reconciled(target[of], subsets[of], floor_s[of] > LONG_S)
    return np.asarray(floor_s * np.exp(target), dtype=np.float64)
