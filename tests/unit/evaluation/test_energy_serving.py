"""Which rows of older sources are served decoders."""

from __future__ import annotations

import json

import polars as pl

from predictor.evaluation.energy_serving import known_rows
from predictor.models.corpus.ml_energy_v2 import SOURCE as V2
from predictor.models.corpus.wilkins import SOURCE as WILKINS


def test_rows_of_unknown_decoders_hosts_and_layers_in_a_row_are_left_out() -> None:
    known, served, drawn = "tiiuae/falcon-7b", {"devices": 2, "output_tokens": 8}, {"devices": 1, "frames": 1}
    rows = [
        (known, "gpu_board", V2, served, True),
        ("nobody/knows", "gpu_board", V2, served, False),
        (known, "gpu_board", V2, drawn, False),
        (known, "gpu_board", WILKINS, served, False),
        (known, "gpu_board", WILKINS, {**served, "devices": 1}, True),
        (known, "host_cpu", WILKINS, {**served, "devices": 1}, False),
    ]
    frame = pl.DataFrame(
        [(a, b, c, json.dumps(d), kept) for a, b, c, d, kept in rows],
        schema=["subject", "scope", "source", "configuration", "kept"],
        orient="row",
    )
    assert known_rows(frame)["kept"].to_list() == [True, True]
