"""Neurosurgeon reimplementation: latencies of single layers at an edge and a cloud that nobody named.

The publisher says `a MacBook CPU` and `a GPU server`: nothing can be learned from a device without numbers,
so all rows are counted and none is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.schema import COLUMNS, Counted

if TYPE_CHECKING:
    import polars as pl

SOURCE = "neurosurgeon-layers"


def read(folder: Path) -> Counted:
    """No rows, and how many there were."""
    import polars as pl

    raw: pl.DataFrame = pl.read_csv(folder / "layers.csv.gz", infer_schema_length=None)
    empty = pl.DataFrame(schema={name: getattr(pl, kind) for name, kind in COLUMNS.items()})
    return Counted(empty, {"available": raw.height, "device not named": raw.height})
