"""Golden cases of the grouped product, derived by hand."""

from __future__ import annotations

import pytest

from predictor.errors import InvalidGraph
from predictor.features.builder import GraphBuilder
from predictor.features.dtype import DType
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
from predictor.features.programs.work import Contraction, Family, Phase
from predictor.features.reading.reader import read_graph
from tests.unit.features.graphs import view

load_rules()


def grouped(rows: int, groups: int, gradients: list[int] | None = None) -> OpView:
    return view(
        "GroupedMatMul",
        [(rows, 8), (groups, 8, 16)],
        [(rows, 16)],
        domain="perfcast",
        weights=[1],
        gradients=gradients or [],
    )


def test_each_row_meets_one_matrix() -> None:
    op = grouped(10, 4)
    rule = WORK_RULES.get("perfcast", "GroupedMatMul", 1)
    assert rule is not None
    (work,) = rule(op)
    assert work.matrix_flops == 2 * 10 * 8 * 16
    # Four groups of at most three rows; every matrix is read.
    assert work.shape == Contraction(4, 3, 16, 8)
    assert (work.family, work.kind) == (Family.BATCHED_MATMUL, "grouped_matmul")
    assert work.parameter_bytes == 4 * (4 * 8 * 16)
    assert work.read_bytes == 4 * (10 * 8 + 4 * 8 * 16)
    assert work.write_bytes == 4 * 10 * 16


def test_fewer_rows_than_groups_read_as_many_matrices_as_rows() -> None:
    rule = WORK_RULES.get("perfcast", "GroupedMatMul", 1)
    assert rule is not None
    (work,) = rule(grouped(2, 64))
    assert work.shape == Contraction(2, 1, 16, 8)
    assert work.parameter_bytes == 4 * (2 * 8 * 16)
    assert work.matrix_flops == 2 * 2 * 8 * 16


def test_gradients_of_rows_and_matrices() -> None:
    rule = BACKWARD_RULES.get("perfcast", "GroupedMatMul", 1)
    assert rule is not None
    found = rule(grouped(10, 4, gradients=[0, 1]))
    data, weight = found.works
    assert (data.shape, weight.shape) == (Contraction(4, 3, 8, 16), Contraction(4, 8, 16, 3))
    assert data.matrix_flops == weight.matrix_flops == 2 * 10 * 8 * 16
    assert data.phase is weight.phase is Phase.BACKWARD
    assert weight.write_bytes == 4 * (4 * 8 * 16)
    assert set(found.saves) == {"in0", "in1"}
    assert [work.write_bytes for work in rule(grouped(10, 4, gradients=[1])).works] == [4 * (4 * 8 * 16)]


def test_its_type_is_known_to_builder_and_reader() -> None:
    b = GraphBuilder()
    rows = b.input("rows", ("n", 8))
    ends = b.input("ends", (4,), DType.INT64)
    y = b.op("GroupedMatMul", [rows, b.parameter((4, 8, 16)), ends], domain="perfcast")
    assert y.shape == ("n", 16)
    graph = read_graph(b.build([y]), dims={"n": 10})
    assert graph.values[y.name].shape == (10, 16)
    assert graph.parameter_count == 4 * 8 * 16


def test_matrices_without_a_group_axis_are_refused_by_the_reader() -> None:
    b = GraphBuilder()
    y = b.op("GroupedMatMul", [b.input("rows", (10, 8)), b.parameter((8, 16))], domain="perfcast")
    with pytest.raises(InvalidGraph, match="GroupedMatMul"):
        read_graph(b.build([y]))
