"""Zeus (NSDI'23): epochs to a target by batch size, with seeds; what energy to a target is made of.

Batch sizes at which a run never reached a target have no row for it and no end: they are counted, not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from predictor.models.corpus.schema import Counted, canonical

SOURCE = "zeus-nsdi23-targets"


def read(folder: Path) -> Counted:
    """One `epochs_to_target` row per run and target."""
    import polars as pl

    raw = pl.read_csv(folder / "summary_train.csv", infer_schema_length=None)
    reached = raw.filter(pl.col("target_epoch").cast(pl.Float64, strict=False).is_finite())
    frame = reached.select(
        subject=pl.col("network"),
        subject_kind=pl.lit("model"),
        device=pl.lit("any"),
        configuration=pl.Series([_configuration(row) for row in reached.iter_rows(named=True)]),
        quantity=pl.lit("epochs_to_target"),
        value=pl.col("target_epoch").cast(pl.Float64),
        unit=pl.lit("1"),
        scope=pl.lit("host_wall"),
        source=pl.lit(SOURCE),
        device_group=pl.lit("any"),
        model_group=pl.col("network"),
    )
    return Counted(
        frame, {"available": raw.height, "used": reached.height, "never reached": raw.height - reached.height}
    )


def _configuration(row: Mapping[str, object]) -> str:
    return canonical(
        {
            "batch": row["batch_size"],
            "dataset": row["dataset"],
            "learning_rate": str(row["learning_rate"]),
            "optimizer": row["optimizer"],
            "run": row["run"],
            "target": row["target_metric"],
        }
    )
