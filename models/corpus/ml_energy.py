"""ML.ENERGY leaderboard v3: steady-state serving of decoders on vLLM, H100 and B200, 1 to 8 devices.

Energy is that of all boards; energy per token x throughput = power exactly, so two rows a run say all. The
prompts' mean lengths are not published: PROMPT_TOKENS are set by task, once, from the running batches of the
runs whose caches were full (room for caches / running batch - half an answer; the least of a task's runs),
those of reasoning from the size of such questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical

if TYPE_CHECKING:
    import polars as pl

SOURCE = "ml-energy-leaderboard-v3"
DEVICES: Mapping[str, str] = {"H100": "h100-sxm-80gb", "B200": "b200-sxm-180gb"}
TASKS: Mapping[str, str] = {
    "lm-arena-chat": "chat",
    "gpqa": "reasoning",
    "sourcegraph-fim": "code",
    "image-chat": "image",
    "video-chat": "video",
}
PROMPT_TOKENS: Mapping[str, float] = {
    "chat": 130.0,
    "reasoning": 200.0,
    "code": 1700.0,
    "image": 780.0,
    "video": 6400.0,
}


def read(folder: Path) -> pl.DataFrame:
    """Two rows per run: `average_power` (W per board) and `energy` (J per output token, all boards)."""
    import polars as pl

    raw = pl.read_csv(folder / "configurations.csv", infer_schema_length=None)
    raw = raw.filter(pl.col("energy_per_token_joules").is_not_null())
    columns = ("task", "num_gpus", "data_parallel", "tensor_parallel", "expert_parallel", "max_num_seqs",
               "avg_output_len", "weight_precision", "output_throughput_tokens_per_sec")  # fmt: skip
    devices = [DEVICES[name] for name in raw["gpu_model"]]
    common = raw.select(
        subject=pl.col("model_id"),
        subject_kind=pl.lit("model"),
        device=pl.Series(devices),
        configuration=pl.struct(columns).map_elements(_configuration, return_dtype=pl.String),
        scope=pl.lit("gpu_board"),
        source=pl.lit(SOURCE),
        device_group=pl.Series([chip_of(device) for device in devices]),
        model_group=pl.col("model_id"),
    )
    power = common.with_columns(
        quantity=pl.lit("average_power"), unit=pl.lit("W"), value=raw["avg_power_watts"] / raw["num_gpus"]
    )
    energy = common.with_columns(
        quantity=pl.lit("energy"), unit=pl.lit("J"), value=raw["energy_per_token_joules"]
    )
    return pl.concat([power, energy])


def _configuration(row: Mapping[str, object]) -> str:
    task = TASKS[str(row["task"])]
    return canonical(
        {
            "batch": int(float(str(row["max_num_seqs"]))),
            "devices": row["num_gpus"],
            "expert_parallel": _count(row["expert_parallel"]),
            "mode": "infer",
            "output_tokens": row["avg_output_len"],
            "prompt_tokens": PROMPT_TOKENS[task],
            "replicas": _count(row["data_parallel"]),
            "task": task,
            "tokens_per_s": row["output_throughput_tokens_per_sec"],
            "weight_bits": 8 if row["weight_precision"] == "fp8" else 16,
        }
    )


def _count(value: object) -> int:
    return 1 if value is None else max(1, int(float(str(value))))
