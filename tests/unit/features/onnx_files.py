"""Small ONNX files, and the one clear line that a bad one earns."""

from __future__ import annotations

import pytest
from onnx import FunctionProto, TensorProto, helper

from predictor.errors import InvalidGraph
from predictor.features.builder import GraphBuilder
from predictor.features.reading.reader import read_graph

FLOAT = TensorProto.FLOAT


def model_of(
    nodes: list[object],
    inputs: dict[str, list[int]] | None = None,
    outputs: tuple[str, ...] = ("y",),
    initializers: tuple[TensorProto, ...] = (),
    functions: tuple[FunctionProto, ...] = (),
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(name, FLOAT, shape)
            for name, shape in (inputs or {"x": [2, 3]}).items()
        ],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        initializer=initializers,
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid("mine", 1) for _ in functions[:1])]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)
    return bytes(model.SerializeToString())


def good() -> bytes:
    b = GraphBuilder()
    return b.build([b.relu(b.linear(b.input("x", (2, 3)), 4))])


def fails(data: bytes, *parts: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        read_graph(data)
    message = caught.value.message
    assert "\n" not in message
    for part in parts:
        assert part in message
