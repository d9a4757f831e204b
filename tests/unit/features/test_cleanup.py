"""What exporters leave behind goes; what a framework runs stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from predictor.features.builder import GraphBuilder
from predictor.features.graph import Graph
from predictor.features.reading.cleanup import clean_up
from predictor.features.reading.reader import read_graph

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name: str, *shape: int) -> TensorProto:
    return TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values), name)


def read(
    nodes: Sequence[NodeProto],
    *initializers: TensorProto,
    shape: Sequence[int] = (2, 4, 6),
    elem_type: int = FLOAT,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
    dims: Mapping[str, int] = MappingProxyType({}),
) -> Graph:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", elem_type, list(shape))],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        initializer=initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return read_graph(model.SerializeToString(), dims=dims)


def ops(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]


N = helper.make_node


def test_identity_chains_disappear_and_outputs_follow() -> None:
    graph = read([N("Identity", ["x"], ["a"]), N("Relu", ["a"], ["b"]), N("Identity", ["b"], ["y"])])
    assert ops(graph) == ["Relu"]
    assert graph.outputs == ("b",)
    assert graph.nodes[0].inputs == ("x",)


def test_a_graph_that_returns_its_input_has_no_nodes() -> None:
    graph = read([N("Identity", ["x"], ["y"])])
    assert graph.nodes == ()
    assert graph.outputs == ("x",)
    assert graph.fingerprint.startswith("sha256:")


def test_dead_nodes_and_their_weights_disappear() -> None:
    nodes = [N("MatMul", ["x", "w"], ["dead"]), N("Relu", ["x"], ["y"])]
    graph = read(nodes, weight("w", 6, 6))
    assert ops(graph) == ["Relu"]
    assert graph.parameter_count == 0
    assert set(graph.values) == {"x", "y"}


def test_shape_arithmetic_becomes_constants() -> None:
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "zero"], ["n"]),
        N("Unsqueeze", ["n", "axis"], ["n1"]),
        N("Concat", ["n1", "rest"], ["target"], axis=0),
        N("Reshape", ["x", "target"], ["y"]),
    ]
    graph = read(nodes, numpy_helper.from_array(np.array(0), "zero"), ints("axis", 0), ints("rest", 3, -1))
    assert ops(graph) == ["Reshape"]
    assert graph.constants == {"target": (2, 3, -1)}
    assert graph.buffers == {"target"}
    assert graph.values["y"].shape == (2, 3, 8)


def test_large_positions_become_buffers() -> None:
    nodes = [
        N("Range", ["zero", "many", "one"], ["positions"]),
        N("Gather", ["table", "positions"], ["found"]),
        N("ReduceSum", ["found"], ["total"], keepdims=0),
        N("Add", ["x", "total"], ["y"]),
    ]
    scalars = [numpy_helper.from_array(np.array(v), n) for n, v in (("zero", 0), ("many", 5000), ("one", 1))]
    graph = read(nodes, *scalars, weight("table", 5000, 3))
    assert ops(graph) == ["Gather", "ReduceSum", "Add"]
    assert graph.values["positions"].shape == (5000,)
    assert "positions" in graph.buffers
    assert "positions" not in graph.constants


def test_a_mask_keeps_the_nodes_that_build_it() -> None:
    b = GraphBuilder()
    scores = b.input("scores", (2, 4, 8, 8))
    ones = b.op("Expand", [b.constant(1.0), b.constant([8, 8])])
    graph = read_graph(b.build([b.softmax(b.add(scores, b.op("Trilu", [ones], upper=0)))]))
    assert ops(graph) == ["Expand", "Trilu", "Add", "Softmax"]


@pytest.mark.parametrize(
    "node",
    [
        N("Cast", ["x"], ["a"], to=FLOAT),
        N("Dropout", ["x", "half"], ["a"]),
        N("Dropout", ["x", "half", "off"], ["a", "mask"]),
        N("Expand", ["x", "same"], ["a"]),
        N("Concat", ["x"], ["a"], axis=0),
        N("Sum", ["x"], ["a"]),
        N("Pad", ["x", "nothing"], ["a"]),
        N("Transpose", ["x"], ["a"], perm=[0, 1, 2]),
        N("Slice", ["x", "start", "end"], ["a"]),
        N("Tile", ["x", "once"], ["a"]),
    ],
    ids=lambda node: node.op_type,
)
def test_nodes_that_change_nothing_disappear(node: NodeProto) -> None:
    constants = [
        numpy_helper.from_array(np.array(0.5, dtype=np.float32), "half"),
        numpy_helper.from_array(np.array(False), "off"),
        ints("same", 1, 4, 1),
        ints("nothing", 0, 0, 0, 0, 0, 0),
        ints("start", 0),
        ints("end", 2**62),
        ints("once", 1, 1, 1),
    ]
    graph = read([node, N("Relu", ["a"], ["y"])], *constants)
    assert ops(graph) == ["Relu"]
    assert graph.nodes[0].inputs == ("x",)
    assert graph.buffers == frozenset()


@pytest.mark.parametrize(
    "node",
    [
        N("Cast", ["x"], ["a"], to=TensorProto.FLOAT16),
        N("Dropout", ["x", "half", "on"], ["a"]),
        N("Pad", ["x", "shift"], ["a"]),
        N("Transpose", ["x"], ["a"], perm=[0, 2, 1]),
        N("Slice", ["x", "last", "first", "axis", "back"], ["a"]),
        N("Reshape", ["x", "keep"], ["a"]),
    ],
    ids=lambda node: node.op_type,
)
def test_nodes_that_change_something_stay(node: NodeProto) -> None:
    constants = [
        numpy_helper.from_array(np.array(0.5, dtype=np.float32), "half"),
        numpy_helper.from_array(np.array(True), "on"),
        ints("shift", 0, 0, -1, 0, 0, 1),
        ints("last", -1),
        ints("first", -(2**62)),
        ints("axis", 2),
        ints("back", -1),
        ints("keep", 0, 0, -1),
    ]
    assert ops(read([node, N("Relu", ["a"], ["y"])], *constants)) == [node.op_type, "Relu"]


def test_old_dropout_follows_its_attribute() -> None:
    for is_test, expected in ((1, ["Relu"]), (0, ["Dropout", "Relu"])):
        nodes = [N("Dropout", ["x"], ["a"], is_test=is_test), N("Relu", ["a"], ["y"])]
        assert ops(read(nodes, opset=6)) == expected


def test_random_numbers_are_not_constant() -> None:
    nodes = [N("RandomNormal", [], ["noise"], shape=[2, 4, 6]), N("Add", ["x", "noise"], ["y"])]
    assert "Add" in ops(read(nodes))
    assert "RandomNormal" in ops(read(nodes))


def test_batch_norm_statistics_are_buffers() -> None:
    b = GraphBuilder()
    graph = read_graph(b.build([b.batch_norm(b.input("x", (2, 4, 6)))]))
    assert graph.parameters == {"batch_norm.weight", "batch_norm.bias"}
    assert graph.buffers == {"batch_norm.mean", "batch_norm.var"}
    assert graph.parameter_count == 8


def test_masks_and_single_numbers_are_buffers_and_biases_parameters() -> None:
    b = GraphBuilder()
    scores = b.input("scores", (2, 4, 8, 8))
    masked = b.softmax(b.add(scores, b.parameter((1, 1, 8, 8), "mask")))
    biased = b.softmax(b.add(scores, b.parameter((1, 4, 8, 8), "bias")))
    scaled = b.mul(b.add(masked, biased), b.parameter((), "scale"))
    graph = read_graph(b.build([scaled]))
    assert graph.parameters == {"bias"}
    assert graph.buffers == {"mask", "scale"}


def test_rotary_frequencies_are_buffers() -> None:
    b = GraphBuilder()
    positions = b.input("positions", (2, 5, 1))
    angles = b.matmul(positions, b.parameter((1, 8), "frequencies"))
    sine, cosine = b.op("Sin", [angles]), b.op("Cos", [b.concat([angles, angles], axis=-1)])
    graph = read_graph(b.build([b.linear(b.concat([sine, cosine], axis=-1), 3, bias=False)]))
    assert graph.parameters == {"linear.weight"}
    assert graph.buffers == {"frequencies"}


def test_fresh_vectors_that_an_exporter_merged_count_apart() -> None:
    nodes = [
        *(N("Identity", ["one"], [name]) for name in ("scale2", "var", "var2")),
        *(N("Identity", ["zero"], [name]) for name in ("shift2", "mean", "mean2")),
        N("BatchNormalization", ["x", "one", "zero", "mean", "var"], ["a"]),
        N("BatchNormalization", ["a", "scale2", "shift2", "mean2", "var2"], ["y"]),
    ]
    graph = read(nodes, weight("one", 4), weight("zero", 4))
    assert graph.parameters == {"one", "zero", "scale2", "shift2"}
    assert graph.buffers == {"mean", "mean2", "var", "var2"}


def test_fresh_vectors_merged_without_a_trace_count_apart() -> None:
    b = GraphBuilder()
    ones, zeros = b.parameter((6,), "ones"), b.parameter((6,), "zeros")
    x = b.input("x", (2, 4, 6))
    for _ in range(3):
        x = b.op("LayerNormalization", [b.add(b.matmul(x, b.parameter((6, 6))), zeros), ones, zeros])
    graph = read_graph(b.build([x]))
    assert graph.parameter_count == 3 * (36 + 6 + 6 + 6)
    assert clean_up(graph) is graph


def test_one_shared_layer_among_others_keeps_its_vectors() -> None:
    b = GraphBuilder()
    kernel, bias = b.parameter((6, 1, 3)), b.parameter((6,))
    x = b.input("x", (2, 6, 9))
    for _ in range(3):
        x = b.op("Conv", [b.conv(x, 6, kernel=3), kernel, bias], pads=[1, 1], group=6)
    assert read_graph(b.build([x])).parameter_count == 3 * 108 + 18 + 6


def test_a_norm_before_a_shared_matrix_is_shared() -> None:
    b = GraphBuilder()
    scale, weight = b.parameter((6,)), b.parameter((6, 6))
    x = b.input("x", (2, 4, 6))
    for _ in range(3):
        normal = b.op("LayerNormalization", [b.linear(x, 6, bias=False), scale])
        x = b.matmul(normal, b.transpose(weight, (1, 0)))
    assert read_graph(b.build([x])).parameter_count == 3 * 36 + 6 + 36


def test_a_layer_applied_again_keeps_its_vectors() -> None:
    b = GraphBuilder()
    weight, bias = b.parameter((6, 6)), b.parameter((6,))
    x = b.input("x", (2, 4, 6))
    for _ in range(3):
        x = b.relu(b.add(b.matmul(x, weight), bias))
    assert read_graph(b.build([x])).parameter_count == 42


def test_a_tied_embedding_counts_once() -> None:
    nodes = [
        N("Gather", ["table", "x"], ["h"]),
        N("Identity", ["table"], ["again"]),
        N("Transpose", ["again"], ["head"], perm=[1, 0]),
        N("MatMul", ["h", "head"], ["y"]),
    ]
    graph = read(nodes, weight("table", 50, 8), shape=(2, 3), elem_type=INT)
    assert graph.parameter_count == 400
    assert ops(graph) == ["Gather", "Transpose", "MatMul"]


def test_bias_tables_at_fixed_places_count_apart() -> None:
    index = numpy_helper.from_array(np.arange(6), "index")
    nodes = [
        N("Gather", ["table", "index"], ["first"]),
        N("Identity", ["table"], ["again"]),
        N("Gather", ["again", "index"], ["second"]),
        N("MatMul", ["x", "w"], ["a"]),
        N("Add", ["a", "first"], ["b"]),
        N("Add", ["b", "second"], ["y"]),
    ]
    graph = read(nodes, weight("table", 7, 6), weight("w", 6, 6), index, shape=(2, 6, 6))
    assert graph.parameter_count == 42 + 42 + 36


def test_one_layer_applied_many_times_counts_once() -> None:
    nodes = [N("MatMul", ["x", "w"], ["a0"]), N("Add", ["a0", "bias"], ["h0"])]
    for step in range(1, 4):
        nodes.append(N("Identity", ["w"], [f"w{step}"]))
        nodes.append(N("Identity", ["bias"], [f"bias{step}"]))
        nodes.append(N("MatMul", [f"h{step - 1}", f"w{step}"], [f"a{step}"]))
        nodes.append(N("Add", [f"a{step}", f"bias{step}"], [f"h{step}"]))
    graph = read(nodes, weight("w", 6, 6), weight("bias", 6), outputs=("h3",))
    assert graph.parameter_count == 42
    assert ops(graph) == ["MatMul", "Add"] * 4


def test_cleaning_up_twice_changes_nothing() -> None:
    b = GraphBuilder()
    x = b.input("x", ("n", 3, 8, 8))
    x = b.relu(b.batch_norm(b.conv(x, 4, kernel=3)))
    graph = read_graph(b.build([b.reshape(x, (0, -1))]), batch=2)
    assert clean_up(graph) is graph
    assert clean_up(replace(graph, fingerprint="")).nodes == graph.nodes


def test_a_decided_branch_replaces_its_if() -> None:
    then = helper.make_graph(
        [N("Relu", ["x"], ["inner"]), N("Add", ["inner", "one"], ["out"])],
        "then",
        [],
        [helper.make_tensor_value_info("out", FLOAT, None)],
        initializer=[weight("one", 6)],
    )
    other = helper.make_graph(
        [N("Exp", ["x"], ["inner"])], "else", [], [helper.make_tensor_value_info("inner", FLOAT, None)]
    )
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Gather", ["s", "axis"], ["n"]),
        N("Equal", ["n", "two"], ["is_two"]),
        N("If", ["is_two"], ["a"], name="choice", then_branch=then, else_branch=other),
        N("Tanh", ["a"], ["y"]),
    ]
    scalars = [numpy_helper.from_array(np.array(value), name) for name, value in (("axis", 0), ("two", 2))]
    assert ops(read(nodes, *scalars)) == ["Relu", "Add", "Tanh"]
    assert read(nodes, *scalars).parameter_count == 6
    assert ops(read(nodes, *scalars, shape=(3, 4, 6))) == ["Exp", "Tanh"]


def _choice(then: Sequence[str], other: Sequence[str]) -> list[NodeProto]:
    def body(types: Sequence[str]) -> object:
        names = ["hidden", *(f"r{i}" for i in range(len(types)))]
        nodes = [N(op, [a], [b]) for op, a, b in zip(types, names, names[1:], strict=False)]
        info = helper.make_tensor_value_info(names[-1], FLOAT, [2, 4, 6])
        return helper.make_graph(nodes, "branch", [], [info])

    return [
        N("Relu", ["x"], ["hidden"]),
        N("ReduceMax", ["x"], ["top"], keepdims=0),
        N("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
        N("If", ["flag"], ["y"], name="choice", then_branch=body(then), else_branch=body(other)),
    ]


def test_an_open_choice_is_its_costlier_branch_with_a_note() -> None:
    graph = read(_choice(["Exp"], ["Tanh", "Sigmoid"]))
    assert ops(graph) == ["Relu", "Tanh", "Sigmoid"]
    assert graph.values[graph.outputs[0]].shape == (2, 4, 6)
    (note,) = graph.notes
    assert note.code == "BRANCH_ASSUMED"
    assert "choice" in note.message
    assert ops(read(_choice(["Exp", "Log", "Abs"], ["Tanh"]))) == ["Relu", "Exp", "Log", "Abs"]


def test_the_caller_chooses_a_branch() -> None:
    graph = read(_choice(["Exp"], ["Tanh", "Sigmoid"]), dims={"choice.then_branch": 1})
    assert ops(graph) == ["Relu", "Exp"]
    assert graph.notes == ()


def test_a_loop_stays_whole() -> None:
    body = helper.make_graph(
        [N("Add", ["state", "x"], ["next"]), N("Identity", ["go"], ["go_on"])],
        "body",
        [
            helper.make_tensor_value_info("step", INT, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", FLOAT, [2, 4, 6]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, [2, 4, 6]),
        ],
    )
    graph = read(
        [N("Loop", ["times", "", "x"], ["y"], body=body)], numpy_helper.from_array(np.array(3), "times")
    )
    assert ops(graph) == ["Loop"]
    assert graph.values["y"].shape == (2, 4, 6)


def test_model_bytes_are_left_alone() -> None:
    b = GraphBuilder()
    data = b.build([b.relu(b.input("x", ("n", 3)))])
    before = ModelProto.FromString(data)
    read_graph(data, batch=4)
    assert ModelProto.FromString(data) == before
