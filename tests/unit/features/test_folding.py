"""Folded constants equal what ONNX's reference evaluator computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from predictor.features.reading.attributes import read_attributes
from predictor.features.reading.folding import ELEMENT_LIMIT, FOLD_RULES, SHAPE_RULES, fold, fold_shape
from predictor.features.reading.tensor_type import Array, TensorType

INTS = np.array([[7, -7, 3], [4, 5, -6]])
FLOATS = np.array([[1.5, -2.25, 0.5], [4.0, 9.0, -0.75]], dtype=np.float32)
FLAGS = np.array([[True, False, True], [False, False, True]])

# (op, inputs, attributes, outputs)
CASES: list[tuple[str, Sequence[Any], dict[str, Any], int]] = [
    *((op, (INTS, np.array([[2, 2, -2], [-3, 3, 4]])), {}, 1) for op in ("Add", "Sub", "Mul", "Div", "Mod")),
    *((op, (FLOATS, np.float32(2)), {}, 1) for op in ("Add", "Div", "Pow", "Less", "GreaterOrEqual")),
    *((op, (INTS, np.array(4)), {}, 1) for op in ("Equal", "LessOrEqual", "Greater", "Min", "Max", "Sum")),
    *((op, (FLAGS, ~FLAGS[:1]), {}, 1) for op in ("And", "Or", "Xor")),
    *((op, (FLOATS,), {}, 1) for op in ("Floor", "Ceil", "Round", "Neg", "Abs", "Sign", "Exp", "Identity")),
    *((op, (np.abs(FLOATS),), {}, 1) for op in ("Sqrt", "Log", "Reciprocal")),
    ("Not", (FLAGS,), {}, 1),
    ("Mod", (FLOATS, np.float32(0.6)), {"fmod": 1}, 1),
    ("Where", (FLAGS, INTS, np.array(0)), {}, 1),
    ("Clip", (INTS, np.array(-1), np.array(4)), {}, 1),
    ("Clip", (INTS, None, np.array(4)), {}, 1),
    ("Cast", (FLOATS,), {"to": 7}, 1),
    ("Cast", (INTS,), {"to": 9}, 1),
    ("CastLike", (INTS, FLOATS), {}, 1),
    ("Range", (np.array(3), np.array(20), np.array(4)), {}, 1),
    ("Range", (np.array(9), np.array(0), np.array(-2)), {}, 1),
    ("ConstantOfShape", (np.array([2, 3]),), {"value": helper.make_tensor("v", 7, [1], [5])}, 1),
    ("ConstantOfShape", (np.array([4]),), {}, 1),
    ("Expand", (INTS[:, :1], np.array([2, 2, 4])), {}, 1),
    ("Tile", (INTS, np.array([2, 1])), {}, 1),
    ("Pad", (INTS, np.array([1, 0, 0, 2]), np.array(8)), {}, 1),
    ("Pad", (INTS, np.array([0, 0, 1, 1])), {}, 1),
    ("Reshape", (INTS, np.array([0, -1, 1])), {}, 1),
    ("Flatten", (INTS[None],), {"axis": 2}, 1),
    ("Squeeze", (INTS[None, :, :1], np.array([0, 2])), {}, 1),
    ("Squeeze", (INTS[None],), {}, 1),
    ("Unsqueeze", (INTS, np.array([0, -1])), {}, 1),
    ("Transpose", (INTS,), {}, 1),
    ("Transpose", (INTS[None],), {"perm": [2, 0, 1]}, 1),
    ("Concat", (INTS, INTS[:1]), {"axis": 0}, 1),
    ("Split", (INTS, np.array([1, 2])), {"axis": 1}, 2),
    ("Slice", (INTS, np.array([0]), np.array([2**62]), np.array([1]), np.array([2])), {}, 1),
    ("Slice", (INTS, np.array([-1]), np.array([-(2**62)]), np.array([1]), np.array([-1])), {}, 1),
    ("Slice", (INTS, np.array([1, 0]), np.array([2, 2])), {}, 1),
    ("Gather", (INTS, np.array([[1, -2]])), {"axis": 1}, 1),
    ("GatherElements", (INTS, np.array([[1, 0, 1]])), {"axis": 0}, 1),
    ("ScatterND", (np.arange(6), np.array([[1], [4]]), np.array([9, 8])), {}, 1),
    ("CumSum", (INTS, np.array(1)), {}, 1),
    ("NonZero", (FLAGS,), {}, 1),
    ("OneHot", (np.array([[0, -1]]), np.array(3), np.array([0, 5])), {}, 1),
    ("OneHot", (np.array([2, 1]), np.array(3), np.array([0, 5])), {"axis": 0}, 1),
    ("Trilu", (INTS, np.array(1)), {"upper": 1}, 1),
    ("Trilu", (INTS,), {"upper": 0}, 1),
    ("ReduceProd", (INTS, np.array([1])), {"keepdims": 0}, 1),
    ("ReduceSum", (INTS, np.array([0])), {}, 1),
    ("ReduceSum", (INTS,), {"noop_with_empty_axes": 1}, 1),
    ("ReduceMax", (INTS,), {}, 1),
    ("ReduceMin", (INTS, np.array([-1])), {"keepdims": 1}, 1),
    ("ReduceMean", (FLOATS, np.array([1])), {}, 1),
]


def _reference(node: Any, inputs: Sequence[Any]) -> list[Array]:
    given = {name: np.asarray(array) for name, array in zip(node.input, inputs, strict=True) if name}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), None)
        for name, a in given.items()
    ]
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in node.output]
    graph = helper.make_graph([node], "one", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    result: list[Array] = ReferenceEvaluator(model).run(None, given)
    return result


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "count"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_rules_agree_with_the_reference(
    op: str, inputs: Sequence[Any], attributes: dict[str, Any], count: int
) -> None:
    names = ["" if array is None else f"i{k}" for k, array in enumerate(inputs)]
    node = helper.make_node(op, names, [f"o{k}" for k in range(count)], **attributes)
    arrays = [None if array is None else np.asarray(array) for array in inputs]
    found = fold(op, read_attributes(node), arrays, 18)
    assert found is not None
    for ours, theirs in zip(found, _reference(node, inputs), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs)


def test_every_rule_has_a_case() -> None:
    tested = {case[0] for case in CASES}
    assert {op for _, op, _ in FOLD_RULES} - tested == {"Constant"}


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_int": 3}, 3),
        ({"value_ints": (3, 4)}, [3, 4]),
        ({"value_float": 0.5}, 0.5),
        ({"value_floats": (1.0,)}, [1.0]),
    ],
)
def test_constants_of_every_spelling(attributes: dict[str, Any], expected: Any) -> None:
    found = fold("Constant", attributes, [], 18)
    assert found is not None
    assert found[0].tolist() == expected


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Expand", (np.array(1), np.array([ELEMENT_LIMIT + 1]))),
        ("ConstantOfShape", (np.array([2**40]),)),
        ("Range", (np.array(0), np.array(2**60), np.array(1))),
        ("Tile", (np.arange(100), np.array([10**6]))),
        ("Pad", (np.arange(3), np.array([0, 10**9]))),
    ],
)
def test_large_results_are_not_computed(op: str, inputs: Sequence[Array]) -> None:
    assert fold(op, {}, inputs, 18) is None


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Div", (np.array([4]), np.array([0]))),
        ("Mod", (np.array([4]), np.array([0]))),
        ("Range", (np.array(0), np.array(4), np.array(0))),
        ("Gather", (np.arange(3), np.array([7]))),
        ("Concat", (np.zeros((2, 2)), np.zeros((3,)))),
    ],
)
def test_operands_that_do_not_fit_are_left_to_the_type_rules(op: str, inputs: Sequence[Array]) -> None:
    assert fold(op, {}, inputs, 18) is None


def test_older_opsets_keep_axes_in_attributes() -> None:
    (unsqueezed,) = fold("Unsqueeze", {"axes": (0,)}, [np.arange(3)], 11) or ()
    (sliced,) = fold("Slice", {"starts": (1,), "ends": (3,), "axes": (0,)}, [np.arange(4)], 9) or ()
    assert unsqueezed.shape == (1, 3)
    assert sliced.tolist() == [1, 2]


def test_shape_and_size_need_no_contents() -> None:
    known = TensorType(1, (2, 3, 5))
    assert set(SHAPE_RULES) == {"Shape", "Size"}
    assert [a.tolist() for a in fold_shape("Shape", {"start": -2}, known) or ()] == [[3, 5]]
    assert [a.tolist() for a in fold_shape("Size", {}, known) or ()] == [30]
    assert fold_shape("Shape", {}, TensorType(1, (2, "n"))) is None


@pytest.mark.parametrize("wrong", [1, 1.5, "text", (1, 2), (0.5,), ("a",), INTS])
@pytest.mark.parametrize("op", sorted({op for _, op, _ in FOLD_RULES}))
def test_attributes_of_any_type_are_left_to_the_type_rules(op: str, wrong: object) -> None:
    names = (
        "value",
        "value_int",
        "value_floats",
        "to",
        "axis",
        "axes",
        "perm",
        "starts",
        "ends",
        "pads",
        "split",
    )
    names += ("num_outputs", "keepdims", "mode", "min", "max", "upper", "reduction", "allowzero", "fmod")
    for inputs in ([INTS], [INTS, INTS[0]], [np.array([2, 3])], [INTS, INTS[0], INTS[0]]):
        for version in (9, 13, 21):
            with np.errstate(all="ignore"):
                folded = fold(op, dict.fromkeys(names, wrong), inputs, version)
            assert folded is None or all(isinstance(array, np.ndarray) for array in folded)
