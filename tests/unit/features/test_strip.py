"""Stripping removes weights and nothing that a prediction depends on."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from predictor.errors import InvalidGraph, OutputNotWritable
from predictor.features.builder import GraphBuilder
from predictor.features.reading import model_file
from predictor.features.reading.reader import read_graph
from predictor.features.reading.strip import strip_model, write_stripped
from predictor.features.reading.weight_payloads import WireError, strip_bytes
from predictor.features.reading.weights import DROPPED_LOCATION


def model_with_weights(width: int = 600, *, typed_fields: bool = False) -> ModelProto:
    """Two layers with random weights, a Resize whose scales are folded floats, and index tables."""
    b = GraphBuilder()
    x = b.input("x", ("batch", 3, 8, 8))
    scales = b.concat([b.constant([1.0, 1.0], name="keep"), b.constant([2.0, 2.0], name="grow")], axis=0)
    x = b.op("Resize", [b.conv(x, 4, kernel=3, bias=True), None, scales])
    x = b.gather(b.reshape(x, (0, -1)), b.constant(list(range(width)), name="index"), axis=1)
    model = ModelProto.FromString(b.build([b.linear(b.relu(x), width)]))
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = generator.standard_normal(tuple(tensor.dims)).astype(np.float32)
            if typed_fields:
                tensor.CopyFrom(
                    helper.make_tensor(tensor.name, TensorProto.FLOAT, tensor.dims, array.ravel())
                )
            else:
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


@pytest.mark.parametrize("typed_fields", [False, True])
def test_the_graph_is_the_same_without_weights(typed_fields: bool) -> None:
    data = model_with_weights(typed_fields=typed_fields).SerializeToString()
    small = strip_model(data)
    assert len(small) < len(data) / 100
    assert read_graph(small, batch=3) == read_graph(data, batch=3)


def test_payloads_are_gone_and_marked() -> None:
    data = model_with_weights().SerializeToString()
    stripped = ModelProto.FromString(strip_model(data))
    weights = {tensor.name: tensor for tensor in stripped.graph.initializer}
    assert not weights["linear.weight"].raw_data
    assert weights["linear.weight"].external_data[0].value == DROPPED_LOCATION
    assert list(weights["linear.weight"].dims) == [600, 600]
    # Four elements: no size of a Resize, so a weight like any other.
    assert not weights["conv.bias"].raw_data
    # 4.8 kB of indices are too many; the scales of the Resize are needed.
    assert not weights["index"].raw_data
    assert weights["grow"].raw_data


def test_the_wire_reader_agrees_with_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed_fields in (False, True):
        data = model_with_weights(typed_fields=typed_fields).SerializeToString()
        cut = strip_bytes(data)
        assert len(cut) < len(data) / 100
        plain = strip_model(data)
        monkeypatch.setattr(model_file, "_PARSE_DIRECTLY_BYTES", 0)
        assert strip_model(data) == plain
        monkeypatch.undo()


def test_tensors_in_attributes_and_bodies_are_cut() -> None:
    big = numpy_helper.from_array(np.ones((100, 100), np.float32), "big")
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=big), helper.make_node("MatMul", ["x", "c"], ["r"])],
        "branch",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 100])],
        initializer=[big],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 100])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    data = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    assert len(data) > 160_000
    assert len(strip_bytes(data)) < 2_000
    assert len(strip_model(data)) < 2_000
    assert read_graph(strip_model(data)) == read_graph(data)


def test_stripping_twice_changes_nothing() -> None:
    once = strip_model(model_with_weights().SerializeToString())
    assert strip_model(once) == once


@pytest.mark.parametrize("data", [b"\x3a", b"\x3a\xff\xff\xff\xff\x0f", b"\xff" * 12, b"\x3b\x00"])
def test_malformed_wire_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        strip_bytes(data)


def test_weights_are_never_looked_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 4096)
    model = model_with_weights()
    for tensor in model.graph.initializer:
        if tensor.name == "linear.weight":
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="../secret.bin")
    folder = tmp_path / "inner"
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    before = secret.stat().st_atime_ns
    assert read_graph(path, batch=2).parameter_count > 360_000
    assert secret.stat().st_atime_ns == before
    assert b"secret" not in strip_model(path)


def test_a_large_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "_PARSE_DIRECTLY_BYTES", 1000)
    data = model_with_weights().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    assert read_graph(path, batch=2) == read_graph(data, batch=2)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidGraph, match="not an ONNX model"):
        read_graph(path)


def test_writing_is_whole_or_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "small.onnx"
    source.write_bytes(model_with_weights().SerializeToString())
    size = write_stripped(source, target)
    assert target.stat().st_size == size
    assert read_graph(target, batch=2) == read_graph(source, batch=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model.onnx", "small.onnx"]
    source.write_bytes(b"nonsense")
    with pytest.raises(InvalidGraph):
        write_stripped(source, target)
    assert target.stat().st_size == size


def test_unwritable_targets(tmp_path: Path) -> None:
    data = model_with_weights().SerializeToString()
    for target in (tmp_path, tmp_path / "absent" / "small.onnx"):
        with pytest.raises(OutputNotWritable) as caught:
            write_stripped(data, target)
        assert os.fspath(target) in caught.value.message
    assert list(tmp_path.iterdir()) == []
