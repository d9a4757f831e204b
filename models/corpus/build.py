"""From raw files to Parquet: verify, clean, conform, write. The same files give the same bytes of rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.errors import InvalidData, OutputNotWritable, UnknownName
from predictor.models.corpus.manifest import Source, load_manifest
from predictor.models.corpus.schema import SCHEMA_VERSION, conform

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[str, int, int], None]
"""(what, done, total)."""

ENVIRONMENT_ROOT = "PERFCAST_DATA"
INDEX_NAME = "corpus.json"


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """One built source: row count and a hash of its rows."""

    source: str
    rows: int
    sha256: str


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

    Raises InvalidData (absent or altered file), UnknownName (source), OutputNotWritable. Each file appears
    whole or not at all.
    """
    folder = data_root(root)
    manifest = load_manifest()
    names = list(dict.fromkeys(only)) or list(manifest)
    for name in names:
        if name not in manifest:
            raise UnknownName.among("source", name, manifest)
    entries = []
    for done, name in enumerate(names):
        progress(name, done, len(names))
        entries.append(_build(manifest[name], folder, out))
    progress("corpus", len(names), len(names))
    kept = (
        [entry for entry in read_index(out) if entry.source not in names]
        if (out / INDEX_NAME).exists()
        else []
    )
    index = {entry.source: {"rows": entry.rows, "sha256": entry.sha256} for entry in [*kept, *entries]}
    text = json.dumps({"schema": SCHEMA_VERSION, "sources": index}, indent=1, sort_keys=True) + "\n"
    write_whole(out / INDEX_NAME, lambda path: path.write_text(text, encoding="utf-8"))
    if "gpumemnet" in names:
        from predictor.models.corpus.memory_features import write_memory_features

        write_memory_features(folder, out, progress=progress)
    return tuple(entries)


def read_index(corpus: Path) -> tuple[CorpusEntry, ...]:
    """What a built corpus holds. Raises InvalidData when `corpus` is none, or of another schema."""
    path = corpus / INDEX_NAME
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidData(f"{path}: cannot be read ({error}); run `perfcast corpus build` first") from None
    if index.get("schema") != SCHEMA_VERSION:
        raise InvalidData(
            f"{path}: schema {index.get('schema')!r}, expected {SCHEMA_VERSION!r}; build the corpus again"
        )
    return tuple(
        CorpusEntry(name, item["rows"], item["sha256"]) for name, item in sorted(index["sources"].items())
    )


def read_source(corpus: Path, source: str) -> pl.DataFrame:
    """The rows of one source. Raises InvalidData when it was not built."""
    import polars as pl

    path = corpus / f"{source}.parquet"
    if not path.is_file():
        raise InvalidData(f"{path}: not found; run `perfcast corpus build --source {source}` first")
    return pl.read_parquet(path)


def _build(source: Source, root: Path, out: Path) -> CorpusEntry:
    folder = source.verify(root)
    reader = import_module(f"predictor.models.corpus.{source.reader}")
    frame = conform(reader.read(folder), source.id)
    write_whole(out / f"{source.id}.parquet", lambda path: frame.write_parquet(path, compression="zstd"))
    return CorpusEntry(source.id, frame.height, _rows_sha256(frame))


def _rows_sha256(frame: pl.DataFrame) -> str:
    # Over the content, not the Parquet bytes, which change with the writer's version.
    return hashlib.sha256(frame.write_csv(float_scientific=True).encode()).hexdigest()


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Runs `write` on a path beside `path` and moves the result there. Raises OutputNotWritable."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        with suppress(OSError):
            partial.unlink()
