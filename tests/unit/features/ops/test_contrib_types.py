"""Output types of ops that ONNX's inference does not know: those of the golden cases, read from a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from predictor.features.graph import Graph, Value
from predictor.features.reading.elements import TO_ONNX
from predictor.features.reading.reader import read_graph
from tests.unit.features.ops.test_golden import CASES, view_of

# Maps, and attributes that only ONNX's own rules ask for: read in test_classic_types.
_ELSEWHERE = frozenset({"DictVectorizer", "CastMap", "ZipMap", "TreeEnsemble"})
DERIVED = [
    case
    for case in CASES
    if case["domain"] in ("com.microsoft", "ai.onnx.ml") and case["op"] not in _ELSEWHERE
]


def info(value: Value) -> Any:
    return helper.make_tensor_value_info(value.name, TO_ONNX[value.dtype], list(value.shape))


def graph_of(case: dict[str, Any]) -> Graph:
    view = view_of(case)
    given = [value for value in view.inputs if value is not None]
    constants = [
        numpy_helper.from_array(np.array(numbers).reshape(value.shape), value.name)
        for value, numbers in zip(view.inputs, view.constants, strict=True)
        if value is not None and numbers is not None
    ]
    node = helper.make_node(
        view.op_type,
        [value.name if value else "" for value in view.inputs],
        [value.name if value else "" for value in view.outputs],
        domain=view.domain,
        **{name: list(a) if isinstance(a, tuple) else a for name, a in view.attributes.items()},
    )
    named = {tensor.name for tensor in constants}
    graph = helper.make_graph(
        [node],
        "one",
        [info(value) for value in given if value.name not in named],
        [helper.make_empty_tensor_value_info(value.name) for value in view.outputs if value],
        initializer=constants,
    )
    version = 3 if view.domain == "ai.onnx.ml" else 1
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(view.domain, version)]
    return read_graph(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


@pytest.mark.parametrize("case", DERIVED, ids=[f"{i}-{case['op']}" for i, case in enumerate(DERIVED)])
def test_types_are_those_of_the_golden_case(case: dict[str, Any]) -> None:
    graph = graph_of(case)
    outputs = [value for value in view_of(case).outputs if value is not None]
    assert list(graph.outputs) == [value.name for value in outputs]
    for expected in outputs:
        found = graph.values[expected.name]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def read_one(node: Any, inputs: list[Any], domain_version: int = 3) -> Graph:
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", domain_version)]
    return read_graph(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def test_a_row_of_scores_becomes_a_map_of_classes() -> None:
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    graph = read_one(node, [helper.make_tensor_value_info("x", 1, [5, 3])])
    # Five maps of three keys and three values.
    assert graph.values["y"].shape == (5, 6) or graph.values["y"].elements == 30


def test_a_map_becomes_a_vector() -> None:
    kind = helper.make_map_type_proto(7, helper.make_tensor_type_proto(1, []))
    given = [helper.make_value_info("x", kind)]
    node = helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml", map_form="SPARSE", max_map=7)
    assert read_one(node, given).values["y"].shape == (1, 7)
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[4, 5])
    assert read_one(node, given).values["y"].shape == (1, 2)
