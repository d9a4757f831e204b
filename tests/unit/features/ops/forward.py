"""The forward rule of an op, applied, for tests."""

from __future__ import annotations

from typing import Any

from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES, load_rules
from predictor.features.programs.work import (
    OpWork,
)

load_rules()


def work_of(op: OpView) -> tuple[OpWork, ...]:
    rule = WORK_RULES.get(op.domain, op.op_type, op.opset)
    assert rule is not None
    return rule(op)


def only(op: OpView) -> OpWork:
    (work,) = work_of(op)
    return work


def check(work: OpWork, **expected: Any) -> None:
    assert {name: getattr(work, name) for name in expected} == expected
