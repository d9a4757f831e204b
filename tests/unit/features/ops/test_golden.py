"""Golden cases of every work rule, derived by hand: op, types, attributes -> FLOPs and bytes.

Types are written `[*][dtype:]sizes`, `*` marks a weight, `-` an omitted operand; numbers are arithmetic.
"""

from __future__ import annotations

import ast
import operator
import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Value
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
from predictor.features.programs.work import OpWork, Phase

load_rules()

DTYPES: Mapping[str, DType] = {
    "f64": DType.FLOAT64,
    "f32": DType.FLOAT32,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "f8": DType.FLOAT8,
    "i64": DType.INT64,
    "i32": DType.INT32,
    "i16": DType.INT16,
    "i8": DType.INT8,
    "i4": DType.INT4,
    "i2": DType.INT2,
    "bool": DType.BOOL,
    "str": DType.STRING,
}
OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def number(text: str) -> int:
    """The value of a sum of products."""

    def evaluate(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return Fraction(node.value)
        assert isinstance(node, ast.BinOp), text
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))

    result = evaluate(ast.parse(text, mode="eval").body)
    assert result.denominator == 1, text
    return int(result)


def value(text: str, name: str) -> Value | None:
    if text == "-":
        return None
    dtype, colon, sizes = text.lstrip("*").rpartition(":")
    assert not colon or dtype in DTYPES, text
    return Value(name, tuple(int(size) for size in sizes.split()), DTYPES[dtype or "f32"])


def attribute(given: Any) -> Attribute:
    return tuple(given) if isinstance(given, list) else given


def read_cases(folder: str) -> list[dict[str, Any]]:
    found = []
    for path in sorted(Path(__file__).with_name(folder).glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        for case in content["cases"]:
            found.append({"domain": content.get("domain", ""), "opset": 21, "file": path.stem, **case})
    return found


CASES, GRADIENTS = read_cases("golden"), read_cases("golden_backward")


def view_of(case: Mapping[str, Any]) -> OpView:
    inputs: list[str] = case["in"]
    return OpView(
        domain=case["domain"],
        op_type=case["op"],
        attributes={name: attribute(given) for name, given in case.get("attr", {}).items()},
        inputs=tuple(value(text, f"in{index}") for index, text in enumerate(inputs)),
        outputs=tuple(value(text, f"out{index}") for index, text in enumerate(case["out"])),
        opset=case["opset"],
        constants=tuple(
            tuple(case["const"][str(i)]) if str(i) in case.get("const", {}) else None
            for i in range(len(inputs))
        ),
        weights=tuple(text.startswith("*") for text in inputs),
        training=case.get("training", False),
        needs_gradient=frozenset(f"in{index}" for index in case.get("gradients", ())),
    )


def works_of(case: Mapping[str, Any]) -> tuple[OpWork, ...]:
    rule = WORK_RULES.get(case["domain"], case["op"], case["opset"])
    assert rule is not None, "no such rule"
    return rule(view_of(case))


def check(works: tuple[OpWork, ...], case: Mapping[str, Any]) -> None:
    found = {
        "flops": sum(work.flops for work in works),
        "read": sum(work.read_bytes for work in works),
        "write": sum(work.write_bytes for work in works),
        "launches": sum(work.launch_count for work in works),
    }
    expected = {name: number(case[name]) for name in ("flops", "read", "write")}
    assert found == {**expected, "launches": case.get("launches", 1)}


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case['file']}-{index}-{case['op']}" for index, case in enumerate(CASES)]
)
def test_golden_case(case: dict[str, Any]) -> None:
    works = works_of(case)
    check(works, case)
    if "parameters" in case:
        assert sum(work.parameter_bytes for work in works) == number(case["parameters"])


@pytest.mark.parametrize("case", GRADIENTS, ids=[case["op"] for case in GRADIENTS])
def test_golden_gradient(case: dict[str, Any]) -> None:
    rule = BACKWARD_RULES.get(case["domain"], case["op"], case["opset"])
    assert rule is not None
    backward = rule(view_of(case))
    check(backward.works, case)
    assert {work.phase for work in backward.works} <= {Phase.BACKWARD}
    assert list(backward.saves) == case["saves"]


def test_every_rule_has_a_golden_case() -> None:
    covered = {
        (case["domain"], case["op"], rule)
        for case in CASES
        for rule in (WORK_RULES.get(case["domain"], case["op"], case["opset"]),)
    }
    missing = [
        f"{domain or 'ai.onnx'}::{op} since {since}"
        for domain, op, since in WORK_RULES
        if (domain, op, WORK_RULES.get(domain, op, since)) not in covered
        # Rules that tests register are theirs.
        and not domain.startswith("acme")
    ]
    assert missing == []


def test_arithmetic_of_the_cases() -> None:
    assert number("2*6*16*8+(3-1)*4/8") == 1537
    assert value("*i8:2 3", "x") == Value("x", (2, 3), DType.INT8)
    assert value("", "x") == Value("x", (), DType.FLOAT32)
    assert value("-", "x") is None
