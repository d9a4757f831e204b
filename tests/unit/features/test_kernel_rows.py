from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.dtype import Compute
from predictor.features.kernel_rows import (
    NAMES,
    KernelModel,
    Run,
    kernel_model,
    kernel_rows,
    schema_hash,
    start_time_s,
)
from predictor.features.work import AttentionShape, Contraction, Family, OpWork, Phase
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak, reached_matrix_rate

UNTOLD = Run()
A100, H100 = find_device("a100-sxm-80gb"), find_device("h100-sxm-80gb")


def gemm(m: int, n: int, k: int, compute: Compute = Compute.BF16) -> OpWork:
    return OpWork(
        Family.MATMUL, "linear", Phase.FORWARD, compute, Contraction(1, m, n, k), 16, 2 * m * n * k, 0,
        2 * (m * k + k * n), 2 * m * n, 2 * k * n,
    )  # fmt: skip


def attention(batch: int, queries: int, keys: int, window: int = 0) -> OpWork:
    shape = AttentionShape(batch, 32, 8, queries, keys, 128, 128, True, window)
    scores = batch * 32 * shape.pairs
    kept = 2 * 2 * batch * 8 * shape.keys_seen * 128
    rows = 2 * batch * 32 * queries * 128
    return OpWork(
        Family.ATTENTION, "attention", Phase.FORWARD, Compute.BF16, shape, 16, 4 * scores * 128, 6 * scores,
        rows + kept, rows,
    )  # fmt: skip


def _row(work: OpWork, run: Run = UNTOLD, device: DeviceSpec = A100) -> tuple[dict[str, float], float]:
    model = kernel_model(work, A100)
    assert model is not None
    rows = kernel_rows(model, [work], device, [run])
    return dict(zip(NAMES[model], rows.features[0].tolist(), strict=True)), float(rows.base_s[0])


def test_narrow_products_and_attention_have_models_and_wide_ones_have_none() -> None:
    assert kernel_model(gemm(64, 64, 64), A100) is KernelModel.PRODUCT
    assert kernel_model(attention(1, 64, 64), A100) is KernelModel.ATTENTION
    assert kernel_model(gemm(64, 64, 64, Compute.FP32), A100) is None
    # No unit for FP8 on an A100, no tensor cores on a P4, no GPU at all.
    assert kernel_model(gemm(64, 64, 64, Compute.FP8), A100) is None
    assert kernel_model(gemm(64, 64, 64), find_device("p4-pcie-8gb")) is None
    assert kernel_model(gemm(64, 64, 64), find_device("core-i9-10940x")) is None


def test_a_product_row_by_hand() -> None:
    row, base_s = _row(gemm(4096, 1024, 1000), Run("vllm", "cublas", 0))
    assert row["log2_m"] == 12
    assert row["align_k"] == 3
    assert row["row_fill"] == 1
    waves = 32 * 8 / 108
    assert row["log_waves"] == pytest.approx(np.log(waves), rel=1e-6)
    assert row["fill_128"] == pytest.approx(waves / 3, rel=1e-6)
    assert row["log2_left_bytes"] == row["log2_right_bytes"] == 1
    assert base_s > 2 * 4096 * 1024 * 1000 / 312e12 + start_time_s(A100)


def test_big_products_are_near_the_reached_rate() -> None:
    work = gemm(8192, 8192, 8192)
    _, base_s = _row(work)
    assert base_s == pytest.approx(work.matrix_flops / reached_matrix_rate(A100, "bf16"), rel=0.06)


def test_operands_that_take_turns_come_from_the_cache_until_all_sets_fill_it() -> None:
    work = gemm(1, 2048, 2048)
    cold, hot, crowded = (_row(work, Run(copies=copies))[1] for copies in (0, 1, 5))
    assert hot < cold
    # Five sets of 8 MB fill the 40 MB: what turns take is memory's again.
    assert crowded == pytest.approx(cold, rel=0.2)
    assert crowded > hot


def test_unknown_libraries_are_missing_values() -> None:
    row, _ = _row(gemm(64, 64, 64))
    assert np.isnan([row["stack"], row["kernel"]]).all()
    told, _ = _row(gemm(64, 64, 64), Run("trtllm", "cutlass"))
    assert (told["stack"], told["kernel"]) == (0, 1)


def test_a_window_makes_long_attention_cheaper_and_storing_dearer() -> None:
    whole, base_s = _row(attention(1, 4096, 4096))
    narrow, narrow_s = _row(attention(1, 4096, 4096, window=128))
    assert narrow_s < 0.3 * base_s
    assert (whole["window"], narrow["window"]) == (0, 1)
    assert _row(attention(1, 4096, 4096), Run(stores=True))[1] > base_s


def test_exponentials_bound_short_heads_on_fast_tensor_cores() -> None:
    """Heads 32 and 128 wide ask for as many exponentials; by FLOPs the wide ones were 4 times dearer."""
    wide = attention(8, 4096, 4096)
    assert isinstance(wide.shape, AttentionShape)
    narrow = replace(
        wide, shape=replace(wide.shape, head_dim=32, value_dim=32), matrix_flops=wide.matrix_flops // 4
    )
    assert _row(wide, device=H100)[1] / _row(narrow, device=H100)[1] < 3


def test_the_reached_rate_follows_the_watts_behind_it() -> None:
    """Published best products: 86.9 % of an A100's rating, 80.3 % of an H100's, 77.6 % of a B200's (BF16)."""
    published = {"a100-sxm-80gb": 0.869, "h100-sxm-80gb": 0.803, "b200-sxm-180gb": 0.776}
    for name, share in published.items():
        device = find_device(name)
        assert reached_matrix_rate(device, "bf16") / matrix_peak(device, "bf16") == pytest.approx(
            share, abs=0.03
        )


def test_the_schema_hash_is_of_the_columns() -> None:
    assert len(schema_hash()) == 64
    for model, names in NAMES.items():
        assert len(set(names)) == len(names)
        assert names[-2:] == ("stack", "kernel"), model
