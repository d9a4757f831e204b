"""Zeus (NSDI'23): average board power and time of training epochs by batch size and software power limit.

One GPU each: V100 (limits 100-250 W, so the PCIe board; batches that need 32 GB), Quadro RTX 6000, P100.
Epochs contain data loading and the host's work, and no row states a precision: epoch times agree with FP32
without tensor cores (ResNet-50 trains 364 images/s on the V100). Use times only as ratios within one workload
and device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

DEVICES: Mapping[str, str] = {
    "v100": "v100-pcie-32gb",
    "rtx6000": "quadro-rtx-6000-24gb",
    "p100": "p100-pcie-16gb",
}
"""The publisher's names -> catalogue ids."""


def read(folder: Path) -> pl.DataFrame:
    """Two rows per run: `average_power` (gpu_board, W) and `epoch_time` (host_wall, s)."""
    import polars as pl

    keys = ("gpu", "dataset", "network", "batch_size", "optimizer", "power_limit")
    raw = pl.read_csv(folder / "power_all.csv").sort(*keys)
    common = raw.select(
        subject=pl.col("network"),
        subject_kind=pl.lit("model"),
        device=pl.col("gpu").replace_strict(DEVICES),
        configuration=pl.struct(keys[1], *keys[3:]).map_elements(_configuration, return_dtype=pl.String),
        source=pl.lit("zeus-nsdi23"),
        device_group=pl.col("gpu"),
        # Both BERT workloads run one network; they leave together.
        model_group=pl.col("network"),
    )
    power = common.with_columns(
        quantity=pl.lit("average_power"),
        unit=pl.lit("W"),
        scope=pl.lit("gpu_board"),
        value=raw["average_power"],
    )
    time = common.with_columns(
        quantity=pl.lit("epoch_time"),
        unit=pl.lit("s"),
        scope=pl.lit("host_wall"),
        value=raw["time_per_epoch"],
    )
    return pl.concat([power, time])


def _configuration(row: Mapping[str, object]) -> str:
    return canonical(
        {
            "batch": row["batch_size"],
            "dataset": row["dataset"],
            "mode": "train",
            "optimizer": row["optimizer"],
            "power_limit_w": row["power_limit"],
            "precision": "fp32",
        }
    )
