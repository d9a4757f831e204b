"""Weights of If, Loop and Scan bodies: there whichever branch runs, once however often a body does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from predictor.features.graph import Graph
from predictor.features.programs.program import build_program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
N, info = helper.make_node, helper.make_tensor_value_info
SMALL, LARGE = 4 * 8, 4 * 100


def weight(name: str, *shape: int) -> TensorProto:
    return TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)


def branch(name: str, columns: int, *, own: bool = True) -> GraphProto:
    """x times [4, columns], summed up to [2, 1]."""
    nodes = [
        N("MatMul", ["x", f"{name}_w"], [f"{name}_h"]),
        N("ReduceSum", [f"{name}_h"], [f"{name}_y"], keepdims=1),
    ]
    weights = [weight(f"{name}_w", 4, columns)] if own else []
    return helper.make_graph(nodes, name, [], [info(f"{name}_y", FLOAT, None)], initializer=weights)


def read(node: NodeProto, *weights: TensorProto, dims: Mapping[str, int] | None = None) -> Graph:
    inputs = [info("x", FLOAT, [2, 4]), info("flag", BOOL, [])]
    graph = helper.make_graph([node], "g", inputs, [info("y", FLOAT, None)], initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return read_graph(model.SerializeToString(), dims=dims or {})


def held_bytes(graph: Graph, mode: Mode = Mode.INFER) -> tuple[int, int]:
    """Weights on the device, and their gradients."""
    program = build_program(
        graph, mode=mode, precision=Precision.FP32, optimizer=Optimizer.SGD, runtime=Runtime.EAGER
    )
    return program.memory.parameter_bytes + program.memory.buffer_bytes, program.memory.gradient_bytes


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("taken", [None, "then_branch", "else_branch"])
def test_the_branch_that_is_not_taken_keeps_its_weights(own: bool, taken: str | None) -> None:
    node = N("If", ["flag"], ["y"], name="if", then_branch=branch("a", 8, own=own))
    node.attribute.append(helper.make_attribute("else_branch", branch("b", 100, own=own)))
    outer = () if own else (weight("a_w", 4, 8), weight("b_w", 4, 100))
    graph = read(node, *outer, dims={f"if.{taken}": 1} if taken else None)
    resident, gradients = held_bytes(graph, Mode.TRAIN)
    assert resident == 4 * (SMALL + LARGE)
    # Gradients are only of the branch that runs.
    assert gradients == 4 * (SMALL if taken == "then_branch" else LARGE)


def test_a_constant_condition_leaves_one_branch() -> None:
    always = helper.make_tensor("always", BOOL, [], [True])
    node = N("If", ["always"], ["y"], then_branch=branch("a", 8), else_branch=branch("b", 100))
    assert held_bytes(read(node, always))[0] == 4 * SMALL


def test_a_table_in_a_branch_that_is_not_taken_stays_too() -> None:
    table = N("Constant", [], ["table"], value=weight("", 4, 100))
    product = N("MatMul", ["x", "table"], ["t"])
    other = helper.make_graph(
        [table, product, N("ReduceSum", ["t"], ["s"], keepdims=1)], "b", [], [info("s", FLOAT, None)]
    )
    node = N("If", ["flag"], ["y"], name="if", then_branch=branch("a", 8), else_branch=other)
    assert held_bytes(read(node, dims={"if.then_branch": 1}))[0] == 4 * (SMALL + LARGE)


def test_branches_with_the_same_weights_hold_them_once() -> None:
    node = N("If", ["flag"], ["y"], then_branch=branch("a", 8, own=False))
    node.attribute.append(helper.make_attribute("else_branch", branch("a", 8, own=False)))
    assert held_bytes(read(node, weight("a_w", 4, 8)))[0] == 4 * SMALL


def test_weights_that_no_branch_reads_do_not_count() -> None:
    node = N("If", ["flag"], ["y"], then_branch=branch("a", 8), else_branch=branch("b", 100))
    assert held_bytes(read(node, weight("unused", 4, 8)))[0] == 4 * (SMALL + LARGE)


@pytest.mark.parametrize("trips", [1, 5])
def test_a_loop_written_out_holds_the_weights_of_its_body_once(trips: int) -> None:
    # The state grows, so that every trip is priced by itself.
    body = helper.make_graph(
        [
            N("MatMul", ["h", "w"], ["step"]),
            N("Concat", ["h", "step"], ["next"], axis=0),
            N("Identity", ["going"], ["go_on"]),
        ],
        "body",
        [info("trip", TensorProto.INT64, []), info("going", BOOL, []), info("h", FLOAT, None)],
        [info("go_on", BOOL, []), info("next", FLOAT, None)],
        initializer=[weight("w", 4, 4)],
    )
    count = helper.make_tensor("count", TensorProto.INT64, [], [trips])
    graph = read(N("Loop", ["count", "", "x"], ["y"], body=body), count)
    assert graph.values[graph.outputs[0]].shape == (2 * 2**trips, 4)
    assert held_bytes(graph)[0] == 4 * 16


def test_both_branches_are_told_apart_by_what_stays() -> None:
    found = {
        read(N("If", ["flag"], ["y"], then_branch=branch("a", 8), else_branch=branch("b", 100))).fingerprint,
        read(N("If", ["flag"], ["y"], then_branch=branch("a", 9), else_branch=branch("b", 100))).fingerprint,
    }
    assert len(found) == 2
