"""Loop, Scan, SequenceMap, sequences, functions and sizes that depend on data: types, trips, work, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from predictor.errors import InvalidGraph, InvalidRequest, UnknownName, UnsupportedOp
from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase, Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N, info = helper.make_node, helper.make_tensor_value_info
NOTHING: Mapping[str, int] = MappingProxyType({})


def number(name: str, value: Any) -> TensorProto:
    return numpy_helper.from_array(np.array(value), name)


def weight(name: str, *shape: int) -> TensorProto:
    return TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)


def read(
    nodes: Sequence[NodeProto],
    *initializers: TensorProto,
    inputs: Sequence[Any] = (info("x", FLOAT, [2, 4]),),
    outputs: Sequence[Any] = (info("y", FLOAT, None),),
    dims: Mapping[str, int] = NOTHING,
    opset: int = 21,
    more: Sequence[Any] = (),
) -> Graph:
    graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), initializer=initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *more], ir_version=10)
    return read_graph(model.SerializeToString(), dims=dims)


def program(graph: Graph, mode: Mode = Mode.INFER, *, strict: bool = False) -> Program:
    return build_program(
        graph,
        mode=mode,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
        strict=strict,
    )


def kinds(found: Program, phase: Phase = Phase.FORWARD) -> list[str]:
    return [op.work.kind for op in found.ops if op.work.phase is phase]


def loop_body(*nodes: NodeProto, state: Sequence[int] = (2, 4), scanned: str = "") -> GraphProto:
    """(step, go, state) -> (go_on, next[, scanned])."""
    outputs = [info("go_on", BOOL, []), info("next", FLOAT, None)]
    if scanned:
        outputs.append(info(scanned, FLOAT, None))
    inputs = [info("step", INT, []), info("go", BOOL, []), info("state", FLOAT, list(state))]
    return helper.make_graph([N("Identity", ["go"], ["go_on"]), *nodes], "body", inputs, outputs)


LINEAR = loop_body(N("MatMul", ["state", "w"], ["product"]), N("Tanh", ["product"], ["next"]))


def test_a_loop_costs_its_body_as_often_as_it_runs() -> None:
    graph = read([N("Loop", ["trips", "", "x"], ["y"], body=LINEAR)], weight("w", 4, 4), number("trips", 3))
    found = program(graph, strict=True)
    assert kinds(found) == ["linear", "tanh"] * 3
    assert graph.values["y"].shape == (2, 4)
    assert graph.parameter_count == 16
    assert graph.notes == ()
    # The weight is known as such inside the body.
    assert found.ops[0].work.parameter_bytes == 64


def test_trips_change_the_fingerprint() -> None:
    nodes = [N("Loop", ["trips", "", "x"], ["y"], body=LINEAR)]
    three, four = (read(nodes, weight("w", 4, 4), number("trips", n)) for n in (3, 4))
    assert three.fingerprint != four.fingerprint


def test_trips_that_depend_on_data() -> None:
    nodes = [N("Loop", ["trips", "", "x"], ["y"], name="decode", body=LINEAR)]
    inputs = [info("x", FLOAT, [2, 4]), info("trips", INT, [])]
    graph = read(nodes, weight("w", 4, 4), inputs=inputs)
    assert kinds(program(graph)) == ["linear", "tanh"]
    (note,) = program(graph).notes
    assert note.code == "TRIPS_ASSUMED"
    assert "decode.trip_count" in note.message
    given = read(nodes, weight("w", 4, 4), inputs=inputs, dims={"decode.trip_count": 5})
    assert kinds(program(given)) == ["linear", "tanh"] * 5
    assert given.notes == ()
    known = read(nodes, weight("w", 4, 4), inputs=inputs, dims={"trips[0]": 2})
    assert kinds(program(known)) == ["linear", "tanh"] * 2


def test_a_loop_that_may_end_early_is_noted() -> None:
    body = loop_body(
        N("Relu", ["state"], ["next"]),
        N("ReduceMax", ["next"], ["top"], keepdims=0),
        N("Cast", ["top"], ["more"], to=BOOL),
    )
    body.output[0].name = "more"
    graph = read([N("Loop", ["trips", "", "x"], ["y"], body=body)], number("trips", 4))
    assert [note.code for note in graph.notes] == ["TRIPS_BOUND"]
    assert kinds(program(graph)).count("relu") == 4


def test_a_loop_whose_condition_counts_is_followed() -> None:
    body = loop_body(
        N("Add", ["state", "one"], ["next"]), N("Less", ["step", "last"], ["go_on2"]), scanned="next"
    )
    body.output[0].name = "go_on2"
    body.output[2].name = "seen"
    body.node.append(N("Identity", ["next"], ["seen"]))
    graph = read(
        [N("Loop", ["", "yes", "x"], ["final", "y"], body=body)],
        number("one", np.float32(1)),
        number("last", 3),
        number("yes", True),
    )
    # Steps 0 to 3 run: the condition is false after the fourth.
    assert graph.values[graph.outputs[0]].shape == (4, 2, 4)
    assert graph.notes == ()


def test_a_state_that_grows_is_unrolled() -> None:
    body = loop_body(N("Concat", ["state", "x"], ["next"], axis=0))
    graph = read([N("Loop", ["trips", "", "x"], ["y"], body=body)], number("trips", 3))
    assert graph.values[graph.outputs[0]].shape == (8, 4)
    assert [node.op_type for node in graph.nodes] == ["Concat"] * 3


def test_a_state_that_grows_often_is_priced_as_the_last() -> None:
    nodes = [N("Concat", ["state", "x"], ["next"], axis=0)]
    graph = read([N("Loop", ["trips", "", "x"], ["y"], body=loop_body(*nodes))], number("trips", 2000))
    assert graph.values["y"].shape == (2 + 2 * 2000, 4)
    assert [note.code for note in graph.notes] == ["LOOP_GROWS"]
    works = [op.work for op in program(graph).ops]
    assert len(works) == 2000
    assert works[0].write_bytes == 4 * 4 * (2 + 2 * 2000)


def test_a_loop_that_never_runs() -> None:
    graph = read([N("Loop", ["trips", "", "x"], ["y"], body=LINEAR)], weight("w", 4, 4), number("trips", 0))
    assert program(graph).ops == ()
    assert graph.values[graph.outputs[0]].shape == (2, 4)


def test_lists_are_limited() -> None:
    proto = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 4]))
    nodes = [N("ConcatFromSequence", ["x"], ["y"], axis=0)]
    with pytest.raises(InvalidRequest, match="at most 65536 items"):
        read(nodes, inputs=[helper.make_value_info("x", proto)], dims={"x.length": 10**9})
    nodes = [N("SplitToSequence", ["x"], ["parts"], axis=0), N("SequenceAt", ["parts", "one"], ["y"])]
    graph = read(nodes, number("one", 1), inputs=[info("x", FLOAT, [10**9, 4])])
    # Not a thousand million items: all in one.
    assert graph.values[graph.outputs[0]].shape == (10**9, 4)
    assert "SIZE_ASSUMED" in {note.code for note in graph.notes}


def test_the_costlier_branch_may_be_the_one_that_loops() -> None:
    then = helper.make_graph(
        [N("Loop", ["many", "", "x"], ["a"], body=LINEAR)], "then", [], [info("a", FLOAT, None)]
    )
    other = helper.make_graph([N("MatMul", ["x", "w"], ["b"])], "else", [], [info("b", FLOAT, None)])
    inputs = [info("x", FLOAT, [2, 4]), info("flag", BOOL, [])]
    node = N("If", ["flag"], ["y"], then_branch=then, else_branch=other)
    graph = read([node], weight("w", 4, 4), number("many", 10**6), inputs=inputs)
    assert [item.op_type for item in graph.nodes] == ["Loop"]


def test_kernels_of_a_loop_are_limited() -> None:
    nodes = [N("Loop", ["trips", "", "x"], ["y"], name="long", body=LINEAR)]
    graph = read(nodes, weight("w", 4, 4), number("trips", 2_000_000))
    with pytest.raises(InvalidGraph, match=r"long.trip_count"):
        program(graph)


def scan_body() -> GraphProto:
    return helper.make_graph(
        [N("MatMul", ["h", "w"], ["hw"]), N("Add", ["hw", "item"], ["sum"]), N("Tanh", ["sum"], ["next"])],
        "cell",
        [info("h", FLOAT, [2, 4]), info("item", FLOAT, [2, 4])],
        [info("next", FLOAT, [2, 4]), info("next", FLOAT, [2, 4])],
    )


def scan(axis: int = 0) -> Graph:
    shape = [5, 2, 4] if axis == 0 else [2, 5, 4]
    node = N(
        "Scan",
        ["start", "x"],
        ["last", "y"],
        body=scan_body(),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_output_axes=[axis],
    )
    return read([node], weight("w", 4, 4), weight("start", 2, 4), inputs=[info("x", FLOAT, shape)])


@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_runs_once_per_item(axis: int) -> None:
    graph = scan(axis)
    assert graph.values["y"].shape == ((5, 2, 4) if axis == 0 else (2, 5, 4))
    assert kinds(program(graph, strict=True)) == ["linear", "add", "tanh"] * 5


def test_a_scan_of_opset_8_runs_per_sample_and_item() -> None:
    body = helper.make_graph(
        [N("Add", ["h", "item"], ["next"])],
        "cell",
        [info("h", FLOAT, [4]), info("item", FLOAT, [4])],
        [info("next", FLOAT, [4]), info("next", FLOAT, [4])],
    )
    node = N("Scan", ["", "start", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    inputs = [info("start", FLOAT, [3, 4]), info("x", FLOAT, [3, 5, 4])]
    graph = read([node], inputs=inputs, opset=8)
    assert graph.values["y"].shape == (3, 5, 4)
    assert kinds(program(graph)) == ["add"] * 15


def test_the_gradient_of_a_scan_is_that_of_its_steps() -> None:
    """Products and saved bytes of the written-out recurrence, step by step."""
    found = program(scan(), Mode.TRAIN, strict=True)
    nodes: list[NodeProto] = []
    state = "start"
    for step in range(5):
        nodes += [
            N("MatMul", [state, "w"], [f"hw{step}"]),
            N("Add", [f"hw{step}", "x"], [f"sum{step}"]),
            N("Tanh", [f"sum{step}"], [f"h{step}"]),
        ]
        state = f"h{step}"
    nodes.append(N("Identity", [state], ["y"]))
    written = program(read(nodes, weight("w", 4, 4), weight("start", 2, 4)), Mode.TRAIN, strict=True)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        ours = sum(op.work.matrix_flops for op in found.ops if op.work.phase is phase)
        theirs = sum(op.work.matrix_flops for op in written.ops if op.work.phase is phase)
        assert ours == theirs > 0
    assert {gradient.parameter for gradient in found.gradients} == {"w", "start"}
    assert found.parameter_count == written.parameter_count
    # Every step keeps its result of 2 x 4 numbers at least.
    assert found.memory.saved_bytes >= 5 * 32


def test_weights_inside_a_body_are_the_models() -> None:
    body = helper.make_graph(
        [N("MatMul", ["item", "inner"], ["out"])],
        "cell",
        [info("item", FLOAT, [2, 4])],
        [info("out", FLOAT, [2, 3])],
        initializer=[weight("inner", 4, 3)],
    )
    node = N("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    graph = read([node], inputs=[info("x", FLOAT, [5, 2, 4])])
    assert graph.parameter_count == 12
    assert program(graph).ops[0].work.parameter_bytes == 48


def test_unknown_ops_in_a_body_are_listed() -> None:
    body = helper.make_graph(
        [N("Mystery", ["item"], ["out"], domain="else")],
        "cell",
        [info("item", FLOAT, [2, 4])],
        [info("out", FLOAT, [2, 4])],
    )
    node = N("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    more = [helper.make_opsetid("else", 1)]
    graph = read([node], inputs=[info("x", FLOAT, [5, 2, 4])], more=more)
    assert [op.covered for op in program(graph).ops] == [False] * 5
    with pytest.raises(UnsupportedOp, match="else::Mystery"):
        program(graph, strict=True)


def test_sequences_know_their_items() -> None:
    nodes = [
        N("SplitToSequence", ["x"], ["parts"], axis=1),
        N("SequenceInsert", ["parts", "x"], ["more"]),
        N("SequenceErase", ["more", "first"], ["fewer"]),
        N("ConcatFromSequence", ["fewer"], ["y"], axis=1),
    ]
    graph = read(nodes, number("first", 0))
    # Four columns and the whole, without the first column: 3 + 4.
    assert graph.values["y"].shape == (2, 7)


def test_a_sequence_input_is_as_long_as_given() -> None:
    proto = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 4]))
    inputs = [helper.make_value_info("x", proto)]
    nodes = [N("ConcatFromSequence", ["x"], ["y"], axis=0)]
    graph = read(nodes, inputs=inputs)
    assert graph.values["y"].shape == (2, 4)
    assert [note.code for note in graph.notes] == ["LENGTH_ASSUMED"]
    assert read(nodes, inputs=inputs, dims={"x.length": 3}).values["y"].shape == (6, 4)


def test_a_map_over_a_sequence_is_opened() -> None:
    body = helper.make_graph(
        [N("MatMul", ["item", "w"], ["out"])], "each", [info("item", FLOAT, None)], [info("out", FLOAT, None)]
    )
    nodes = [
        N("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        N("SequenceMap", ["parts"], ["mapped"], body=body),
        N("ConcatFromSequence", ["mapped"], ["y"], axis=0),
    ]
    inputs = [info("x", FLOAT, [6, 4])]
    graph = read(nodes, weight("w", 4, 3), number("sizes", [1, 2, 3]), inputs=inputs)
    assert graph.values["y"].shape == (6, 3)
    assert [op.work.matrix_flops for op in program(graph).ops][:3] == [2 * n * 3 * 4 for n in (1, 2, 3)]


def test_optionals() -> None:
    kind: TypeProto = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 4]))
    nodes = [N("OptionalGetElement", ["x"], ["inner"]), N("Relu", ["inner"], ["y"])]
    graph = read(nodes, inputs=[helper.make_value_info("x", kind)])
    assert graph.values["y"].shape == (2, 4)


def test_sizes_that_depend_on_data_are_the_largest_possible() -> None:
    nodes = [N("NonZero", ["x"], ["found"], name="which"), N("Cast", ["found"], ["y"], to=FLOAT)]
    graph = read(nodes)
    assert graph.values["y"].shape == (2, 8)
    (note,) = graph.notes
    assert note.code == "SIZE_ASSUMED"
    assert "which.out.0" in note.message
    for key in ("which.out.0", "found.out.0", "which.out.0.1"):
        given = read(nodes, dims={key: 3})
        assert given.values["y"].shape == (2, 3)
        assert given.notes == ()


def test_what_the_file_declares_beats_a_bound() -> None:
    nodes = [N("NonZero", ["x"], ["found"]), N("Cast", ["found"], ["y"], to=FLOAT)]
    graph = read(nodes, outputs=[info("y", FLOAT, [2, 5])])
    assert graph.values["y"].shape == (2, 5)


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        (N("Unique", ["x"], ["y"], sorted=1), (8,)),
        (N("Compress", ["x", "flags"], ["y"], axis=1), (2, 3)),
        (N("TopK", ["x", "k"], ["y", "places"]), (2, 4)),
        (N("Slice", ["x", "k", "k"], ["y"]), (2, 4)),
        (N("ReduceSum", ["x", "k"], ["y"]), (1, 4)),
        (N("ReduceSum", ["x", "k"], ["y"], keepdims=0), (4,)),
    ],
)
def test_bounds(node: NodeProto, shape: tuple[int, ...]) -> None:
    inputs = [info("x", FLOAT, [2, 4]), info("flags", BOOL, [3]), info("k", INT, [1])]
    graph = read([node], inputs=inputs)
    assert graph.values[graph.outputs[0]].shape == shape
    assert "SIZE_ASSUMED" in {note.code for note in graph.notes}


def test_boxes_that_survive_are_limited() -> None:
    inputs = [info("boxes", FLOAT, [2, 10, 4]), info("scores", FLOAT, [2, 3, 10])]
    nodes = [N("NonMaxSuppression", ["boxes", "scores", "limit"], ["y"])]
    outputs = [info("y", INT, None)]
    graph = read(nodes, number("limit", 4), inputs=inputs, outputs=outputs)
    assert graph.values["y"].shape == (2 * 3 * 4, 3)


def test_elements_of_an_integer_input() -> None:
    inputs = [info("x", FLOAT, [2, 4]), info("shape", INT, [2])]
    nodes = [N("Reshape", ["x", "shape"], ["r"]), N("Relu", ["r"], ["y"])]
    with pytest.raises(InvalidGraph, match=r"INPUT\[0\]=N"):
        read(nodes, inputs=inputs)
    assert read(nodes, inputs=inputs, dims={"shape[0]": 8, "shape[1]": -1}).values["y"].shape == (8, 1)
    with pytest.raises(InvalidRequest, match="has 2 elements, and 1 are given"):
        read(nodes, inputs=inputs, dims={"shape[0]": 8})


def test_hints_about_what_is_not_there() -> None:
    nodes = [N("Relu", ["x"], ["y"], name="act")]
    for key in ("other.out.0", "other.trip_count", "other[0]", "other.length"):
        with pytest.raises(UnknownName, match="other"):
            read(nodes, dims={key: 1})
    with pytest.raises(InvalidRequest, match="positive"):
        read(nodes, dims={"act.out.0": 0})
    assert read(nodes, dims={"act.out.0": 3}).values["y"].shape == (2, 4)


def test_functions_without_a_rule_are_opened() -> None:
    """FlexAttention is defined by its body alone."""
    heads = [info(name, FLOAT, [1, 2, 5, 8]) for name in ("q", "k", "v")]
    node = N("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview")
    more = [helper.make_opsetid("ai.onnx.preview", 1)]
    graph = read([node], inputs=heads, opset=26, more=more)
    assert "FlexAttention" not in {item.op_type for item in graph.nodes}
    found = program(graph, strict=True)
    # Scores and result: two products of 5 x 5 x 8 for 2 heads.
    assert sum(op.work.matrix_flops for op in found.ops) == 2 * 2 * 2 * 5 * 5 * 8


def _wide_loop(trips: int) -> Graph:
    """A body that makes 2 x 1000 numbers of 2 x 4, and 2 x 4 of those."""
    nodes = [
        N("MatMul", ["state", "w"], ["wide"]),
        N("Tanh", ["wide"], ["h"]),
        N("MatMul", ["h", "v"], ["next"]),
    ]
    return read(
        [N("Loop", ["trips", "", "x"], ["y"], body=loop_body(*nodes))],
        weight("w", 4, 1000),
        weight("v", 1000, 4),
        number("trips", trips),
    )


@pytest.mark.parametrize("trips", [1, 3])
def test_the_peak_holds_what_one_trip_holds(trips: int) -> None:
    memory = program(_wide_loop(trips)).memory
    small, wide = 4 * 2 * 4, 4 * 2 * 1000
    # Two wide tensors stand beside each other; the loop's result is there from its start.
    assert memory.activation_bytes == 2 * wide + small
    weights = 4 * 2 * 4 * 1000
    assert memory.live_peak_bytes == memory.input_bytes + weights + memory.buffer_bytes + 2 * wide + small


def test_training_keeps_every_trip_and_works_beside_it() -> None:
    three, one = (program(_wide_loop(trips), Mode.TRAIN).memory for trips in (3, 1))
    wide = 4 * 2 * 1000
    # Each trip keeps its tanh.
    assert three.saved_bytes - one.saved_bytes >= 2 * wide
    weight_gradients = 2 * 4 * 4 * 1000
    # One trip's share of the gradients of both weights, and the gradients on the way between them.
    assert one.transient_bytes >= weight_gradients + wide
    assert one.transient_bytes == three.transient_bytes
