"""What is assumed of published runs where their tables are silent."""

from __future__ import annotations

import pytest

from predictor.models.corpus.distributed import (
    IMPOSSIBLE_ROWS,
    JAX,
    _has_flash,
    _least_recompute,
    is_usable,
)
from predictor.types import Recompute

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
