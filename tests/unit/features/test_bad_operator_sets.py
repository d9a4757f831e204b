"""Operator sets, element types and shapes in other files: the message names the cause."""

from __future__ import annotations

import pytest
from onnx import ModelProto, TensorProto, helper

from predictor.errors import InvalidGraph
from predictor.features.reading.reader import read_graph
from tests.unit.features.onnx_files import fails, good, model_of


@pytest.mark.parametrize(("domain", "number"), [("", 0), ("", -1), ("ai.onnx", 0), ("ai.onnx.ml", 0)])
def test_an_operator_set_that_does_not_exist(domain: str, number: int) -> None:
    model = ModelProto.FromString(good())
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid(domain, number))
    fails(model.SerializeToString(), f"operator set version {number} of {domain or 'ai.onnx'} does not exist")


def test_a_domain_of_ones_own_may_count_from_zero() -> None:
    model = ModelProto.FromString(good())
    model.opset_import.append(helper.make_opsetid("mine", 0))
    assert read_graph(model.SerializeToString()).nodes


@pytest.mark.parametrize(
    ("elem_type", "word"), [(TensorProto.COMPLEX64, "complex64"), (TensorProto.FLOAT8E4M3FN, "float8e4m3fn")]
)
@pytest.mark.parametrize("op_type", ["MatMul", "Gemm", "Conv"])
def test_an_element_type_that_an_operator_does_not_take_is_named(
    op_type: str, elem_type: int, word: str
) -> None:
    shapes = {"x": [1, 8, 8, 8], "w": [8, 8, 3, 3]} if op_type == "Conv" else {"x": [4, 8], "w": [8, 8]}
    inputs = [helper.make_tensor_value_info(name, elem_type, shape) for name, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", elem_type, None)]
    graph = helper.make_graph([helper.make_node(op_type, ["x", "w"], ["y"])], "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    fails(model.SerializeToString(), op_type, f"does not define it for {word}", "cast before it")


def test_numbers_of_a_shape_in_a_file_beside_the_model_are_asked_for() -> None:
    shape = TensorProto(
        name="shape", data_type=TensorProto.INT64, dims=[2], data_location=TensorProto.EXTERNAL
    )
    shape.external_data.add(key="location", value="weights.bin")
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    fails(
        model_of([node], {"x": [1, 6]}, initializers=(shape,)), "'shape' lie outside the file", "size_thres"
    )


def test_an_operator_set_without_shape_inference_is_to_be_converted() -> None:
    model = ModelProto.FromString(model_of([helper.make_node("Relu", ["x"], ["y"])]))
    model.opset_import[0].version = 1
    fails(model.SerializeToString(), "operator set 1", "onnx.version_converter")


def test_a_contradiction_under_a_name_of_megabytes_is_told_in_few_words() -> None:
    name = "é" * 200_000
    nodes = [helper.make_node("Conv", ["x", "w"], [name], name=name)]
    with pytest.raises(InvalidGraph) as raised:
        read_graph(model_of(nodes, {"x": [1, 2, 3], "w": [1, 2]}, outputs=(name,)))
    message = str(raised.value)
    assert len(message) <= 4000
    assert "characters left out" in message
    assert message.endswith("dimensions in the input tensor (1).")
