"""Nodes that nothing can read are left out; values that the caller gives or gets must have a known type."""

from __future__ import annotations

import resource

import pytest
from onnx import TensorProto, ValueInfoProto, helper

from predictor.errors import InvalidGraph
from predictor.features.reading.reader import read_graph

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


def _value(name: str, shape: list[int] | None = None, element: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def test_a_vector_of_absurd_length_that_tells_a_shape_takes_no_memory() -> None:
    nodes = [helper.make_node("Slice", ["x", "starts", "ends", "axes", "steps"], ["y"])]
    lengths = {"starts": 3, "ends": 3, "axes": 3, "steps": 2**31 - 1}
    vectors = [_value(name, [length], TensorProto.INT64) for name, length in lengths.items()]
    graph = helper.make_graph(nodes, "g", [_value("x", [20, 10, 5]), *vectors], [_value("y", [19, 3, 2])])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_graph(helper.make_model(graph).SerializeToString()).values["y"].shape == (19, 3, 2)
    # Kibibytes: a list of that many dimensions takes 140 GB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_parts_of_unknown_length_keep_the_rank() -> None:
    node = helper.make_node("Split", ["x", "lengths"], ["a", "b"])
    inputs = [_value("x", [0]), _value("lengths", [2], TensorProto.INT64)]
    graph = helper.make_graph([node], "g", inputs, [_value("a", []), _value("b", [0])])
    read = read_graph(helper.make_model(graph).SerializeToString())
    assert [len(read.values[name].shape) for name in "ab"] == [1, 1]


@pytest.mark.parametrize("op_type", ["SequenceMap", "Loop"])
def test_a_node_with_more_outputs_than_its_body_is_named(op_type: str) -> None:
    body_inputs = [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL)]
    if op_type == "SequenceMap":
        body = helper.make_graph(
            [helper.make_node("Relu", ["p"], ["q"])], "b", [_value("p", [3])], [_value("q")]
        )
        nodes = [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])]
        operands = ["s"]
    else:
        body = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["q"]), helper.make_node("Identity", ["go"], ["on"])],
            "b",
            body_inputs,
            [_value("on", [], TensorProto.BOOL), _value("q", [3])],
        )
        nodes = []
        operands = ["trips", ""]
    nodes.append(helper.make_node(op_type, operands, ["y", "z"], name="many", body=body))
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [2])
    graph = helper.make_graph(nodes, "g", [_value("x", [3])], [_value("y"), _value("z")], initializer=[trips])
    with pytest.raises(InvalidGraph, match=r"many.* 2 outputs"):
        read_graph(helper.make_model(graph).SerializeToString())


@pytest.mark.parametrize("op_type", ["Expand", "Reshape", "Tile"])
def test_constants_of_more_dimensions_than_numpy_knows(op_type: str) -> None:
    source = helper.make_tensor("c", FLOAT, [1] * (64 if op_type == "Tile" else 1), [1.0])
    target = helper.make_tensor("s", TensorProto.INT64, [64], [1] * 64)
    graph = helper.make_graph(
        [helper.make_node(op_type, ["c", "s"], ["y"])], "g", [], [_value("y")], initializer=[source, target]
    )
    read = read_graph(helper.make_model(graph).SerializeToString())
    assert read.values[read.outputs[0]].shape == (1,) * 64


@pytest.mark.parametrize("parts", [2, 2**31])
def test_a_split_of_another_number_of_parts_is_named(parts: int) -> None:
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], num_outputs=parts)
    graph = helper.make_graph([node], "g", [_value("x", [5])], [_value("a")])
    with pytest.raises(InvalidGraph, match=rf"num_outputs={parts} for 3 outputs"):
        read_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def test_an_axis_beyond_32_bits_is_named() -> None:
    node = helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=2**31)
    graph = helper.make_graph([node], "g", [_value("x", [2, 3]), _value("s", [3])], [_value("y")])
    with pytest.raises(InvalidGraph, match="axis 2147483648"):
        read_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def test_negative_batch_dims_are_named() -> None:
    node = helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-3)
    inputs = [_value("x", [3, 3]), _value("i", [1, 1], TensorProto.INT64)]
    graph = helper.make_graph([node], "g", inputs, [_value("y")])
    with pytest.raises(InvalidGraph, match="batch_dims=-3"):
        read_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
