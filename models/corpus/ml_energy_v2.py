"""ML.ENERGY leaderboard v2: decoders and diffusion models on A100 and H100 boards, servers of 2024.

Energy is that of all boards. Decoders: joules of a request over its output tokens, and those times the
throughput as watts. Pipelined jobs are counted and left out: no step time follows from their throughput. The
running batch is an outcome; the configured one is what rows carry. Prompts: ShareGPT conversations, and
functions of EvalPlus to complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from predictor.models.corpus.ml_energy import run_rows
from predictor.models.corpus.schema import Counted, canonical

SOURCE = "ml-energy-leaderboard-v2"
DEVICES: Mapping[str, str] = {
    "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb",
    "NVIDIA H100 80GB HBM3": "h100-sxm-80gb",
}
_TASKS: Mapping[str, tuple[str, float]] = {
    "llm_text_generation/chat": ("chat", 250.0),
    "llm_text_generation/code": ("code", 200.0),
    "mllm_text_generation/chat": ("image", 900.0),
}
"""Publisher's task -> ours, and mean tokens of its prompts."""


def read(folder: Path) -> Counted:
    """Two rows per run: `average_power` and `energy` per output token; or `energy` per item and `latency`."""
    import polars as pl

    raw = pl.read_csv(folder / "configurations.csv", infer_schema_length=None).rename({"Model": "model"})
    served = raw.filter(pl.col("Energy/req (J)").is_not_null())
    whole = served.filter(pl.col("PP") == 1)
    drawn = raw.filter(pl.col("Batch latency (s)").is_not_null())
    per_token = whole["Energy/req (J)"] / whole["Avg Output Tokens"]
    item = pl.coalesce(pl.col("Energy/image (J)", "Energy/video (J)").cast(pl.Float64))
    found = [
        run_rows(
            whole,
            SOURCE,
            [DEVICES[name] for name in whole["GPU"]],
            _served,
            average_power=per_token * whole["Token tput (tok/s)"] / whole["TP"],
            energy=per_token,
        ),
        run_rows(
            drawn,
            SOURCE,
            [DEVICES[name] for name in drawn["GPU"]],
            _drawn,
            energy=drawn.select(item).to_series(),
            latency=drawn["Batch latency (s)"],
        ),
    ]
    used = whole.height + drawn.height
    return Counted(
        pl.concat(found), {"available": raw.height, "used": used, "pipelined": served.height - whole.height}
    )


def _served(row: Mapping[str, object]) -> str:
    task, prompt = _TASKS[str(row["task"])]
    return canonical(
        {
            "batch": _whole(row["Max BS (reqs)"]),
            "devices": _whole(row["TP"]),
            "expert_parallel": 1,
            "mode": "infer",
            "output_tokens": row["Avg Output Tokens"],
            "prompt_tokens": prompt,
            "replicas": 1,
            "task": task,
            "tokens_per_s": row["Token tput (tok/s)"],
            "weight_bits": 16,
        }
    )


def _drawn(row: Mapping[str, object]) -> str:
    width, _, height = str(row["meta_resolution"]).partition("x")
    return canonical(
        {
            "batch": _whole(row["Batch size"]),
            "denoising_steps": _whole(row["Denoising steps"]),
            "devices": 1,
            "frames": _whole(row["Frames"] or 1),
            "height": int(height),
            "mode": "infer",
            "parameters": 1e9 * float(str(row["meta_denoising_params"])),
            "width": int(width),
        }
    )


def _whole(value: object) -> int:
    return int(float(str(value)))
