"""Rows of experts and of layers that carry a state, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.features.dtype import Compute
from predictor.features.ops.experts import touched_groups
from predictor.features.programs.work import (
    Contraction,
    Convolution,
    Elements,
    Family,
    OpWork,
    Phase,
)
from predictor.features.tables.kernel_facts import Run, start_time_s
from predictor.features.tables.kernel_rows import NAMES, RUN_COLUMNS, KernelModel, kernel_model, kernel_rows
from predictor.hardware.catalog import find_device
from predictor.hardware.sustained import reached_matrix_rate, reached_read_rate

H100 = find_device("h100-sxm-80gb")
STEP = start_time_s(H100)


def grouped(groups: int, m: int, n: int, k: int, compute: Compute = Compute.BF16) -> OpWork:
    weights, rows = 2 * groups * n * k, groups * m
    return OpWork(
        Family.BATCHED_MATMUL, "grouped_matmul", Phase.FORWARD, compute, Contraction(groups, m, n, k), 16,
        2 * rows * n * k, 0, 2 * rows * k + weights, 2 * rows * n, weights,
    )  # fmt: skip


def experts(groups: int, m: int, inner: int, hidden: int) -> OpWork:
    one = grouped(groups, m, 2 * inner, hidden)
    weights, rows = 6 * groups * inner * hidden, groups * m
    return replace(
        one,
        kind="gated_experts",
        matrix_flops=6 * rows * inner * hidden,
        read_bytes=2 * rows * (hidden + inner) + weights,
        write_bytes=2 * rows * (2 * inner + hidden),
        parameter_bytes=weights,
    )


def convolution(samples: int, length: int, channels: int) -> OpWork:
    numbers = samples * length * channels
    shape = Convolution(samples, channels, channels, channels, (length + 3,), (length,), (4,), (1,), (1,))
    return OpWork(
        Family.CONVOLUTION, "causal_conv", Phase.FORWARD, Compute.BF16, shape, 16, 8 * numbers, 5 * numbers,
        2 * numbers, 2 * numbers,
    )  # fmt: skip


def delta(parallel: int, length: int) -> OpWork:
    tokens, state = parallel * length, 128 * 128
    return OpWork(
        Family.ATTENTION, "linear_attention", Phase.FORWARD, Compute.BF16,
        Contraction(parallel, length, 128, 128), 16, 6 * tokens * state, 2 * tokens * state,
        6 * tokens * 128 + 4 * parallel * state, 2 * tokens * 128 + 4 * parallel * state,
    )  # fmt: skip


def _row(work: OpWork, run: Run = Run()) -> tuple[dict[str, float], float]:  # noqa: B008
    model = KernelModel.EXPERTS if work.kind == "grouped_matmul" else kernel_model(work, H100)
    assert model is not None
    rows = kernel_rows(model, [work], H100, [run])
    return dict(zip(NAMES[model], rows.features[0].tolist(), strict=True)), float(rows.base_s[0])


def test_forward_layers_have_models_of_their_own() -> None:
    work = grouped(8, 64, 1024, 1024)
    assert kernel_model(work, H100) is KernelModel.EXPERTS
    assert kernel_model(experts(8, 64, 512, 1024), H100) is KernelModel.EXPERTS
    # 512 rows of 16 bits a matrix keep an H100 busy longer than reading it: a product like others.
    assert kernel_model(grouped(8, 512, 1024, 1024), H100) is KernelModel.PRODUCT
    assert kernel_model(experts(8, 512, 512, 1024), H100) is KernelModel.EXPERTS
    # Gradients are priced as products, wide types by their families.
    assert kernel_model(replace(work, phase=Phase.BACKWARD), H100) is KernelModel.PRODUCT
    assert kernel_model(replace(work, compute=Compute.FP32), H100) is None
    assert kernel_model(convolution(1, 64, 512), H100) is KernelModel.STATE
    assert kernel_model(delta(8, 64), H100) is KernelModel.STATE
    assert kernel_model(replace(delta(8, 64), phase=Phase.BACKWARD), H100) is None


def test_columns_of_a_run_come_last() -> None:
    for model, names in NAMES.items():
        assert names[-2:] == ("stack", "kernel")
        assert (names[-3] == "skew") == (RUN_COLUMNS[model] == 3)
    told, _ = _row(grouped(8, 64, 1024, 1024), Run("vllm", "triton", skew=1.2, ranks=4))
    assert told["skew"] == pytest.approx(1.2)
    assert (told["stack"], told["log2_ranks"]) == (2, 2)
    untold, _ = _row(grouped(8, 64, 1024, 1024))
    assert np.isnan([untold[name] for name in ("skew", "stack", "kernel")]).all()


def test_few_rows_wait_for_the_matrices_they_touch() -> None:
    work = grouped(64, 1, 4096, 4096)
    _, base_s = _row(work)
    assert base_s == pytest.approx(work.parameter_bytes / reached_read_rate(H100) + STEP, rel=0.01)
    _, half_s = _row(grouped(32, 1, 4096, 4096))
    assert base_s - STEP == pytest.approx(2 * (half_s - STEP), rel=0.01)


def test_many_rows_run_at_the_rate_of_tiles_and_a_remainder_fills_none() -> None:
    work = grouped(64, 1024, 4096, 4096)
    _, base_s = _row(work)
    least = work.matrix_flops / reached_matrix_rate(H100, "bf16")
    assert least < base_s < 1.15 * least
    # A row more opens a tile of another group's height in every group.
    _, more_s = _row(grouped(64, 1025, 4096, 4096))
    assert more_s > 1.01 * base_s


def test_a_layer_holds_both_products_and_what_is_around_them() -> None:
    inner, hidden = 2048, 4096
    _, layer_s = _row(experts(16, 512, inner, hidden))
    _, up_s = _row(grouped(16, 512, 2 * inner, hidden))
    _, down_s = _row(grouped(16, 512, hidden, inner))
    assert layer_s > up_s + down_s
    assert layer_s < 1.5 * (up_s + down_s)


def test_a_convolution_takes_its_instructions_or_its_bytes() -> None:
    work = convolution(16, 4096, 8192)
    _, base_s = _row(work)
    results_s = 16 * 4096 * 8192 / (2.2 * H100.core_count * H100.clock_hz)
    assert base_s == pytest.approx(results_s + STEP, rel=0.01)
    assert results_s > work.moved_bytes / H100.memory_bytes_per_s
    # An L40S has a quarter of the bandwidth for as many cores.
    l40s = find_device("l40s-pcie-48gb")
    found = kernel_rows(KernelModel.STATE, [work], l40s, [Run()])
    assert float(found.base_s[0]) > work.moved_bytes / l40s.memory_bytes_per_s
    row, _ = _row(convolution(16, 1, 8192))
    assert (row["log2_length"], row["log2_width"], row["log2_depth"], row["attends"]) == (0, 13, 2, 0)


def test_a_step_of_linear_attention_moves_its_state_and_a_sequence_is_a_chain() -> None:
    work = delta(4096, 1)
    _, base_s = _row(work)
    moved_s = work.moved_bytes / reached_read_rate(H100)
    assert base_s == pytest.approx(moved_s + STEP, rel=0.01)
    # One head alone works through its chunks one after the other: twice the length, twice the time.
    short, long = (_row(delta(1, length))[1] for length in (16384, 32768))
    assert long - 6 * STEP == pytest.approx(2 * (short - 6 * STEP), rel=0.01)


def test_shapes_of_others_are_refused() -> None:
    for model, work in ((KernelModel.EXPERTS, grouped(1, 1, 1, 1)), (KernelModel.STATE, delta(1, 1))):
        with pytest.raises(TypeError):
            kernel_rows(model, [replace(work, shape=Elements(1))], H100, [Run()])


def test_rows_that_choose_by_chance_touch_few_groups() -> None:
    assert touched_groups(128, 8) == 8
    # 16 tokens of 8 choices: 128 * (1 - (127/128)^128) = 81.1.
    assert touched_groups(128, 128) == 81
    assert touched_groups(128, 4096) == 128
    assert touched_groups(1, 1) == touched_groups(8, 1) == 1
