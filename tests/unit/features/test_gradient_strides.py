"""Copies of gradients that arrive in strides their reader cannot use, and slices that are a split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from predictor.features.ops.einsum import operand_orders
from predictor.features.programs.gradient_strides import GradientStrides
from predictor.features.programs.program import build_program
from predictor.features.programs.work import Phase, Program
from predictor.features.reading.reader import read_graph
from predictor.types import Mode, Optimizer, Precision, Runtime


def trained(nodes: list[Any], inputs: dict[str, tuple[int, ...]], **constants: Any) -> Program:
    """Program of a training iteration; `inputs` but the first are parameters."""
    (first, shape), *others = inputs.items()
    weights = [numpy_helper.from_array(np.zeros(size, np.float32), name) for name, size in others] + [
        numpy_helper.from_array(np.array(value, np.int64), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(first, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return build_program(
        read_graph(model.SerializeToString()),
        mode=Mode.TRAIN,
        precision=Precision.FP32,
        optimizer=Optimizer.NONE,
        runtime=Runtime.EAGER,
    )


def backward_kinds(program: Program) -> list[str]:
    return [op.work.kind for op in program.ops if op.work.phase is Phase.BACKWARD]


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op_type, inputs.split(), output.split(), output.split()[0], **attributes)


def test_heads_that_were_split_are_merged_by_a_copy() -> None:
    program = trained(
        [
            node("MatMul", "x weight", "projected"),
            node("Reshape", "projected heads", "split"),
            node("Transpose", "split", "query", perm=[0, 2, 1, 3]),
            node("MatMul", "query key", "out"),
        ],
        {"x": (2, 16, 32), "weight": (32, 32), "key": (2, 4, 8, 16)},
        heads=[2, 16, 4, 8],
    )
    # bmm towards the query, bmm towards the key; the query's gradient merged; then the weight's.
    assert backward_kinds(program) == ["fill", "bmm", "bmm", "transpose", "linear_weight_gradient"]
    (copy,) = [
        op.work for op in program.ops if op.work.phase is Phase.BACKWARD and op.work.kind == "transpose"
    ]
    assert copy.moved_bytes == 2 * 4 * 2 * 16 * 32


def test_a_transposition_that_pointwise_ops_read_is_free() -> None:
    program = trained(
        [
            node("Mul", "x scale", "scaled"),
            node("Transpose", "scaled", "turned", perm=[1, 0]),
            node("Relu", "turned", "out"),
        ],
        {"x": (8, 16), "scale": (8, 16)},
    )
    kinds = backward_kinds(program)
    assert kinds[:3] == ["fill", "relu", "mul"]
    # The parameter's gradient lies as the parameter does.
    assert kinds[3:] in ([], ["transpose"])


def test_parts_of_a_join_are_copied_for_kernels_that_need_order() -> None:
    program = trained(
        [
            node("Conv", "x first", "left", pads=[1, 1, 1, 1]),
            node("Conv", "x second", "right", pads=[1, 1, 1, 1]),
            node("Concat", "left right", "out", axis=1),
        ],
        {"x": (2, 3, 8, 8), "first": (4, 3, 3, 3), "second": (4, 3, 3, 3)},
    )
    assert backward_kinds(program).count("transpose") == 2


def test_parts_along_the_first_axis_are_in_order() -> None:
    program = trained(
        [
            node("Conv", "x first", "left"),
            node("Conv", "x second", "right"),
            node("Concat", "left right", "out", axis=0),
        ],
        {"x": (2, 3, 8, 8), "first": (4, 3, 3, 3), "second": (4, 3, 3, 3)},
    )
    assert "transpose" not in backward_kinds(program)


def test_orders_of_an_einsum() -> None:
    assert operand_orders("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]) == ((0, 1, 2, 3), (0, 1, 3, 2))
    assert operand_orders("ij,jk->ik", [(2, 3), (3, 4)]) == ((0, 1), (0, 1))
    assert operand_orders("...ij,...kj->...ik", [(2, 4, 3), (2, 5, 3)]) == ((0, 1, 2), (0, 2, 1))
    assert operand_orders("ii->i", [(3, 3)]) is None


def test_a_gradient_of_a_transposed_operand_of_an_einsum_is_copied_for_its_parameter() -> None:
    program = trained(
        [node("Einsum", "x weight", "out", equation="bid,bjd->bij")], {"x": (2, 8, 4), "weight": (2, 6, 4)}
    )
    assert backward_kinds(program) == ["fill", "bmm", "transpose"]


def split(ends: tuple[int, int]) -> Program:
    return trained(
        [
            node("Mul", "x scale", "scaled"),
            node("Slice", "scaled zero middle axis", "left"),
            node("Slice", "scaled middle end axis", "right"),
            node("Mul", "left right", "out"),
        ],
        {"x": (4, 8), "scale": (4, 8)},
        zero=[0],
        middle=[ends[0]],
        end=[ends[1]],
        axis=[1],
    )


def test_slices_that_partition_an_axis_are_a_split() -> None:
    assert backward_kinds(split((4, 8))) == ["fill", "mul", "mul", "concat", "mul"]


@pytest.mark.parametrize("ends", [(4, 2**63 - 1), (4, 7)])
def test_other_slices_stay_slices(ends: tuple[int, int]) -> None:
    if ends[1] == 7:
        pytest.importorskip("onnx")
        program = trained(
            [
                node("Mul", "x scale", "scaled"),
                node("Slice", "scaled zero three axis", "left"),
                node("Slice", "scaled three six axis", "right"),
                node("Mul", "left right", "out"),
            ],
            {"x": (4, 8), "scale": (4, 8)},
            zero=[0],
            three=[3],
            six=[6],
            axis=[1],
        )
    else:
        program = split(ends)
    assert backward_kinds(program).count("slice") == 2
    assert "concat" not in backward_kinds(program)


def test_nothing_is_strided_at_the_start() -> None:
    program_graph = read_graph(
        helper.make_model(
            helper.make_graph(
                [node("Relu", "x", "out")],
                "graph",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))],
                [helper.make_tensor_value_info("out", TensorProto.FLOAT, (2, 3))],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
        ).SerializeToString()
    )
    strides = GradientStrides(program_graph)
    assert list(strides.before(program_graph.nodes[0])) == []
