"""What is assumed of published runs where their tables are silent."""

from __future__ import annotations

import pytest

from predictor.models.corpus.distributed import (
    DRAFT_COMMIT,
    IMPOSSIBLE_ROWS,
    JAX,
    VTRAIN,
    _has_flash,
    _least_recompute,
    _plan,
    _recipe,
    is_usable,
    with_virtual_stages,
)
from predictor.types import Recompute
from predictor.units import MIB

RECORD = {
    "row_id": "D1",
    "full_config": "1",
    "verified": "1",
    "source_commit": "x",
    "source_repo": "NVIDIA/JAX-Toolbox",
    "framework": "JAX Rosetta Paxml",
    "device": "A100-SXM4-80GB",
    "precision": "TE BF16",
    "recompute": "",
    "layers": "24",
    "hidden": "4096",
    "heads": "32",
    "seq_len": "2048",
    "micro_batch": "1",
    "tp": "1",
    "pp": "1",
    "arch": "gpt",
    "n_devices": "64",
    "global_batch": "64",
    "sharding": "DP",
    "offload": "",
    **dict.fromkeys(
        ("ffn_hidden", "kv_heads", "head_dim", "vocab", "n_experts", "moe_topk", "moe_ffn_hidden"), ""
    ),
    **dict.fromkeys(("cp", "ep", "vpp", "fsdp_size"), ""),
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, Recompute.NONE),
        # 8 samples keep 55 GB without and 184 GB with scores in memory.
        ({"micro_batch": "8"}, Recompute.SELECTIVE),
        ({"micro_batch": "8", "framework": "JAX Rosetta MaxText"}, Recompute.NONE),
        ({"layers": "96", "hidden": "12288", "heads": "96", "micro_batch": "6"}, Recompute.FULL),
        ({"layers": "96", "hidden": "12288", "heads": "96", "tp": "8", "pp": "4"}, Recompute.NONE),
    ],
)
def test_as_much_is_recomputed_as_makes_activations_fit(change: dict[str, str], expected: Recompute) -> None:
    assert _least_recompute({**RECORD, **change}) is expected


def test_fused_attention_of_jax() -> None:
    assert not _has_flash(RECORD, JAX)
    assert _has_flash({**RECORD, "framework": "JAX Rosetta MaxText"}, JAX)
    assert _has_flash({**RECORD, "recompute": "flash"}, JAX)
    assert not _has_flash({**RECORD, "framework": "JAX Rosetta MaxText", "precision": "BF16"}, JAX)


def test_rows_that_contradict_themselves_stay_out() -> None:
    assert is_usable(RECORD)
    assert {"D01651", "D00965", "D00907", "D00930"} == IMPOSSIBLE_ROWS
    assert not any(is_usable({**RECORD, "row_id": name}) for name in IMPOSSIBLE_ROWS)
    assert not is_usable({**RECORD, "source_commit": DRAFT_COMMIT})


def test_when_gradients_are_averaged_and_how_much_at_once() -> None:
    beside, _ = _plan(RECORD, JAX)
    assert beside.overlap
    assert beside.bucket_bytes == 25 * MIB
    t5x, _ = _plan({**RECORD, "framework": "JAX Rosetta T5X"}, JAX)
    megatron, _ = _plan(RECORD, VTRAIN)
    assert not t5x.overlap
    assert not megatron.overlap
    assert (t5x.bucket_bytes, megatron.bucket_bytes) == (130 * MIB, 10**9)


def test_what_drops_out_and_whose_heads_have_a_size_of_their_own() -> None:
    assert not _recipe(RECORD, JAX).drops
    assert _recipe(RECORD, VTRAIN).drops
    small = {**RECORD, "hidden": "512", "heads": "6"}
    assert _recipe({**small, "arch": "t5"}, JAX).heads == 6
    with pytest.raises(Exception, match="heads do not divide the width"):
        _recipe(small, JAX)


def test_virtual_stages_that_another_table_prints() -> None:
    rows = [{"source_repo": "one", "model_key": "m", "device": "d", "tp": "1", "pp": "4", "vpp": "10"}]
    rows += [{**rows[0], "vpp": ""}, {**rows[0], "vpp": "", "pp": "2"}]
    filled = [row["vpp"] for row in with_virtual_stages(rows)]
    assert filled == ["10", "10", ""]
    assert [row["vpp"] for row in with_virtual_stages(rows[1:])] == ["", ""]
