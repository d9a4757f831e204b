"""GAISSA (SEAA 2023): average board power of TensorFlow training of five image classifiers at batch 32.

Images are 128 x 128: the published GFLOPs per image match that size for all five networks (ResNet-50 v1 at
224 has 7.73 GFLOP, times (128/224)^2 = 2.52, the published number); MobileNetV2's 0.064 is width 0.5.
VGG-16's 10.028770304 is, to the FLOP, convolutions, biases, pools, a mean over positions and one output: no
dense layers. TensorFlow multiplies in TF32 on the RTX 3090 by default. About 30 runs per (network, card)
stay single rows. Card names carry the limit in W.

"Total seen images" counts validation too: it is 33,952 an epoch in every run, the 743 full batches of 23,807
training images and the 318 of 10,203 validation images. Three steps of ten are forward passes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

DEVICES: Mapping[str, str] = {
    "NVIDIA GeForce RTX 3090": "rtx-3090-24gb",
    "NVIDIA GeForce GTX 750 Ti": "gtx-750-ti-2gb",
}
"""The publisher's names -> catalogue ids."""

IMAGE_SIZE = 128
TRAINING_STEPS, VALIDATION_STEPS = 743, 318
"""Of an epoch, in batches of 32."""
_PRECISION: Mapping[str, str] = {"rtx-3090-24gb": "tf32", "gtx-750-ti-2gb": "fp32"}
_CHIP: Mapping[str, str] = {"rtx-3090-24gb": "rtx3090", "gtx-750-ti-2gb": "gtx750ti"}


def read(folder: Path) -> pl.DataFrame:
    """Three rows per run: mean W and J (gpu_board), share of time with a kernel (device_monitor)."""
    import polars as pl

    raw = pl.read_csv(folder / "dl-training-energy-consumption.csv").sort("gpu model", "architecture", "run")
    device = pl.col("gpu model").replace_strict(DEVICES)
    common = raw.select(
        subject=pl.col("architecture"),
        subject_kind=pl.lit("model"),
        device=device,
        configuration=pl.struct(
            device=device,
            batch="batch size",
            limit="max power limit (W)",
            images="total seen images",
            run="run",
        ).map_elements(_configuration, return_dtype=pl.String),
        source=pl.lit("gaissa-seaa2023-training"),
        device_group=device.replace_strict(_CHIP),
        model_group=pl.col("architecture"),
    )
    power = common.with_columns(
        quantity=pl.lit("average_power"),
        unit=pl.lit("W"),
        scope=pl.lit("gpu_board"),
        value=raw["average power draw (W)"],
    )
    energy = common.with_columns(
        quantity=pl.lit("energy"),
        unit=pl.lit("J"),
        scope=pl.lit("gpu_board"),
        value=raw["energy (MJ)"] * 1e6,
    )
    busy = common.with_columns(
        quantity=pl.lit("device_busy_share"),
        unit=pl.lit("1"),
        scope=pl.lit("device_monitor"),
        value=raw["gpu usage (%)"] / 100,
    )
    return pl.concat([power, energy, busy])


def _configuration(row: Mapping[str, object]) -> str:
    return canonical(
        {
            "batch": row["batch"],
            "image_size": IMAGE_SIZE,
            "images": row["images"],
            "mode": "train",
            # Keras' Adam default; the publisher names no optimizer and power hardly depends on it.
            "optimizer": "adam",
            "power_limit_w": row["limit"],
            "precision": _PRECISION[str(row["device"])],
            "run": row["run"],
        }
    )
