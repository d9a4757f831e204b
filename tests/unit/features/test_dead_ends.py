"""Nodes that nothing can read are left out; values that the caller gives or gets must have a known type."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from predictor.errors import InvalidGraph
from predictor.features.reader import read_graph

FLOAT = TensorProto.FLOAT
_OPTIONAL = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, None))


@pytest.mark.parametrize(
    "op_type", ["SequenceLength", "OptionalHasElement", "Reshape", "If", "Relu", "Shape"]
)
@pytest.mark.parametrize("outputs", [[], [""]])
def test_a_node_that_nothing_can_read_is_left_out(op_type: str, outputs: list[str]) -> None:
    nodes = [helper.make_node(op_type, ["x"], outputs), helper.make_node("Relu", ["x"], ["y"])]
    given = helper.make_tensor_value_info("x", FLOAT, [2, 3])
    returned = helper.make_tensor_value_info("y", FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "g", [given], [returned]))
    graph = read_graph(model.SerializeToString(), batch=4)
    assert [node.op_type for node in graph.nodes] == ["Relu"]


@pytest.mark.parametrize("element", [FLOAT, 38])
def test_a_returned_value_of_unknown_type_is_named(element: int) -> None:
    # Cosh without an operand; and an output that is the input, of an element type that does not exist.
    nodes = [helper.make_node("Cosh", [], ["y"])] if element == FLOAT else []
    name = "y" if nodes else "x"
    given = helper.make_tensor_value_info("x", element, [3])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_value_info(name, _OPTIONAL)])
    # Without an opset of its own domain nothing checks the node.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 4)])
    with pytest.raises(InvalidGraph, match=f"'{name}'"):
        read_graph(model.SerializeToString())
