"""Tables of jobs whose memory is known, each with the physical floor of every job: built once, then read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from predictor.models.corpus import bigscience_memory, finetune_memory, megatron_memory, memory_brackets
from predictor.models.corpus.build import Progress, read_source, silent, write_table

if TYPE_CHECKING:
    import polars as pl

_Make: TypeAlias = Callable[..., "pl.DataFrame"]

JOB_TABLES: Mapping[str, tuple[str, _Make]] = {
    megatron_memory.TABLE: (megatron_memory.FOLDER, megatron_memory.megatron_table),
    finetune_memory.TABLE: (finetune_memory.FOLDER, finetune_memory.finetune_table),
    memory_brackets.TABLE: (memory_brackets.FOLDER, memory_brackets.bracket_table),
    bigscience_memory.TABLE: (bigscience_memory.FOLDER, bigscience_memory.bigscience_table),
}
"""Folder of the raw source, and what makes the table from it, by name of the table."""


def write_job_table(name: str, root: Path, corpus: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """Builds one of JOB_TABLES and writes `corpus`/`name`.parquet.

    Raises InvalidData when rows or graphs are absent, OutputNotWritable when the file cannot be written.
    """
    folder, make = JOB_TABLES[name]
    table = make(root / folder, progress=progress)
    write_table(table, corpus, name)
    return table


def job_table(name: str, root: Path, corpus: Path, *, progress: Progress = silent) -> pl.DataFrame:
    """One of JOB_TABLES from the corpus, built into it where absent. Raises as `write_job_table`."""
    if (corpus / f"{name}.parquet").is_file():
        return read_source(corpus, name)
    return write_job_table(name, root, corpus, progress=progress)
