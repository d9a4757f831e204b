"""ONNX's backend tests as a suite: what counts as read, as agreeing, as depending on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from predictor.evaluation.onnx_node_tests import (
    Agreement,
    Case,
    Checked,
    Outcome,
    check_case,
    node_test_rows,
    node_test_tables,
    read_cases,
)
from predictor.evaluation.op_coverage import Coverage, coverage_tables, op_coverage

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
N, info = helper.make_node, helper.make_tensor_value_info


def case(
    node: Any, inputs: Sequence[Any], declared: Sequence[int] | None, given: Sequence[Any], expected: Any
) -> Case:
    graph = helper.make_graph([node], "g", list(inputs), [info("y", FLOAT, declared)])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("else", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return Case("one", "node", model, tuple(given), (expected,))


DATA = np.zeros((2, 4), np.float32)
X = info("x", FLOAT, [2, 4])


def test_a_plain_model_is_read_and_agrees() -> None:
    found = check_case(case(N("Relu", ["x"], ["y"]), [X], [2, 4], [DATA], DATA))
    assert (found.outcome, found.agreement) == (Outcome.READ, Agreement.AGREES)
    assert (found.derived_outcome, found.derived_agreement) == (Outcome.READ, Agreement.AGREES)


def test_a_shape_other_than_expected_differs() -> None:
    found = check_case(case(N("Relu", ["x"], ["y"]), [X], None, [DATA], DATA[:1]))
    assert found.agreement is Agreement.DIFFERS


def test_sizes_in_an_input_are_given_when_nothing_else_helps() -> None:
    node, size = N("Reshape", ["x", "size"], ["y"]), info("size", INT, [2])
    given = [DATA, np.array([8, 1])]
    declared = check_case(case(node, [X, size], [8, 1], given, DATA.reshape(8, 1)))
    assert (declared.outcome, declared.derived_outcome) == (Outcome.READ, Outcome.READ_WITH_INPUTS)
    assert declared.derived_agreement is Agreement.AGREES
    assert (
        check_case(case(node, [X, size], None, given, DATA.reshape(8, 1))).outcome is Outcome.READ_WITH_INPUTS
    )


def test_what_depends_on_data_is_no_difference() -> None:
    found = check_case(case(N("Unique", ["x"], ["y"]), [X], None, [DATA], np.zeros((1,), np.float32)))
    assert found.agreement is Agreement.DEPENDS_ON_DATA


def test_an_error_and_a_fallback_are_named() -> None:
    unknown = N("Mystery", ["x"], ["y"], domain="else")
    refused = check_case(case(unknown, [X], None, [DATA], DATA))
    assert refused.outcome is Outcome.REFUSED
    assert "Mystery" in refused.message
    assert refused.agreement is Agreement.UNKNOWN
    assert check_case(case(unknown, [X], [2, 4], [DATA], DATA)).fallback == ("Mystery",)


def checked(outcome: Outcome, agreement: Agreement) -> Checked:
    return Checked("one", "node", outcome, agreement, outcome, agreement)


def test_rows_are_shares() -> None:
    part = [
        checked(Outcome.READ, Agreement.AGREES),
        checked(Outcome.READ, Agreement.DIFFERS),
        checked(Outcome.CRASHED, Agreement.UNKNOWN),
        checked(Outcome.REFUSED, Agreement.UNKNOWN),
    ]
    rows = {row.metric: row for row in node_test_rows(part) if row.group.endswith("all")}
    assert (rows["unread"].value, rows["unread"].n) == (0.5, 4)
    assert rows["crashed"].value == 0.25
    assert (rows["shapes_differ"].value, rows["shapes_differ"].n) == (0.5, 2)
    assert {row.id for row in rows.values()} == {"G1"}
    reading, _, exceptions = node_test_tables(part)
    assert reading.lines[0][3:] == ("2", "0", "1", "1")
    assert len(exceptions.lines) == 3


def test_every_operator_of_onnx_is_covered() -> None:
    found = op_coverage()
    assert [item.op_type for item in found if item.forward is Coverage.FALLBACK] == []
    kinds = {item.op_type: item.forward for item in found}
    assert kinds["Loop"] is Coverage.CONTROL
    assert kinds["FlexAttention"] is Coverage.FUNCTION
    assert kinds["Conv"] is Coverage.RULE
    counts, _ = coverage_tables(found, {("", "Conv")}, ())
    standard = next(line for line in counts.lines if line[0] == "ai.onnx")
    assert sum(int(number) for number in standard[2:6]) == int(standard[1])
    assert standard[6] == "1"


@pytest.mark.slow
def test_every_model_of_the_package_is_read() -> None:
    rows = node_test_rows([check_case(item) for item in read_cases()])
    assert {row.metric: row.value for row in rows if row.group.endswith("all")} == {
        "unread": 0.0,
        "crashed": 0.0,
        "shapes_differ": 0.0,
        "derived_shapes_differ": 0.0,
    }
