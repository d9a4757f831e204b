"""The published rows as requests; the predictions are scored by `perfcast evaluate --suite distributed`."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from predictor.errors import InvalidData
from predictor.evaluation.distributed import FILE, read_korthikanti, request_of
from predictor.evaluation.distributed_published import chips
from predictor.features.architectures.gpt_megatron import MegatronConfig, megatron_gpt
from predictor.features.reading.reader import read_graph
from predictor.types import Recompute, Schedule
from tests.public_data import public_data

HEADER = (
    "row_id,source_repo,model,layers,hidden,heads,vocab,ffn_hidden,seq_len,global_batch,micro_batch,dp,tp,pp,"
    "vpp,sequence_parallel,recompute,n_devices,step_time_s"
)


def write(folder: Path, *lines: str) -> Path:
    with gzip.open(folder / FILE, "wt", encoding="utf-8") as file:
        file.write("\n".join((HEADER, *lines)) + "\n")
    return folder


def test_a_row_becomes_a_plan(tmp_path: Path) -> None:
    paper = "paper: Korthikanti et al. 2022"
    folder = write(
        tmp_path,
        f"D1,{paper},gpt3-175b,96,12288,96,51200,49152,2048,64,1,1,8,8,3,1,selective (attention),64,13.75",
        "D2,another,x,1,1,1,1,1,1,1,1,1,1,1,1,0,full,1,1.0",
    )
    (row,) = read_korthikanti(folder)
    assert (row.plan.tp, row.plan.pp, row.plan.virtual_stages, row.plan.microbatches) == (8, 8, 3, 64)
    assert row.plan.schedule is Schedule.INTERLEAVED
    assert row.plan.recompute is Recompute.SELECTIVE
    assert row.plan.device_count == row.devices == 64
    assert request_of(row).cluster == "dgx-a100-80gb:8"


def test_boards_of_one_chip_leave_together() -> None:
    boards = ["a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm-180gb", "gb200-superchip-186gb"]
    a100, other, h100, b200, gb200 = chips(np.array(boards)).tolist()
    assert a100 == other
    assert b200 == gb200
    assert len({a100, h100, b200}) == 3


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match="expected the curated table"):
        read_korthikanti(tmp_path)


@pytest.mark.data
def test_all_eight_rows_are_found() -> None:
    rows = read_korthikanti(public_data("curated"))
    assert len(rows) == 8
    assert {row.devices for row in rows} == {8, 64, 280, 512}
    assert all(row.plan.device_count == row.devices for row in rows)


@pytest.mark.parametrize("flash", [False, True])
def test_megatron_gpt_has_the_published_size(flash: bool) -> None:
    config = MegatronConfig(layers=2, width=256, heads=4, vocabulary=1024)
    graph = read_graph(megatron_gpt(config, sequence=128, flash=flash), batch=2)
    # 12 h^2 + 13 h a layer, tables of words and positions, a final norm (Narayanan et al. 2021, equation 2).
    assert graph.parameter_count == 2 * (12 * 256**2 + 13 * 256) + (1024 + 128) * 256 + 2 * 256
    assert graph.batch == 2
