"""Scaling of data-parallel jobs with an application left out, on step times made up from the formula."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from predictor.evaluation.scaling import (
    _PER_BYTE_S,
    LAST_BUCKET_SHARE,
    VARYING,
    left_out,
    scaling_suite,
    scaling_table,
    with_sight,
)
from predictor.features.architectures import architecture
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.models.corpus import sia_pollux
from predictor.models.corpus.schema import conform
from predictor.parallel.data_parallel import fill_buckets
from predictor.types import Mode, Optimizer, Precision, Runtime
from predictor.units import MIB

_HEADER = "app,cluster,kind,placement,num_nodes,num_replicas,local_bsz,step_time,sync_time"
_PLACES = (("1", 1, 1), ("2", 1, 2), ("4", 1, 4), ("22", 2, 4), ("12", 2, 3), ("21", 2, 3))


def step_s(app: str, batch: int, nodes: int, ranks: int) -> float:
    single = 0.05 + 0.01 * batch
    if ranks == 1:
        return single
    wait_s = sia_pollux.GRADIENT_BYTES[app] * float(_PER_BYTE_S[30 if nodes == 1 else 60])
    exposed_s = max(wait_s - single / 2, wait_s * LAST_BUCKET_SHARE[app])
    return single + exposed_s + (0.02 * nodes if app in VARYING else 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [_HEADER]
    for app in sia_pollux.GRADIENT_BYTES:
        for batch in (4, 16, 64):
            for name, nodes, ranks in _PLACES:
                seconds = step_s(app, batch, nodes, ranks)
                lines.append(f"{app},aws,placements,{name},{nodes},{ranks},{batch},{seconds},0.01")
    lines += [
        "bert,dgx-ext,placements,2,1,2,4,9.0,0.1",
        "bert,aws,scalability,2,1,2,4,9.0,0.1",
        "gpt_pmp,rtx,placements,8,1,8,4,9.0,0.1",
    ]
    with gzip.open(tmp_path / "sia_step_times.csv.gz", "wt", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")
    return tmp_path


@pytest.fixture
def corpus(folder: Path) -> Path:
    counted = sia_pollux.read(folder)
    conform(counted.frame, sia_pollux.SOURCE).write_parquet(folder / f"{sia_pollux.SOURCE}.parquet")
    return folder


def test_the_reader_keeps_measured_placements_once(folder: Path) -> None:
    counted = sia_pollux.read(folder)
    counts = dict(counted.counts)
    assert counts.pop("available") == sum(counts.values()) == 6 * 3 * 6 + 3
    assert counts["extrapolated by the authors, or of another cluster"] == 2
    assert counts["pipelined"] == 1
    assert counts["another order of the same nodes: median taken"] == 6 * 3
    assert counted.frame["scope"].unique().to_list() == ["host_wall"]


def test_an_application_that_nobody_saw_scales_as_its_gradients_say(corpus: Path) -> None:
    table = scaling_table(corpus)
    assert len(table.app) == 6 * 3 * 4
    assert (table.single_s < table.step_s).all()
    assert np.abs(left_out(table)).max() < 1e-9
    assert np.abs(with_sight(table)).max() < 1e-9


def test_contention_of_one_varying_application_is_the_others(corpus: Path) -> None:
    table = scaling_table(corpus)
    slower = replace(table, step_s=table.step_s + 0.3 * (table.app == "yolov3"))
    moved = left_out(slower)
    speech = table.app == "deepspeech2"
    assert np.allclose(np.exp(moved[speech]) * table.step_s[speech] - table.step_s[speech], 0.3)
    assert np.abs(moved[~np.isin(table.app, VARYING)]).max() < 1e-9


@pytest.mark.parametrize(
    ("app", "name", "sizes"),
    [
        ("bert", "bert_base_spans", {"batch": 1}),
        ("cifar10", "resnet18_cifar", {"batch": 2}),
        ("deepspeech2", "deepspeech2", {"batch": 1, "frames": 40, "hidden": 800}),
        ("imagenet", "resnet50", {"batch": 2}),
        ("yolov3", "yolov3", {"batch": 1}),
    ],
)
def test_the_last_bucket_is_the_graphs(app: str, name: str, sizes: dict[str, int]) -> None:
    program = build_program(
        read_graph(architecture(name, **sizes)),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.SGD,
        runtime=Runtime.EAGER,
    )
    ends_s = range(1 + max(gradient.op_index for gradient in program.gradients))
    buckets = fill_buckets(program.gradients, ends_s, 25 * MIB)
    held = sum(bucket.size_bytes for bucket in buckets)
    assert buckets[-1].size_bytes / held == pytest.approx(LAST_BUCKET_SHARE[app], abs=1e-3)


def test_the_suite_names_every_application(corpus: Path) -> None:
    rows, tables = scaling_suite(corpus, lambda what, done, total: None)
    assert {row.id for row in rows} == {"D3"}
    assert rows[0].goal == 0.08
    assert rows[0].value < 1e-9
    names = "all", "all, fitted with sight of the runs", *sia_pollux.GRADIENT_BYTES
    assert {row.group for row in rows} == {f"scaling, {name}" for name in names}
    assert len(tables[0].lines) == 6
