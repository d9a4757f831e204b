"""Readers of kernel tables on rows made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import AttentionShape, Contraction
from predictor.features.programs.work_json import work_from_json
from predictor.models.corpus import aiconfigurator_ops, vidur_frontier
from predictor.models.corpus.aiconfigurator_ops import kernel_of
from predictor.models.corpus.aiconfigurator_works import (
    TABLES,
    attention_work,
    latent_decode_work,
    linear_work,
)
from predictor.models.corpus.schema import conform

_GEMM = {"m": 16, "n": 1024, "k": 2048, "gemm_dtype": "fp8_block"}
_ATTENTION = {
    "batch_size": 2, "isl": 1, "step": 511, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "window_size": 0.0, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "causal": True,
}  # fmt: skip


def test_a_quantised_product_moves_its_scales() -> None:
    work = linear_work(_GEMM)
    assert work.shape == Contraction(1, 16, 1024, 2048)
    assert work.compute is Compute.FP8
    assert work.parameter_bytes == 1024 * 2048 + 4 * (1024 // 128) * (2048 // 128)
    assert work.read_bytes - work.parameter_bytes == 16 * 2048 + 4 * 16 * 2048 // 128
    assert linear_work({**_GEMM, "gemm_dtype": "nvfp4"}).parameter_bytes == 1024 * 2048 * 9 // 16


def test_a_decode_step_reads_the_cache_once() -> None:
    work = attention_work(_ATTENTION)
    assert work.shape == AttentionShape(2, 32, 8, 1, 512, 128, 128, True)
    assert work.matrix_flops == 4 * 2 * 32 * 512 * 128
    assert work.read_bytes == 2 * 2 * 32 * 128 + 2 * 8 * 512 * 256
    windowed = attention_work({**_ATTENTION, "window_size": 128.0})
    assert windowed.matrix_flops == 4 * 2 * 32 * 128 * 128


def test_a_latent_step_reads_576_numbers_a_token() -> None:
    row = {
        "batch_size": 4,
        "num_heads": 128,
        "step": 99,
        "mla_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
    }
    work = latent_decode_work(row)
    assert work.read_bytes == 2 * 4 * 128 * 576 + 2 * 4 * 100 * 576


@pytest.mark.parametrize(
    ("source", "precision", "table", "expected"),
    [
        ("torch.nn.functional.linear", "bfloat16", "gemm", "cublas"),
        ("CutlassFP8ScaledMMLinearKernel", "fp8", "gemm", "cutlass"),
        ("DeepGemmFp8BlockScaledMMKernel", "fp8_block", "gemm", "deepgemm"),
        ("vllm_flashinfer_trtllmdecode", "bfloat16", "decode", "trtllm_gen"),
        ("vllm_flash_attn_fa3", "bfloat16", "prefill", "flash"),
        ("torch_flow", "bfloat16", "prefill", "own"),
    ],
)
def test_kernels_are_named_by_their_maker(source: str, precision: str, table: str, expected: str) -> None:
    assert kernel_of(source, precision, table) == expected


def _read(folder: Path, rows: list[dict[str, Any]]) -> tuple[pl.DataFrame, dict[str, int]]:
    frame = pl.DataFrame(rows, schema_overrides={"latency": pl.Float32})
    frame.write_parquet(folder / "gemm_perf.parquet")
    table = next(table for table in TABLES if table.name == "gemm")
    return aiconfigurator_ops._read_table(folder, table)


def _rows(system: str, stack: str, start_ms: float, slope_ms: float, step: int = 16) -> list[dict[str, Any]]:
    return [
        {
            "system": system, "stack": stack, "kernel_source": "torch_flow", "gemm_dtype": "bfloat16",
            "m": m, "n": 4096, "k": 4096, "latency": start_ms + slope_ms * m / 4096,
        }
        for m in range(step, 4096, step)
    ]  # fmt: skip


def test_dispatch_and_impossible_groups_leave_the_table(tmp_path: Path) -> None:
    rows = [
        *_rows("h100_sxm", "trtllm", 0.005, 0.2),
        # A host that needs 100 µs a call hides kernels that add less.
        *_rows("h100_sxm", "vllm", 0.1, 0.06),
        # 2 x 4095 x 4096 x 4096 FLOPs in 6 µs are no H100's.
        *_rows("h100_sxm", "sglang", 0.003, 0.003),
    ]
    frame, counts = _read(tmp_path, rows)
    found = conform(frame, "aiconfigurator-ops")
    stacks = {json.loads(text)["stack"] for text in found["configuration"]}
    assert stacks == {"trtllm"}
    assert counts["available"] == len(rows)
    assert counts["used"] == found.height
    kept = counts["available"] - counts["another shape of the grid stands for it"]
    assert (
        counts["dispatch hides the kernel"]
        + counts["its group skips work: too fast for the device"]
        + (counts["too fast for the device"] + counts["used"])
        == kept
    )
    assert counts["its group skips work: too fast for the device"] > 0
    assert set(found["scope"]) == {"kernel"}


def test_layers_of_vidur_are_products_of_a_rank(tmp_path: Path) -> None:
    row = {
        "src": "vidur", "device": "a40", "n_head": 32, "n_kv_head": 8, "n_embd": 4096,
        "n_expanded_embd": 14336, "use_gated_mlp": True, "num_tokens": 48, "num_tensor_parallel_workers": 4,
        **{f"t_ms.{name}.median": 0.05 for name in vidur_frontier._OPS},
    }  # fmt: skip
    other = {**row, "src": "frontier"}
    skipped = {**row, "num_tokens": 56}
    short = {**row, "num_tokens": 0 + 24, "t_ms.add.median": 0.002}
    pl.DataFrame([row, row, other, skipped, short]).write_parquet(tmp_path / "mlp_linear.parquet")
    read = vidur_frontier.read(tmp_path)
    found = conform(read.frame, "vidur_frontier")
    works = {
        (subject, work.shape)
        for subject, work in (
            (subject, work_from_json(json.loads(text)["work"]))
            for subject, text in found.select("subject", "configuration").iter_rows()
        )
    }
    assert ("attn_pre_proj", Contraction(1, 48, (8 + 2 * 2) * 128, 4096)) in works
    assert ("attn_post_proj", Contraction(1, 48, 4096, 8 * 128)) in works
    assert ("mlp_up_proj", Contraction(1, 48, 2 * 3584, 4096)) in works
    assert ("mlp_down_proj", Contraction(1, 48, 4096, 3584)) in works
    counts = read.counts
    assert counts["available"] == 25 == sum(count for name, count in counts.items() if name != "available")
    assert counts["absent, or too short for whole microseconds"] == 1
