"""From raw files to Parquet: verify, clean, conform, write. The same files give the same bytes of rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import InvalidData, UnknownName
from predictor.files import write_whole
from predictor.models.corpus.manifest import Source, load_manifest
from predictor.models.corpus.schema import SCHEMA_VERSION, Counted, conform

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[str, int, int], None]
"""(what, done, total)."""

ENVIRONMENT_ROOT = "PERFCAST_DATA"
INDEX_NAME = "corpus.json"

BUILT_WITH: Mapping[str, str] = {
    "memory_features": "gpumemnet",
    "megatron_memory": "gpumemnet",
    "finetune_memory": "gpumemnet",
}
"""Table that is no source -> the source it is built with."""


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """One built source: row count, hash of its rows, and what became of all rows where its reader counts."""

    source: str
    rows: int
    sha256: str
    counts: Mapping[str, int] = field(default_factory=dict)


def data_root(root: Path | None = None) -> Path:
    """The folder with the raw sources: `root`, else the environment's PERFCAST_DATA.

    Raises InvalidData when neither names a folder.
    """
    chosen = root or (Path(os.environ[ENVIRONMENT_ROOT]) if os.environ.get(ENVIRONMENT_ROOT) else None)
    if chosen is None:
        raise InvalidData(f"no folder with raw measurements: give --root DIR or set {ENVIRONMENT_ROOT}")
    if not chosen.is_dir():
        raise InvalidData(
            f"{chosen}: not a folder; expected one that holds the sources, e.g. {chosen}/neusight"
        )
    return chosen


def build_corpus(
    root: Path | None, out: Path, *, only: Iterable[str] = (), progress: Progress = silent
) -> tuple[CorpusEntry, ...]:
    """Writes `out`/<source>.parquet for every source (or those in `only`) and the index `out`/corpus.json.

    Returns what it built. Every raw file is checked before the first source is built. Each file appears whole
    or not at all, and the index names only sources that are complete, whenever the build is interrupted.
    Raises InvalidData (absent or altered file), UnknownName (source), OutputNotWritable.
    """
    folder = data_root(root)
    manifest = load_manifest()
    names = list(dict.fromkeys(only)) or list(manifest)
    for name in names:
        if name not in manifest:
            raise UnknownName.among("source", name, manifest)
    for name in names:
        manifest[name].verify(folder)
    built = _entries_to_keep(out)
    for done, name in enumerate(names):
        progress(name, done, len(names))
        if built.pop(name, None) is not None:
            _write_index(out, built)
        built[name] = _build(manifest[name], folder, out, progress)
        _write_index(out, built)
    progress("corpus", len(names), len(names))
    return tuple(built[name] for name in names)


def _entries_to_keep(corpus: Path) -> dict[str, CorpusEntry]:
    # What cannot be read, or is of another schema, is built anew.
    with suppress(InvalidData):
        return {entry.source: entry for entry in read_index(corpus)}
    return {}


def _write_index(corpus: Path, entries: Mapping[str, CorpusEntry]) -> None:
    index = {
        name: {"rows": entry.rows, "sha256": entry.sha256}
        | ({"counts": dict(entry.counts)} if entry.counts else {})
        for name, entry in entries.items()
    }
    text = json.dumps({"schema": SCHEMA_VERSION, "sources": index}, indent=1, sort_keys=True) + "\n"
    write_whole(corpus / INDEX_NAME, lambda path: path.write_text(text, encoding="utf-8"), make_folder=True)


def read_index(corpus: Path) -> tuple[CorpusEntry, ...]:
    """What a built corpus holds. Raises InvalidData when `corpus` is none, or of another schema."""
    path = corpus / INDEX_NAME
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidData(f"{corpus}: no corpus there; run `perfcast corpus build` first") from None
    except (OSError, ValueError) as error:
        raise InvalidData(f"{path}: cannot be read ({error}); build the corpus again") from None
    schema = index.get("schema") if isinstance(index, dict) else None
    if schema != SCHEMA_VERSION:
        raise InvalidData(f"{path}: schema {schema!r}, expected {SCHEMA_VERSION!r}; build the corpus again")
    return tuple(
        CorpusEntry(name, item["rows"], item["sha256"], item.get("counts", {}))
        for name, item in sorted(index["sources"].items())
    )


def missing_sources(corpus: Path, sources: Iterable[str]) -> list[str]:
    """Which of `sources` a folder does not hold; all of them when it is no corpus."""
    built = _entries_to_keep(corpus)
    return [name for name in sources if name not in built]


def read_source(corpus: Path, name: str) -> pl.DataFrame:
    """The rows of one source, or of a table that is built with one. Raises InvalidData: absent, damaged."""
    import polars as pl

    path = corpus / f"{name}.parquet"
    remedy = f"run `perfcast corpus build --source {BUILT_WITH.get(name, name)}`"
    if not path.is_file():
        raise InvalidData(f"{path}: not found; {remedy} first")
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InvalidData(f"{path}: cannot be read ({error}); {remedy} again") from None


def write_table(frame: pl.DataFrame, corpus: Path, name: str) -> None:
    """Writes what `read_source` reads. Raises OutputNotWritable."""
    path = corpus / f"{name}.parquet"
    write_whole(path, lambda partial: frame.write_parquet(partial, compression="zstd"), make_folder=True)


def _build(source: Source, root: Path, out: Path, progress: Progress) -> CorpusEntry:
    reader = import_module(f"predictor.models.corpus.{source.reader}")
    found = reader.read(source.folder(root))
    counts = found.counts if isinstance(found, Counted) else {}
    frame = conform(found.frame if isinstance(found, Counted) else found, source.id)
    write_table(frame, out, source.id)
    if source.id in BUILT_WITH.values():
        from predictor.models.corpus.memory_features import write_memory_features

        write_memory_features(root, out, progress=progress)
        _write_plan_memory(root, out, progress)
    from predictor.models.corpus.whole_model import READERS, whole_model_rows

    if source.id in READERS:
        from predictor.models.corpus.programs import build_programs

        # A build is today's: programs of an older version of the feature code are made again.
        rows = whole_model_rows(out, source.id)
        build_programs(source.id, rows, root, out, refresh=True, progress=progress)
    return CorpusEntry(source.id, frame.height, _rows_sha256(frame), counts)


def _write_plan_memory(root: Path, out: Path, progress: Progress) -> None:
    """Tables of jobs under plans and of bounds, from the folders that are there."""
    from predictor.models.corpus import finetune_memory, megatron_memory, memory_brackets
    from predictor.models.corpus.job_tables import write_job_table

    for source in (megatron_memory, finetune_memory, memory_brackets):
        if (root / source.FOLDER).is_dir():
            write_job_table(source.TABLE, root, out, progress=progress)


def _rows_sha256(frame: pl.DataFrame) -> str:
    # Over the content, not the Parquet bytes, which change with the writer's version.
    return hashlib.sha256(frame.write_csv(float_scientific=True).encode()).hexdigest()
