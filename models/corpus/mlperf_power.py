"""MLPerf Training v4.0 power logs: mean input power of eight-H100 nodes over whole runs.

The AC meter's runs only: the DC ones are the same runs at another point. Node logs that are copies of each
other within a run count once. One row per run, the mean over its distinct nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "mlperf-training-power"
DEVICE = "h100-sxm-80gb"
DEVICES_PER_NODE = 8


def read(folder: Path) -> pl.DataFrame:
    """One `average_power` row (node_ac, W per node) per run."""
    import polars as pl

    raw = pl.read_csv(folder / "run_power_summary.csv").filter(
        pl.col("unit").str.starts_with("node_"),
        pl.col("org").str.contains("ac"),
        pl.col("status") == "success",
    )
    distinct = raw.unique(["system", "benchmark", "run", "mean_power_W"]).filter(pl.col("mean_power_W") > 0)
    keys = ["system", "benchmark", "run"]
    runs = distinct.group_by(keys).agg(
        pl.col("mean_power_W").mean(),
        pl.col("run_seconds").first(),
        pl.col("global_batch_size").first(),
        pl.len().alias("node_logs"),
    )
    return runs.sort(keys).select(
        subject=pl.col("benchmark"),
        subject_kind=pl.lit("model"),
        device=pl.lit(DEVICE),
        configuration=pl.struct(pl.all()).map_elements(_configuration, return_dtype=pl.String),
        quantity=pl.lit("average_power"),
        value=pl.col("mean_power_W"),
        unit=pl.lit("W"),
        scope=pl.lit("node_ac"),
        source=pl.lit(SOURCE),
        device_group=pl.lit("h100"),
        model_group=pl.col("benchmark"),
    )


def _configuration(row: dict[str, object]) -> str:
    return canonical(
        {
            "batch": row["global_batch_size"],
            "devices_per_node": DEVICES_PER_NODE,
            "mode": "train",
            "node_logs": row["node_logs"],
            "nodes": int(str(row["system"]).partition("x")[0]),
            "run": str(row["run"]),
            "run_s": row["run_seconds"],
        }
    )
