from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.dtype import Compute
from predictor.features.programs.work import AttentionShape, Contraction, Family, OpWork, Phase
from predictor.features.tables.kernel_facts import Run, start_time_s
from predictor.features.tables.kernel_rows import (
    NAMES,
    KernelModel,
    kernel_model,
    kernel_rows,
    schema_hash,
)
from predictor.hardware.catalog import find_device
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak, reached_matrix_rate, reached_read_rate

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
    # An A100 widens FP8 for its tensor cores; a P4 has none, and a CPU is no GPU at all.
    assert kernel_model(gemm(64, 64, 64, Compute.FP8), A100) is KernelModel.PRODUCT
    for compute in (Compute.BF16, Compute.FP8):
        assert kernel_model(gemm(64, 64, 64, compute), find_device("p4-pcie-8gb")) is None
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


def test_keys_of_earlier_steps_come_from_memory_and_own_ones_from_the_cache() -> None:
    """Other layers' weights pass between two steps; 32 MB of keys fit the cache and were read there."""
    device = find_device("rtx-4090-24gb")
    step = attention(16, 1, 512)
    from_memory_s = step.read_bytes / reached_read_rate(device)
    assert _row(step, device=device)[1] > from_memory_s
    prompt = attention(1, 512, 512)
    assert _row(prompt, device=device)[1] == pytest.approx(_row(prompt, Run(copies=1), device)[1], rel=0.05)


def test_exponentials_bound_short_heads_on_fast_tensor_cores() -> None:
    """Heads 32 and 128 wide ask for as many exponentials; by FLOPs the wide ones were 4 times dearer."""
    wide = attention(8, 4096, 4096)
    assert isinstance(wide.shape, AttentionShape)
    narrow = replace(
        wide, shape=replace(wide.shape, head_dim=32, value_dim=32), matrix_flops=wide.matrix_flops // 4
    )
    assert _row(wide, device=H100)[1] / _row(narrow, device=H100)[1] < 3


@pytest.mark.parametrize(
    ("name", "compute", "share"),
    [
        # Best products published (stas00/ml-engineering) and, for the A40, its layers in vidur_frontier.
        ("a100-sxm-80gb", Compute.FP16, 0.869),
        ("h100-sxm-80gb", Compute.FP16, 0.803),
        ("h200-sxm-141gb", Compute.FP8, 0.734),
        ("b200-sxm-180gb", Compute.FP16, 0.776),
        ("mi300x-oam-192gb", Compute.BF16, 0.51),
        ("a40-pcie-48gb", Compute.FP16, 0.81),
    ],
)
def test_the_reached_rate_is_that_of_the_best_products(name: str, compute: Compute, share: float) -> None:
    device = find_device(name)
    assert reached_matrix_rate(device, compute) / matrix_peak(device, compute) == pytest.approx(
        share, rel=0.012
    )


def test_a_board_of_fewer_watts_reaches_the_cube_root_of_them_less() -> None:
    whole = reached_matrix_rate(H100, Compute.FP16)
    capped = reached_matrix_rate(replace(H100, tdp_w=H100.tdp_w * 0.9), Compute.FP16)
    assert capped / whole == pytest.approx(0.9 ** (1 / 3), rel=1e-6)
    # Narrow units at a high clock (AD102) do not hold what the same process holds in wide ones at a low one.
    ada = find_device("l40s-pcie-48gb")
    assert reached_matrix_rate(ada, Compute.FP16) / matrix_peak(ada, Compute.FP16) < 0.7


def test_thin_products_pay_a_start_for_every_tile() -> None:
    """A tile of 128 x 128 x 64 multiplies for 1000 cycles and waits as long."""
    _, thin_s = _row(gemm(108 * 128, 1024, 64))
    _, deep_s = _row(gemm(108 * 128, 1024, 128))
    assert deep_s < 1.7 * thin_s


def test_only_tensorrt_llm_rotates_queries_on_the_way() -> None:
    work = attention(64, 512, 512)
    base_s = {stack: _row(work, Run(stack, "own", 1, stores=True))[1] for stack in ("trtllm", "vllm")}
    # 64 x 512 tokens of 32 heads of 128 numbers, read and written.
    moved_s = 4 * 64 * 512 * 32 * 128 / (A100.memory_bytes_per_s * 0.86)
    assert base_s["trtllm"] - base_s["vllm"] == pytest.approx(moved_s, rel=1e-6)


def test_tensorrt_llm_kernels_are_one_maker_from_hopper_on() -> None:
    own, called = Run("trtllm", "own"), Run("vllm", "trtllm_gen")
    rows = {run: _row(attention(1, 512, 512), run, H100)[0] for run in (own, called)}
    assert rows[own]["kernel"] == rows[called]["kernel"]
    assert _row(attention(1, 512, 512), own)[0]["kernel"] != rows[own]["kernel"]


def test_flash_attention_computes_a_whole_tile_for_one_query() -> None:
    flash, other = Run(kernel="flash"), Run(kernel="flashinfer")
    one, many = attention(4096, 1, 64), attention(4096, 16, 64)
    tiles = {run: [_row(work, run)[0]["log_tiles"] for work in (one, many)] for run in (flash, other)}
    assert tiles[flash][0] == pytest.approx(tiles[flash][1])
    assert tiles[other][0] < tiles[other][1] - 0.3


def test_a_narrow_product_waits_for_its_activations_to_be_rounded() -> None:
    """Two bytes read and one written an element, in a kernel of its own."""
    thin, copies = gemm(2**20, 128, 4096, Compute.FP8), Run(copies=0)
    rounded_s = _row(thin, copies, H100)[1] - _row(replace(thin, compute=Compute.BF16), copies, H100)[1]
    moved_s = 3 * 2**20 * 4096 / reached_read_rate(H100)
    assert rounded_s == pytest.approx(moved_s + start_time_s(H100), rel=0.01)


def test_reads_take_the_published_share_of_the_bandwidth() -> None:
    """Azure's "Dot": 1.75 TB/s of an A100, 3.18 of an H100, 4.48 of an H200."""
    for name, measured in (
        ("a100-sxm-80gb", 1.75e12),
        ("h100-sxm-80gb", 3.18e12),
        ("h200-sxm-141gb", 4.48e12),
    ):
        assert reached_read_rate(find_device(name)) == pytest.approx(measured, rel=0.02)


def test_the_schema_hash_is_of_the_columns() -> None:
    assert len(schema_hash()) == 64
    for model, names in NAMES.items():
        assert len(set(names)) == len(names)
        assert names[-2:] == ("stack", "kernel"), model
