"""Programs of whole-model rows, kept in the corpus: the distinct works of each graph and job, by batch size.

One Parquet file per source and graph, `programs/<source>/<graph>.parquet`. Works are affine in the batch from
BASE_BATCH on: there two batch sizes stand for all; smaller batches are kept as they are. A file says which
jobs and batches it holds and under which version of the code that counts work; `build_programs` makes what
is absent or, with `refresh`, what another version made.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidData, PerfcastError
from predictor.features.dtype import Compute
from predictor.features.programs.work import Family, OpWork, Phase
from predictor.features.programs.work_table import (
    COMPUTES,
    FAMILIES,
    PHASES,
    SHAPES,
    WIDTH,
    WorkTable,
    between,
    work_table,
)
from predictor.files import code_version, write_whole
from predictor.models.corpus.build import Progress, silent
from predictor.models.corpus.whole_model import Job, WholeModelRow, source_graph
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import polars as pl

    from predictor.features.graph import Graph

FOLDER = "programs"
BASE_BATCH = 8
"""From here on two batches, this and twice it, give all others."""
_FEATURES = Path(__file__).resolve().parents[2] / "features"
_NUMBERS = tuple(f"n{column}" for column in range(WIDTH))


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """Distinct works of one program with their multiplicity (n,), and the model's parameter count."""

    works: WorkTable
    count: NDArray[np.float64]
    parameters: int


class StoredPrograms:
    """Programs of one source by job and batch size; any batch from BASE_BATCH on is made from two."""

    def __init__(self, programs: Mapping[tuple[Job, int], StoredProgram]) -> None:
        self._programs = programs

    def get(self, job: Job, batch: int) -> StoredProgram | None:
        """The program, or None where its graph could not be read or priced."""
        if batch < BASE_BATCH or (job, batch) in self._programs:
            return self._programs.get((job, batch))
        first = self._programs.get((job, BASE_BATCH))
        second = self._programs.get((job, 2 * BASE_BATCH))
        if first is None or second is None:
            return None
        works = between(first.works, second.works, batch / BASE_BATCH - 1.0)
        return StoredProgram(works, first.count, first.parameters)


def build_programs(
    source: str,
    rows: Iterable[WholeModelRow],
    root: Path,
    corpus: Path,
    *,
    refresh: bool = False,
    shard: tuple[int, int] = (0, 1),
    progress: Progress = silent,
) -> Mapping[str, str]:
    """Makes the files that are absent; returns graph -> why it has none.

    Args:
        rows: rows of `source`; they say which jobs and batches are wanted.
        root: raw sources. corpus: built corpus.
        refresh: also make again what another version of the feature code made.
        shard: (i, n): only every n-th graph from the i-th on, so that several processes can share the work.
    """
    wanted: dict[str, set[tuple[Job, int]]] = defaultdict(set)
    for row in rows:
        wanted[row.graph].update((row.job, batch) for batch in _base_batches(row.batch))
    version = code_version(_FEATURES)
    failed: dict[str, str] = {}
    names = sorted(wanted)[shard[0] :: shard[1]]
    for done, name in enumerate(names):
        progress(f"programs of {source}", done, len(names))
        path = _path(corpus, source, name)
        if _is_current(path, wanted[name], version if refresh else None):
            continue
        try:
            frame = _frame(source, root, name, sorted(wanted[name]), version)
        except PerfcastError as error:
            failed[name] = error.message
            continue
        write_whole(path, partial(_write, frame), make_folder=True)
    progress(f"programs of {source}", len(names), len(names))
    return failed


def _write(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path, compression="zstd")


def load_programs(source: str, corpus: Path, graphs: Iterable[str] | None = None) -> StoredPrograms:
    """All stored programs of a source, or those of some graphs. Raises InvalidData when it has none."""
    import polars as pl

    folder = corpus / FOLDER / source
    files = sorted(folder.glob("*.parquet"))
    if graphs is not None:
        chosen = {_path(corpus, source, name) for name in graphs}
        files = [path for path in files if path in chosen]
    if not files:
        raise InvalidData(f"{folder}: no programs there; run `perfcast corpus build --source {source}` first")
    # Files of before a shape got a further number lack its column: it was 0 then.
    frame = pl.concat([pl.read_parquet(path) for path in files], how="diagonal_relaxed")
    absent = [pl.lit(0, dtype=pl.Int64).alias(name) for name in _NUMBERS if name not in frame.columns]
    frame = frame.with_columns(absent).with_columns(pl.col(_NUMBERS).fill_null(0))
    return StoredPrograms(_programs(frame))


def _base_batches(batch: int) -> tuple[int, ...]:
    return (batch,) if batch < BASE_BATCH else (BASE_BATCH, 2 * BASE_BATCH)


def _path(corpus: Path, source: str, graph: str) -> Path:
    return corpus / FOLDER / source / f"{graph.replace(os.sep, '_')}.parquet"


_JOB = ("graph", "mode", "precision", "optimizer", "runtime", "layout", "release", "narrow_norms")


def _is_current(path: Path, wanted: set[tuple[Job, int]], version: str | None) -> bool:
    import polars as pl

    if not path.is_file():
        return False
    frame = pl.read_parquet(path)
    if not {*_JOB} <= {*frame.columns}:
        return False
    frame = frame.select(*_JOB, "batch", "version").unique()
    if version is not None and set(frame["version"]) != {version}:
        return False
    found = {(_job(cells), batch) for *cells, batch in frame.select(*_JOB, "batch").iter_rows()}
    return wanted <= found


def _job(cells: Iterable[Any]) -> Job:
    graph, mode, precision, optimizer, runtime, layout, release, narrow_norms = cells
    return Job(
        graph,
        Mode(mode),
        Precision(precision),
        Optimizer(optimizer),
        Runtime(runtime),
        Layout(layout),
        float(release),
        narrow_norms == str(True),
    )


def _frame(source: str, root: Path, name: str, wanted: list[tuple[Job, int]], version: str) -> pl.DataFrame:
    import polars as pl

    graphs: dict[tuple[int, Mode], Graph] = {}
    by_job: dict[Job, list[int]] = defaultdict(list)
    for job, batch in wanted:
        by_job[job].append(batch)
        if (batch, job.mode) not in graphs:
            graphs[batch, job.mode] = source_graph(source, root, name, batch, job.mode)
    parts = []
    for job, batches in by_job.items():
        programs = [_program(graphs[batch, job.mode], job) for batch in batches]
        affine = [i for i, batch in enumerate(batches) if batch >= BASE_BATCH]
        together = _distinct([programs[i][0] for i in affine]) if affine else ([], [])
        for i, batch in enumerate(batches):
            works, count = (
                (together[0][affine.index(i)], together[1]) if i in affine else _alone(programs[i][0])
            )
            parts.append(_part(job, batch, works, count, programs[i][1], version))
    return pl.concat(parts, how="vertical_relaxed")


def _program(graph: Graph, job: Job) -> tuple[list[OpWork], int]:
    from predictor.features.programs.program import build_program

    program = build_program(
        graph,
        mode=job.mode,
        precision=job.precision,
        optimizer=job.optimizer,
        runtime=job.runtime,
        layout=job.layout,
        release=job.release,
        narrow_norms=job.narrow_norms,
    )
    return [op.work for op in program.ops], program.parameter_count


def _alone(works: list[OpWork]) -> tuple[list[OpWork], list[int]]:
    (distinct,), count = _distinct([works])
    return distinct, count


def _distinct(programs: list[list[OpWork]]) -> tuple[list[list[OpWork]], list[int]]:
    """Works that differ at some batch size, in every batch size's own numbers, and how often each runs."""
    if len({len(works) for works in programs}) != 1:
        raise InvalidData("the number of ops changes with the batch size")
    found = Counter(zip(*programs, strict=True))
    return [list(works) for works in zip(*found, strict=True)], list(found.values())


def _part(
    job: Job, batch: int, works: list[OpWork], count: list[int], parameters: int, version: str
) -> pl.DataFrame:
    import polars as pl

    table = work_table(works)
    constants = {**{name: str(getattr(job, name)) for name in _JOB}, "batch": batch}
    constants |= {"parameters": parameters, "version": version}
    return pl.DataFrame(
        {
            "count": count,
            "kind": table.kind.tolist(),
            "family": [FAMILIES[code].value for code in table.family],
            "phase": [PHASES[code].value for code in table.phase],
            "compute": [COMPUTES[code].value for code in table.compute],
            "shape": [SHAPES[code].__name__ for code in table.shape],
            **{name: table.numbers[:, i].astype(np.int64) for i, name in enumerate(_NUMBERS)},
        }
    ).with_columns(pl.lit(value).alias(name) for name, value in constants.items())


def _programs(frame: pl.DataFrame) -> Mapping[tuple[Job, int], StoredProgram]:
    def codes(column: str, names: list[str]) -> NDArray[np.int16]:
        place = {name: code for code, name in enumerate(names)}
        return frame[column].replace_strict(place).to_numpy().astype(np.int16)

    table = WorkTable(
        kind=np.array(frame["kind"].to_list(), dtype=object),
        family=codes("family", [item.value for item in Family]),
        phase=codes("phase", [item.value for item in Phase]),
        compute=codes("compute", [item.value for item in Compute]),
        shape=codes("shape", [item.__name__ for item in SHAPES]),
        numbers=frame.select(_NUMBERS).to_numpy().astype(np.float64),
    )
    count = frame["count"].to_numpy().astype(np.float64)
    keys = frame.select(*_JOB, "batch", "parameters").with_row_index("row")
    groups = keys.group_by([*_JOB, "batch", "parameters"], maintain_order=True).agg("row")
    programs: dict[tuple[Job, int], StoredProgram] = {}
    for *cells, batch, parameters, rows in groups.iter_rows():
        index = np.array(rows, dtype=np.intp)
        programs[_job(cells), batch] = StoredProgram(table.take(index), count[index], parameters)
    return programs
