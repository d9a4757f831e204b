"""ML.ENERGY leaderboard v3: steady-state serving of decoders on vLLM, H100 and B200, 1 to 8 devices.

Energy is that of all boards; energy per token x throughput = power exactly, so two rows a run say all. The
prompts' mean lengths are not published: PROMPT_TOKENS are set by task, once, from the running batches of the
runs whose caches were full (room for caches / running batch - half an answer; the least of a task's runs),
those of reasoning from the size of such questions, those of videos from the fullest run of all (125 sequences
of Qwen3-VL-32B on two H100, whose rated FLOPs leave no room for more, either).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import canonical
from predictor.models.power.llm_shape import published_shapes

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
_UNITS: Mapping[str, str] = {"average_power": "W", "energy": "J", "latency": "s"}
PROMPT_TOKENS: Mapping[str, float] = {
    "chat": 130.0,
    "reasoning": 200.0,
    "code": 1700.0,
    "image": 780.0,
    "video": 2400.0,
}


def read(folder: Path) -> pl.DataFrame:
    """Two rows per run: `average_power` (W per board) and `energy` (J per output token, all boards)."""
    import polars as pl

    raw = pl.read_csv(folder / "configurations.csv", infer_schema_length=None)
    raw = raw.filter(pl.col("energy_per_token_joules").is_not_null())
    return run_rows(
        raw.rename({"model_id": "model"}),
        SOURCE,
        [DEVICES[name] for name in raw["gpu_model"]],
        _configuration,
        average_power=raw["avg_power_watts"] / raw["num_gpus"],
        energy=raw["energy_per_token_joules"],
    )


def run_rows(
    raw: pl.DataFrame,
    source: str,
    devices: Sequence[str],
    configuration: Callable[[Mapping[str, object]], str],
    **quantities: pl.Series,
) -> pl.DataFrame:
    """One row per quantity and run of a leaderboard: `raw` names its `model`, `devices` are catalogue ids."""
    import polars as pl

    common = raw.select(
        subject=pl.col("model"),
        subject_kind=pl.lit("model"),
        device=pl.Series(devices, dtype=pl.String),
        configuration=pl.Series([configuration(row) for row in raw.iter_rows(named=True)], dtype=pl.String),
        source=pl.lit(source),
        device_group=pl.Series([chip_of(device) for device in devices], dtype=pl.String),
        model_group=pl.col("model"),
    )
    return pl.concat(
        common.with_columns(
            quantity=pl.lit(name),
            unit=pl.lit(_UNITS[name]),
            scope=pl.lit("host_wall" if name == "latency" else "gpu_board"),
            value=values.cast(pl.Float64),
        )
        for name, values in quantities.items()
    )


def prompt_tokens(task: str, model: str) -> float:
    """Mean length of a model's prompts in a task; beside an image of fixed size it is that of a chat.

    Other models cut an image by its resolution; the runs with full caches behind PROMPT_TOKENS were of those.
    """
    shape = published_shapes().get(model)
    if task == "image" and shape is not None and shape.image_tokens:
        return PROMPT_TOKENS["chat"] + shape.image_tokens
    return PROMPT_TOKENS[task]


def _configuration(row: Mapping[str, object]) -> str:
    task = TASKS[str(row["task"])]
    return canonical(
        {
            "batch": int(float(str(row["max_num_seqs"]))),
            "devices": row["num_gpus"],
            "expert_parallel": _count(row["expert_parallel"]),
            "mode": "infer",
            "output_tokens": row["avg_output_len"],
            "prompt_tokens": prompt_tokens(task, str(row["model"])),
            "replicas": _count(row["data_parallel"]),
            "task": task,
            "tokens_per_s": row["output_throughput_tokens_per_sec"],
            "weight_bits": 8 if row["weight_precision"] == "fp8" else 16,
        }
    )


def _count(value: object) -> int:
    return 1 if value is None else max(1, int(float(str(value))))
