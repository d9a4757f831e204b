from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from predictor.errors import InvalidData
from predictor.evaluation.timm_counts import CACHE, GraphCount, count_graph, count_graphs
from predictor.evaluation.timm_graphs import (
    UNEXPLAINED,
    Pair,
    TableValues,
    explain,
    join,
    read_table,
    timm_rows,
    timm_tables,
)
from predictor.features.builder import GraphBuilder

# 10 GMAC of convolutions, 1 of attention, 2 of a recurrent layer; 0.1 G of normalization.
COUNT = GraphCount(
    "m-224.onnx.gz",
    "m",
    224,
    parameters=5_000_000,
    products={"convolution": 20 * 10**9, "attention": 2 * 10**9, "recurrent": 4 * 10**9},
    elements={"batch_norm": 5 * 10**7},
)


def pair(*values: tuple[float, float]) -> Pair:
    return Pair(COUNT, TableValues(tuple(sorted(values))))


@pytest.mark.parametrize(
    ("gmacs", "parameters_m", "reason"),
    [
        (13.1, 5.0, "adds normalizations"),
        (11.1, 5.0, "misses recurrent"),
        (12.1, 5.0, "misses fused attention"),
        (12.1, 4.0, "another model"),
        (7.0, 5.0, UNEXPLAINED),
    ],
)
def test_reasons_are_computed(gmacs: float, parameters_m: float, reason: str) -> None:
    assert reason in explain(pair((gmacs, parameters_m)))


def test_rounding_alone_explains_small_models() -> None:
    small = replace(COUNT, products={"convolution": 2 * 44 * 10**6}, elements={})
    assert "two decimals" in explain(Pair(small, TableValues(((0.04, 5.0),))))
    assert explain(Pair(small, TableValues(((0.06, 5.0),)))) == UNEXPLAINED


def test_errors_by_hand() -> None:
    found = pair((13.1, 5.0), (12.1, 5.01))
    assert found.gmacs == 13.0
    assert found.counter_gmacs == pytest.approx(13.1)
    assert found.macs_error == pytest.approx(0.1 / 13.1)
    assert found.parameter_error == 0.0
    assert found.table.disagree


def test_rows_keep_other_models_in_the_first_group() -> None:
    rows = timm_rows([COUNT], [pair((13.1, 5.0)), pair((26.0, 9.0))])
    shares = {row.group: row.value for row in rows if row.metric == "within_1_percent"}
    assert shares == {
        "timm, products alone": 0.5,
        "timm, the table's counter": 0.5,
        "timm, same model, products alone": 1.0,
        "timm, same model, the table's counter": 1.0,
    }
    assert {row.id for row in rows} == {"G2"}
    assert timm_rows([], []) == []


def test_tables_list_every_outlier() -> None:
    _, summary, outliers, parameters = timm_tables([pair((13.0, 5.0)), pair((7.0, 5.0)), pair((26.0, 9.0))])
    assert {line[0] for line in summary.lines} == {
        UNEXPLAINED,
        "another model: parameter counts differ by more than 2 %",
    }
    assert len(outliers.lines) == 2
    assert len(parameters.lines) == 1


def test_only_the_latest_inference_rows_are_joined(tmp_path: Path) -> None:
    header = ["mode", "model", "img_size", "gmacs", "param_count", "is_latest_version_of_file"]
    rows = [
        ["infer", "m.tag_in1k", "224", "1.5", "5", "True"],
        ["infer", "m", "224", "1.4", "5", "True"],
        ["infer", "m", "224", "9", "5", "False"],
        ["train", "m", "224", "8", "5", "True"],
        ["infer", "m", "256", "", "5", "True"],
    ]
    with gzip.open(tmp_path / "timm_benchmarks_all.csv.gz", "wt") as file:
        csv.writer(file).writerows([header, *rows])
    table = read_table(tmp_path)
    assert table == {("m", 224): TableValues(((1.4, 5.0), (1.5, 5.0)))}
    pairs = join([COUNT, replace(COUNT, image_size=256), replace(COUNT, error="refused")], table)
    assert [item.table.gmacs for item in pairs] == [1.5]


# Operations per element, as fvcore's jit_handles.py defines them.
@pytest.mark.parametrize(
    ("kind", "operations"),
    [
        ("batch_norm", 2),
        ("batch_norm_plain", 1),
        ("layer_norm", 5),
        ("group_norm", 5),
        ("layer_norm_plain", 4),
        ("weight_norm", 5),
        ("global_pool", 1),
        ("resize_nearest", 1),
        ("resize_linear", 4),
        ("resize_cubic", 0),
        ("softmax", 0),
    ],
)
def test_what_the_counter_adds(kind: str, operations: int) -> None:
    item = Pair(replace(COUNT, elements={kind: 10**9}), TableValues(((13.0, 5.0),)))
    assert item.counter_gmacs == pytest.approx(13.0 + operations)


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"timm_benchmarks_all\.csv\.gz"):
        read_table(tmp_path)
    with pytest.raises(InvalidData, match=r"index\.jsonl"):
        count_graphs(tmp_path, tmp_path)


def _export(folder: Path, name: str) -> None:
    b = GraphBuilder()
    x = b.input("image", ("batch", 4, 8, 8))
    x = b.batch_norm(b.conv(x, 8, kernel=1, bias=False))
    x = b.conv(x, 8, kernel=3, groups=8, padding=1, bias=False)
    folder.joinpath(name).write_bytes(gzip.compress(b.build([b.linear(b.flatten(b.global_pool(x)), 10)])))


def test_counts_of_a_graph_by_hand(tmp_path: Path) -> None:
    from predictor.api import Predictor

    _export(tmp_path, "m-8.onnx.gz")
    found = count_graph(tmp_path / "m-8.onnx.gz", "m", 8, Predictor.load())
    assert found.products == {
        "convolution": 2 * 64 * 4 * 8,
        "depthwise": 2 * 64 * 8 * 9,
        "linear": 2 * 8 * 10,
    }
    assert found.macs == 64 * 4 * 8 + 64 * 8 * 9 + 80
    assert found.elements == {"batch_norm": 8 * 64, "global_pool": 8 * 64}
    assert found.parameters == 32 + 16 + 72 + 90
    assert found.fallback_fraction == 0.0


def test_norms_and_resampling_are_told_apart(tmp_path: Path) -> None:
    from predictor.api import Predictor

    b = GraphBuilder()
    x = b.input("image", ("batch", 4, 8, 8))
    x = b.group_norm(b.resize(b.resize(x, 2.0), 2.0, mode="linear"), 2)
    plain = b.op("LayerNormalization", [x, b.op("ConstantOfShape", [b.constant([32])])], axis=-1)
    (tmp_path / "m").write_bytes(gzip.compress(b.build([b.layer_norm(plain)])))
    found = count_graph(tmp_path / "m", "m", 8, Predictor.load())
    size = 4 * 32 * 32
    assert found.elements == {
        "resize_nearest": size // 4,
        "resize_linear": size,
        "group_norm": size,
        "layer_norm_plain": size,
        "layer_norm": size,
    }


def test_damaged_exports_are_counted_as_errors(tmp_path: Path) -> None:
    from predictor.api import Predictor

    damaged = tmp_path / "d.onnx.gz"
    damaged.write_bytes(gzip.compress(b"no graph"))
    assert "not an ONNX model" in count_graph(damaged, "d", 8, Predictor.load()).error


def test_counts_are_kept_while_nothing_changes(tmp_path: Path) -> None:
    _export(tmp_path, "m-8.onnx.gz")
    index = tmp_path / "index.jsonl"
    index.write_text(json.dumps({"file": "m-8.onnx.gz", "model": "m", "image_size": 8}) + "\n")
    cache = tmp_path / "corpus"
    first = count_graphs(tmp_path, cache)
    content = json.loads((cache / CACHE).read_text())
    content["graphs"][0]["nodes"] = 12345
    (cache / CACHE).write_text(json.dumps(content))
    assert count_graphs(tmp_path, cache)[0].nodes == 12345
    content["key"] = "of other code"
    (cache / CACHE).write_text(json.dumps(content))
    assert count_graphs(tmp_path, cache) == first
