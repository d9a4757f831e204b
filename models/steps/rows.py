"""Whole-model rows as a training table: per timed iteration its measured time and the ops behind it.

Ops that together make up the smallest REST_FRACTION of an iteration's floor are one constant: they are most
of the ops and none of the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work_table import WorkTable, joined
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.programs import StoredProgram, StoredPrograms, load_programs
from predictor.models.corpus.whole_model import Job, WholeModelRow, reader, whole_model_rows
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.steps.features import (
    FEATURES,
    LATEST_VERSION,
    DeviceFacts,
    JobContext,
    aggregate_features,
    classes,
    device_facts,
    parts,
)
from predictor.models.steps.op_base import op_base
from predictor.models.steps.timed_kernels import timed_kernels

REST_FRACTION = 0.01
PARAMETER_TOLERANCE = 0.02
"""Of published parameter counts, where a reader states none of its own."""
_ROUNDING = 5000
_VERSION_COLUMN = FEATURES.index("version")
_SHARE_COLUMN = FEATURES.index("log_share")

TextArray = NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class AggregateTable:
    """r iterations and the n ops behind them.

    Attributes:
        rows: the measurements. source: (r,) whose they are. log_time: (r,) log seconds.
        launches: (r,) kernels that take the host's time. rest_s: (r,) floor of the ops that are not listed.
        row: (n,) which iteration an op is of, ascending.
        floor_s: (n,) floor of all runs of an op; parts: (n, 4) of all runs, as features.parts.
        log_learned: (n,) what the op level says, both as op_base. timed: (n,) ops that keep that time.
        class_code: (n,) index into CLASSES. features: (n, len(FEATURES)).
    """

    rows: tuple[WholeModelRow, ...]
    source: TextArray
    log_time: FloatArray
    launches: FloatArray
    rest_s: FloatArray
    row: NDArray[np.intp]
    floor_s: FloatArray
    parts: FloatArray
    log_learned: FloatArray
    timed: NDArray[np.bool_]
    class_code: NDArray[np.intp]
    features: NDArray[np.float32]
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: NDArray[np.bool_]) -> AggregateTable:
        """The chosen iterations, (r,) mask."""
        ops = chosen[self.row]
        number = np.cumsum(chosen) - 1
        return AggregateTable(
            tuple(row for row, keep in zip(self.rows, chosen, strict=True) if keep),
            self.source[chosen],
            self.log_time[chosen],
            self.launches[chosen],
            self.rest_s[chosen],
            number[self.row[ops]],
            self.floor_s[ops],
            self.parts[ops],
            self.log_learned[ops],
            self.timed[ops],
            self.class_code[ops],
            self.features[ops],
        )

    def text(self, name: str) -> TextArray:
        """(r,) a field of the rows as text."""
        return np.array([str(getattr(row, name)) for row in self.rows])


def joined_tables(tables: Sequence[AggregateTable]) -> AggregateTable:
    """All iterations of all tables, in order."""
    starts = np.cumsum([0, *(len(table) for table in tables)])
    arrays: dict[str, Any] = {
        item.name: np.concatenate([getattr(table, item.name) for table in tables])
        for item in fields(AggregateTable)
        if item.name not in ("rows", "row", "dropped")
    }
    row = np.concatenate([table.row + start for table, start in zip(tables, starts, strict=False)])
    return AggregateTable(tuple(r for table in tables for r in table.rows), row=row, **arrays)


def aggregate_table(
    source: str,
    corpus: Path,
    op_time: OpTimeModel,
    find_device: Callable[[str], DeviceSpec],
    *,
    keep: Callable[[WholeModelRow], bool] = lambda row: True,
    progress: Progress = silent,
) -> AggregateTable:
    """The table of one source in the corpus.

    Rows without a program, or whose graph has another parameter count than the publisher's, are left out and
    counted in `dropped`. Raises InvalidData: source or programs absent.
    """
    rows = [row for row in whole_model_rows(corpus, source) if keep(row)]
    programs = load_programs(source, corpus, {row.graph for row in rows})
    tolerance = getattr(reader(source), "PARAMETER_TOLERANCE", PARAMETER_TOLERANCE)
    usable, dropped = _usable(rows, programs, tolerance)
    groups: dict[tuple[str, JobContext], list[WholeModelRow]] = defaultdict(list)
    for row in usable:
        groups[row.device, job_context(row, versioned=False)].append(row)
    tables = []
    facts: dict[str, DeviceFacts] = {}
    for done, ((name, context), members) in enumerate(groups.items()):
        progress(f"ops of {source}", done, len(groups))
        device = find_device(name)
        known = facts.setdefault(name, device_facts(device))
        tables.append(_group(source, members, context, programs, op_time, device, known))
    progress(f"ops of {source}", len(groups), len(groups))
    return replace(joined_tables(tables), dropped=dropped)


def job_context(row: WholeModelRow, *, versioned: bool = True) -> JobContext:
    """How a row's job ran; without its framework version for what does not depend on it."""
    version = row.framework_version or LATEST_VERSION
    return JobContext(
        row.mode, row.precision, row.runtime, row.layout, version if versioned else LATEST_VERSION
    )


def _usable(
    rows: Iterable[WholeModelRow], programs: StoredPrograms, tolerance: float
) -> tuple[list[WholeModelRow], Mapping[str, int]]:
    usable = []
    dropped: dict[str, int] = defaultdict(int)
    for row in rows:
        program = programs.get(row.job, row.batch)
        if program is None:
            dropped["no program"] += 1
        elif row.parameters and abs(row.parameters - program.parameters) > (
            _ROUNDING + tolerance * program.parameters
        ):
            dropped["another parameter count than the graph"] += 1
        else:
            usable.append(row)
    return usable, dict(dropped)


@dataclass(frozen=True, slots=True)
class _Ops:
    """Ops of one program, priced: everything but the framework version."""

    launches: float
    rest_s: float
    arrays: Mapping[str, NDArray[Any]]


def _group(
    source: str,
    rows: Sequence[WholeModelRow],
    context: JobContext,
    programs: StoredPrograms,
    op_time: OpTimeModel,
    device: DeviceSpec,
    facts: DeviceFacts,
) -> AggregateTable:
    """Rows of one device that run alike: priced together, each program once."""
    found: dict[tuple[Job, int], StoredProgram] = {}
    for row in rows:
        program = programs.get(row.job, row.batch)
        if program is not None:
            found[row.job, row.batch] = program
    works = joined([program.works for program in found.values()])
    count = np.concatenate([program.count for program in found.values()])
    sizes = np.array([len(program.works) for program in found.values()])
    which = np.repeat(np.arange(len(sizes)), sizes)
    priced = _priced(works, count, which, context, op_time, device, facts)
    place = {key: i for i, key in enumerate(found)}
    ops = [priced[place[row.job, row.batch]] for row in rows]
    lengths = [len(item.arrays["floor_s"]) for item in ops]
    arrays: dict[str, Any] = {
        name: np.concatenate([item.arrays[name] for item in ops]) for name in ops[0].arrays
    }
    number = np.repeat(np.arange(len(rows)), lengths)
    versions = np.array([row.framework_version or LATEST_VERSION for row in rows], dtype=np.float32)
    arrays["features"][:, _VERSION_COLUMN] = versions[number]
    return AggregateTable(
        rows=tuple(rows),
        source=np.full(len(rows), source),
        log_time=np.log([row.measured_s for row in rows]),
        launches=np.array([item.launches for item in ops]),
        rest_s=np.array([item.rest_s for item in ops]),
        row=number,
        **arrays,
    )


def _priced(
    works: WorkTable,
    count: FloatArray,
    which: NDArray[np.intp],
    context: JobContext,
    op_time: OpTimeModel,
    device: DeviceSpec,
    facts: DeviceFacts,
) -> list[_Ops]:
    priced = works.works()
    costs = op_time.costs(priced, device)
    timed = timed_kernels(priced, costs.unmeasured, device)
    floor_s = costs.floor_s * count
    total = np.asarray(np.bincount(which, weights=floor_s), dtype=np.float64)
    launches = np.bincount(which, weights=[work.host_launches for work in priced] * count)
    kept = _not_rest(floor_s, which, total) & (costs.floor_s > 0)
    rest = np.bincount(which[~kept], weights=floor_s[~kept], minlength=len(total))
    listed, number = works.take(kept), which[kept]
    code = classes(listed)
    base = op_base(listed, costs.floor_s[kept], costs.time_s[kept], costs.unmeasured[kept], facts)
    log_share = np.log(floor_s[kept] / total[number])
    arrays: dict[str, NDArray[Any]] = {
        "floor_s": base.floor_s * count[kept],
        "parts": parts(listed, facts) * count[kept, None],
        "log_learned": base.log_learned,
        "timed": timed[kept],
        "class_code": code,
        "features": aggregate_features(listed, log_share, base.log_learned, facts, context, code),
    }
    ends = np.cumsum(np.bincount(number, minlength=len(total)))
    return [
        _Ops(
            float(launches[i]),
            float(rest[i]),
            {name: values[start:end] for name, values in arrays.items()},
        )
        for i, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]


def _not_rest(floor_s: FloatArray, which: NDArray[np.intp], total: FloatArray) -> NDArray[np.bool_]:
    """(n,) whether an op is among those that make up all but the smallest REST_FRACTION of its iteration."""
    order = np.lexsort((floor_s, which))
    running = np.cumsum(floor_s[order])
    before = np.concatenate([[0.0], np.cumsum(total)[:-1]])
    share = (running - before[which[order]]) / total[which[order]]
    kept = np.zeros(len(floor_s), dtype=np.bool_)
    kept[order] = share > REST_FRACTION
    return kept
