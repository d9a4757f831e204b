"""Offline generation by Hugging Face Accelerate on V100 and A100 boards (Wilkins and others, 2024).

One row group per run of `generate` on a batch of 32 equal prompts in FP16: seconds, joules of all boards, and
the joules that the host's own counters gave. The authors' summary files repeat the raw ones and are flagged;
first runs of a configuration warm up and are left out, as are files of runs whose caches were not reused,
rows without a system, and a laptop. Boards of one run take turns: Accelerate lays the layers out in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from predictor.models.corpus.chips import chip_of
from predictor.models.corpus.schema import Counted, canonical

SOURCE = "wilkins-energy-inference"
DEVICES: Mapping[str, str] = {
    "palmetto-v100": "v100-pcie-16gb",
    "palmetto intel+v100": "v100-pcie-16gb",
    "palmetto-a100": "a100-pcie-40gb",
    "palmetto intel+a100": "a100-pcie-40gb",
    "argonne-swing": "a100-sxm-40gb",
    "swing amd+a100": "a100-sxm-40gb",
}
"""Both spellings of each system -> its boards."""
MODELS: Mapping[str, str] = {
    "llama-2-7b-chat-hf": "meta-llama/Llama-2-7b-chat-hf",
    "llama-2 (7b)": "meta-llama/Llama-2-7b-chat-hf",
    "llama-2-13b-chat-hf": "meta-llama/Llama-2-13b-chat-hf",
    "llama-2 (13b)": "meta-llama/Llama-2-13b-chat-hf",
    "llama-2-70b-chat-hf": "meta-llama/Llama-2-70b-chat-hf",
    "llama-2 (70b)": "meta-llama/Llama-2-70b-chat-hf",
    "mistral-7b-v0.1": "mistralai/Mistral-7B-v0.1",
    "mistral (7b)": "mistralai/Mistral-7B-v0.1",
    "mixtral-8x7b-v0.1": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral (8x7b)": "mistralai/Mixtral-8x7B-v0.1",
    "falcon-7b": "tiiuae/falcon-7b",
    "falcon (7b)": "tiiuae/falcon-7b",
    "falcon-40b": "tiiuae/falcon-40b",
    "falcon (40b)": "tiiuae/falcon-40b",
}
_WATTS = (25.0, 420.0)
"""What a board can draw; joules that are thousandths or millionths in truth fall outside."""


def read(folder: Path) -> Counted:
    """Per configuration, medians of its runs: `average_power` of a board, `energy` per output token.

    Energy has two rows: of all boards, and of the host's processors.
    """
    import polars as pl

    raw = pl.read_csv(folder / "all_runs.csv.gz", infer_schema_length=None)
    distinct = raw.filter(~pl.col("duplicate_of_other_file"))
    named = distinct.select(
        "Runtime (s)",
        "Iteration",
        "Phase",
        "file",
        device=pl.col("System").str.to_lowercase().replace_strict(DEVICES, default=None),
        subject=pl.col("Model").str.to_lowercase().replace_strict(MODELS, default=None),
        devices="Number of GPUs",
        batch="Batch Size",
        prompt="Number of Input Tokens",
        answer=pl.coalesce(pl.col("Number of Output Tokens", "Output Token Limit").cast(pl.Float64)),
        boards_j="GPU Energy (J)",
        host_j="CPU Energy (J)",
    ).drop_nulls()
    watts = pl.col("boards_j") / pl.col("Runtime (s)") / pl.col("devices")
    runs = named.filter(
        pl.col("Phase").str.contains("inference"),
        ~pl.col("file").str.contains("caching"),
        pl.col("Iteration") > 0,
        pl.col("prompt") > 0,
        pl.col("answer") > 0,
        pl.col("host_j") > 0,
        watts.is_between(*_WATTS),
    )
    keys = ["subject", "device", "devices", "batch", "prompt", "answer"]
    cells = runs.group_by(keys).agg(
        pl.col("Runtime (s)").median(),
        pl.col("boards_j").median(),
        pl.col("host_j").median(),
        pl.len().alias("runs"),
    )
    cells = cells.sort(keys)
    common = cells.select(
        "subject",
        "device",
        subject_kind=pl.lit("model"),
        configuration=pl.Series([_configuration(row) for row in cells.iter_rows(named=True)]),
        source=pl.lit(SOURCE),
        device_group=pl.Series([chip_of(device) for device in cells["device"]]),
        model_group=pl.col("subject"),
    )
    tokens = cells["batch"] * cells["answer"]
    found = [
        common.with_columns(quantity=pl.lit(name), unit=pl.lit(unit), scope=pl.lit(scope), value=values)
        for name, unit, scope, values in (
            ("average_power", "W", "gpu_board", cells.select(watts).to_series()),
            ("energy", "J", "gpu_board", cells["boards_j"] / tokens),
            ("energy", "J", "host_cpu", cells["host_j"] / tokens),
        )
    ]
    counts = {
        "available": raw.height,
        "used": runs.height,
        "copies": raw.height - distinct.height,
        "incomplete": distinct.height - named.height,
        "warm-up, other phases, other units": named.height - runs.height,
    }
    return Counted(pl.concat(found), counts)


def _configuration(row: Mapping[str, Any]) -> str:
    return canonical(
        {
            "batch": row["batch"],
            "devices": row["devices"],
            "expert_parallel": 1,
            "mode": "infer",
            "output_tokens": row["answer"],
            "prompt_tokens": row["prompt"],
            "replicas": 1,
            "runs": row["runs"],
            "task": "chat",
            "tokens_per_s": row["batch"] * row["answer"] / row["Runtime (s)"],
            "weight_bits": 16,
        }
    )
