"""ML.ENERGY leaderboard v3: diffusion transformers that draw images and videos, xDiT on 1 to 8 H100 boards.

Energy is that of all boards, per image or video; a batch's latency and its joules make watts. Sizes that the
publisher leaves open: videos are as wide as their models draw by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.ml_energy import DEVICES, run_rows
from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "ml-energy-diffusion-v3"


def read(folder: Path) -> pl.DataFrame:
    """Two rows per run: `energy` (J per image or video, all boards) and `latency` (s per batch)."""
    import polars as pl

    raw = pl.read_csv(folder / "configurations.csv", infer_schema_length=None)
    raw = raw.filter(pl.col("batch_latency_s").is_not_null())
    item = pl.coalesce(pl.col("energy_per_image_joules", "energy_per_video_joules").cast(pl.Float64))
    return run_rows(
        raw.rename({"model_id": "model"}),
        SOURCE,
        [DEVICES[name] for name in raw["gpu_model"]],
        _configuration,
        energy=raw.select(item).to_series(),
        latency=raw["batch_latency_s"],
    )


def _configuration(row: Mapping[str, object]) -> str:
    return canonical(
        {
            "batch": int(float(str(row["batch_size"]))),
            "denoising_steps": int(float(str(row["inference_steps"]))),
            "devices": row["num_gpus"],
            "frames": int(float(str(row["num_frames"] or 1))),
            "height": int(float(str(row["image_height"] or row["video_height"]))),
            "mode": "infer",
            "parameters": 1e9 * float(str(row["activated_params_billions"])),
            "ring": int(float(str(row["ring_degree"] or 1))),
            "width": int(float(str(row["image_width"] or row["video_width"]))),
        }
    )
