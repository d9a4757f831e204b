"""Small ONNX files, good and bad, built where a test needs them."""

from __future__ import annotations

from onnx import ModelProto, TensorProto, helper
from onnx.external_data_helper import set_external_data


def _value(name: str, shape: list[object]) -> object:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _model(
    nodes: list[object], inputs: list[object], outputs: list[object], weights: list[object]
) -> ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _weight(name: str, *shape: int) -> TensorProto:
    size = 4
    for dim in shape:
        size *= dim
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(size), raw=True)


def perceptron(width: int = 64, features: object = 32) -> ModelProto:
    """Two layers with a symbolic batch; `features` may be a symbol too."""
    rows = features if isinstance(features, int) else 32
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["a"], "activate"),
        helper.make_node("MatMul", ["a", "w1"], ["y"], "second"),
    ]
    weights = [_weight("w0", rows, width), _weight("w1", width, 10)]
    return _model(nodes, [_value("x", ["batch", features])], [_value("y", ["batch", 10])], weights)


def sequence_model() -> ModelProto:
    """An input with two symbols, of which `batch` is only one."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "project")]
    shapes = [_value("x", ["batch", "sequence", 32])], [_value("y", ["batch", "sequence", 8])]
    return _model(nodes, *shapes, [_weight("w", 32, 8)])


def cyclic() -> ModelProto:
    """Two nodes that wait for each other."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "one"),
        helper.make_node("Relu", ["a"], ["b"], "two"),
    ]
    return _model(nodes, [_value("x", [4])], [_value("b", [4])], [])


def external() -> ModelProto:
    """Weights in a file that does not exist, which is how a model travels."""
    model = perceptron()
    for tensor in model.graph.initializer:
        set_external_data(tensor, "absent.bin", 0, len(tensor.raw_data))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
    return model


def custom_op() -> ModelProto:
    """An op that no rule knows, with a declared output."""
    nodes = [helper.make_node("Frobnicate", ["x"], ["y"], "odd", domain="com.example")]
    model = _model(nodes, [_value("x", [4, 8])], [_value("y", [4, 8])], [])
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model
