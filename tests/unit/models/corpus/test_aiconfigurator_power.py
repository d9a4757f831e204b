from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from predictor.models.corpus.aiconfigurator_power import TABLES, closing, curves


def test_a_closing_fills_dips_and_leaves_rises() -> None:
    values = np.array([1.0, 2.0, 1.1, 1.2, 3.0, 4.0, 4.1])
    filled = closing(values)
    assert filled == pytest.approx([1.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.1])
    assert (closing(filled) == filled).all()


def test_curves_do_not_touch_each_other() -> None:
    keys = pl.DataFrame({"k": [1, 1, 1, 2, 2, 2]})
    power = np.array([100.0, 50.0, 100.0, 400.0, 500.0, 600.0])
    envelope, rough = curves(keys, power)
    assert envelope == pytest.approx([100.0, 100.0, 100.0, 400.0, 500.0, 600.0])
    assert rough[1] == pytest.approx(np.log(2))
    assert np.isnan(rough[[0, 2, 3, 5]]).all()


def test_experts_count_the_touched_ones() -> None:
    experts = next(table for table in TABLES if table.name == "experts")
    row = {
        "moe_dtype": "bfloat16",
        "kernel_source": "vllm_fused_moe",
        "hidden_size": 1024,
        "inter_size": 512,
        "moe_tp_size": 1,
        "num_experts": 8,
        "moe_ep_size": 1,
        "num_tokens": 10_000,
        "topk": 2,
    }
    kernel = experts.kernel(row)
    assert kernel.flops == 2 * 20_000 * 1024 * 512 * 3
    weights = 8 * 1024 * 512 * 3 * 2
    assert kernel.moved_bytes == pytest.approx(weights + 20_000 * (2 * 1024 + 3 * 512) * 2, rel=1e-6)
    few = experts.kernel({**row, "num_tokens": 1})
    assert few.moved_bytes < 0.35 * weights
    assert experts.kernel({**row, "kernel_source": "moe_nongated"}).flops == kernel.flops * 2 / 3
