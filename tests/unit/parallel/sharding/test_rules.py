"""Every shard rule against the work rules: the ranks' work adds up to the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from predictor.features.graph import Value
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES, load_rules
from predictor.parallel.sharding.layout import Split, cut, fits, is_exact, local_shape
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, load_shard_rules
from tests.unit.features.ops.test_golden import CASES, view_of

load_rules()
load_shard_rules()
PARTS = 2

_KNOWN = [case for case in CASES if SHARD_RULES.get(case["domain"], case["op"], case["opset"]) is not None]


def local_view(op: OpView, axis: Axis) -> OpView:
    def shard(value: Value | None, place: Split | None) -> Value | None:
        return value and replace(value, shape=local_shape(value.shape, place, PARTS))

    def taken(index: int, value: Value | None) -> Value | None:
        if value is None or index not in axis.taken:
            return value
        dim, length = axis.taken[index]
        return replace(value, shape=(*value.shape[:dim], length, *value.shape[dim + 1 :]))

    inputs = tuple(shard(value, place) for value, place in zip(op.inputs, axis.inputs, strict=True))
    return replace(
        op,
        attributes={**op.attributes, **axis.attributes},
        inputs=tuple(taken(index, value) for index, value in enumerate(inputs)),
        outputs=tuple(shard(value, place) for value, place in zip(op.outputs, axis.outputs, strict=True)),
    )


def axes(case: dict[str, Any]) -> list[Axis]:
    """Every way in which the case's op can be split exactly."""
    op = view_of(case)
    rule = SHARD_RULES.get(case["domain"], case["op"], case["opset"])
    assert rule is not None
    found = []
    values = [*enumerate(op.inputs), *((~index, value) for index, value in enumerate(op.outputs))]
    for operand, value in values:
        for dim, size in enumerate(value.shape if value else ()):
            answer = rule(op, operand, cut(dim, (size,)), PARTS) if size >= PARTS else "too short"
            if isinstance(answer, Axis) and all(
                fits(place, PARTS) and is_exact(place, PARTS)
                for place in (*answer.inputs, *answer.outputs)
                if place
            ):
                assert answer.of(operand) == cut(dim, (size,))
                found.append(answer)
    return found


@pytest.mark.parametrize("case", _KNOWN, ids=[f"{case['op']}-{index}" for index, case in enumerate(_KNOWN)])
def test_work_of_the_ranks_is_the_work_of_the_whole(case: dict[str, Any]) -> None:
    op = view_of(case)
    rule = WORK_RULES.get(case["domain"], case["op"], case["opset"])
    assert rule is not None
    whole = rule(op)
    for axis in axes(case):
        if axis.ring:
            continue
        parts = rule(local_view(op, axis))
        assert PARTS * sum(w.matrix_flops for w in parts) == sum(w.matrix_flops for w in whole)
        assert sum(w.launch_count for w in parts) == sum(w.launch_count for w in whole)
        # Norms and the like keep a sum per row; a bias is added to the ranks' sum once.
        assert sum(w.vector_flops for w in parts) <= sum(w.vector_flops for w in whole)
        assert sum(w.moved_bytes for w in parts) <= sum(w.moved_bytes for w in whole)


def test_the_common_ops_can_be_split() -> None:
    split = {case["op"] for case in _KNOWN if axes(case)}
    assert {"MatMul", "Gemm", "Linear", "Einsum", "Conv", "Add", "Relu", "Softmax", "Gather"} <= split
    assert {"LayerNormalization", "GroupNormalization", "Attention", "Transpose", "Concat"} <= split


def test_norms_softmax_and_pools_keep_their_rows_whole() -> None:
    for case in _KNOWN:
        op = view_of(case)
        for axis in axes(case):
            place = axis.inputs[0]
            if op.op_type in ("LayerNormalization", "RMSNormalization"):
                assert place is None or place.dim < len(op.input(0).shape) - 1
            if op.op_type in ("MaxPool", "AveragePool", "Resize"):
                assert place is None or place.dim < 2
