"""Rows of experts and states as works, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import Contraction, Convolution
from predictor.models.corpus import aiconfigurator_ops
from predictor.models.corpus.aiconfigurator_layers import (
    LAYER_TABLES,
    busiest_rank,
    convolution_work,
    delta_work,
    experts_work,
    skew_of,
)
from predictor.models.corpus.aiconfigurator_ops import kernel_of
from predictor.models.corpus.schema import conform

_EXPERTS = {
    "num_tokens": 64, "hidden_size": 2048, "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 2,
    "moe_ep_size": 4, "distribution": "balanced", "gated": True, "moe_dtype": "bfloat16",
}  # fmt: skip


def test_a_rank_of_experts_by_hand() -> None:
    work = experts_work(_EXPERTS)
    # 64 tokens x 8 choices over 4 ranks: 128 rows on 32 experts, matrices of half of 768 columns.
    assert work.shape == Contraction(32, 4, 768, 2048)
    assert work.matrix_flops == 2 * 128 * 2048 * 384 * 3
    assert work.parameter_bytes == 2 * 32 * 3 * 2048 * 384
    assert work.read_bytes - work.parameter_bytes == 2 * 128 * (2048 + 384)
    assert work.write_bytes == 2 * 128 * (768 + 2048)
    plain = experts_work({**_EXPERTS, "gated": False})
    assert plain.kind == "plain_experts"
    assert plain.parameter_bytes == 2 * 32 * 2 * 2048 * 384
    narrow = experts_work({**_EXPERTS, "moe_dtype": "nvfp4"})
    assert narrow.compute is Compute.FP4
    assert narrow.parameter_bytes == work.parameter_bytes * 9 // 32


def test_even_tokens_touch_as_many_experts_as_choices() -> None:
    assert busiest_rank(1, 8, 128, 1, 0.0) == (8, 8)
    assert busiest_rank(1, 8, 128, 16, 0.0) == (1, 1)
    assert busiest_rank(1024, 8, 128, 8, 0.0) == (16, 1024)


def test_uneven_tokens_touch_fewer_and_load_one_rank() -> None:
    even, uneven = busiest_rank(16, 8, 128, 1, 0.0), busiest_rank(16, 8, 128, 1, 1.2)
    assert uneven[0] < even[0]
    assert uneven[1] == 128
    assert busiest_rank(4096, 22, 128, 1, 1.2) == (128, 4096 * 22)
    # A token's choices are different experts.
    assert busiest_rank(1, 8, 128, 1, 1.2) == (8, 8)
    _, busiest = busiest_rank(4096, 8, 128, 16, 1.2)
    assert busiest > 1.5 * 4096 * 8 / 16
    assert busiest_rank(4096, 8, 128, 16, 1.01)[1] < busiest
    assert [skew_of(name) for name in ("balanced", "power_law_1.01")] == [0.0, 1.01]


def test_states_by_hand() -> None:
    row = {"batch_size": 2, "seq_len": 100, "channels": 64, "d_conv": 4}
    work = convolution_work(row)
    assert work.shape == Convolution(2, 64, 64, 64, (103,), (100,), (4,), (1,), (1,))
    assert work.matrix_flops == 2 * 2 * 100 * 64 * 4
    assert work.read_bytes == 2 * (2 * 100 * 64 + 64 * 4)
    step = convolution_work({**row, "seq_len": 1})
    assert step.write_bytes == 2 * (2 * 64 + 2 * 64 * 3)
    heads = {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 16, "head_v_dim": 32, "state_bytes": 4}
    answer = delta_work({"batch_size": 3, "seq_len": 5, **heads})
    assert answer.shape == Contraction(12, 5, 32, 16)
    assert answer.matrix_flops == 3 * 2 * 16 * 32 * 4 * 15
    state = 3 * 4 * 16 * 32 * 4
    assert answer.read_bytes == 2 * 15 * (2 * 2 * 16 + 4 * 32 + 2 * 4) + state
    assert answer.write_bytes == 2 * 15 * 4 * 32 + state


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("moe_torch_flow", "cutlass"),
        ("moe_torch_flow_min_latency", "min_latency"),
        ("sglang_flashinfer_trtllm_moe", "trtllm_gen"),
        ("vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic", "trtllm_gen"),
        ("vllm_fp8moe_flashinfer_cutlass_flashinferexperts", "cutlass"),
        ("vllm_fused_moe", "triton"),
        ("chunk_gated_delta_rule_flashinfer", "flashinfer"),
        ("chunk_gated_delta_rule", "triton"),
        ("fused_recurrent_gated_delta_rule_packed_decode", "own"),
        ("causal_conv1d_fn", "own"),
    ],
)
def test_kernels_of_layers_are_named_by_their_maker(source: str, expected: str) -> None:
    assert kernel_of(source, "bfloat16", "experts") == expected


def _moe_row(tokens: int, topk: int, latency_ms: float) -> dict[str, Any]:
    return {
        "system": "h100_sxm", "stack": "vllm", "kernel_source": "moe_torch_flow", "moe_dtype": "bfloat16",
        "num_tokens": tokens, "hidden_size": 2048, "inter_size": 768, "topk": topk, "num_experts": 128,
        "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "power_law_1.2", "latency": latency_ms,
    }  # fmt: skip


def test_rows_of_experts_say_how_tokens_were_spread(tmp_path: Path) -> None:
    # All matrices are 1.2 GB and take 0.36 ms on an H100; those of 22 choices have no gate.
    rows = [
        {**_moe_row(tokens, topk, 0.02 + 0.4 * min(1.0, tokens / 20) / slices), "moe_tp_size": slices}
        for tokens in range(1, 60)
        for topk in (8, 22)
        for slices in (1, 2, 4, 8)
    ]
    frame = pl.DataFrame(rows, schema_overrides={"latency": pl.Float32})
    frame.write_parquet(tmp_path / "moe_perf.parquet")
    table = next(table for table in LAYER_TABLES if table.name == "experts")
    made, counts = aiconfigurator_ops._read_table(tmp_path, table)
    found = conform(made, "aiconfigurator-ops")
    assert counts["used"] == found.height > 0
    facts = [json.loads(text) for text in found["configuration"]]
    assert {(fact["skew"], fact["ranks"], fact["set"]) for fact in facts} == {(1.2, 1, "experts")}
    assert {fact["work"]["kind"] for fact in facts} == {"gated_experts", "plain_experts"}
    assert set(found["model_group"]) == {"experts"}


def test_one_file_holds_two_kinds_of_states(tmp_path: Path) -> None:
    row = {
        "system": "h100_sxm", "stack": "sglang", "phase": "context", "d_model": 2048, "d_conv": 4,
        "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128,
    }  # fmt: skip
    rows = [
        {**row, "kernel_source": name, "batch_size": batch, "seq_len": 256, "latency": batch * latency_ms}
        for name, latency_ms in (("causal_conv1d_fn", 0.005), ("chunk_gated_delta_rule", 0.05))
        for batch in range(1, 60)
    ]
    # What a step's kernel does otherwise.
    rows += [{**row, "seq_len": 1} for row in rows]
    pl.DataFrame(rows, schema_overrides={"latency": pl.Float32}).write_parquet(tmp_path / "gdn_perf.parquet")
    for name in ("causal_conv", "delta_rule"):
        table = next(table for table in LAYER_TABLES if (table.name, table.file) == (name, "gdn_perf"))
        made, counts = aiconfigurator_ops._read_table(tmp_path, table)
        assert counts["available"] == 2 * 59
        assert counts["prefill of one token: a step has rows of its own"] == 59
        assert set(made["subject"]) == {name}
        works = [json.loads(text)["work"] for text in made["configuration"]]
        # 2 x 16 x 128 keys and queries, 32 x 128 values.
        width = {w["shape"].get("convolution", {}).get("in_channels", 8192) for w in works}
        assert width == {8192}
