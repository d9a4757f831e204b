"""Gather: embedding look-ups, index selection and scalar indexing."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.graph import Value
from predictor.features.ops.parts import copy, gradient_of, pointwise, scatter_add, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase


def _is_select(op: OpView) -> bool:
    # One index that is known beforehand (x[:, 0]): a view.
    return op.input(1).elements == 1 and (op.constant(1) is not None or op.is_weight(1))


def _kind(op: OpView) -> str:
    return "embedding" if op.is_weight(0) and op.integer("axis") == 0 else "gather"


@WORK_RULES.register("", "Gather")
def gather(op: OpView) -> tuple[OpWork, ...]:
    """Reads only the rows that are picked."""
    if _is_select(op):
        return ()
    data, indices, out = op.input(0), op.input(1), op.output()
    rows = Value("rows", out.shape, data.dtype)
    looked_up = work(
        op, Family.GATHER, _kind(op), Elements(out.elements), reads=(rows, indices), writes=(out,)
    )
    if not op.is_weight(0):
        return (looked_up,)
    picked = min(rows.size_bytes, data.size_bytes)
    return (replace(looked_up, parameter_bytes=picked),)


@BACKWARD_RULES.register("", "Gather")
def gather_backward(op: OpView) -> Backward:
    """Zeros of the table's size, then the rows added; an embedding sorts its indices first."""
    data, indices, out = op.input(0), op.input(1), op.output()
    if not op.wants_gradient(0):
        return Backward()
    fill = pointwise(op, "fill", 0, reads=(), writes=(data,), phase=Phase.BACKWARD)
    if _is_select(op):
        if data.elements == out.elements:
            return Backward(passes=(data.name,))
        return Backward(
            (fill, copy(op, "slice", reads=(gradient_of(out),), writes=(out,), phase=Phase.BACKWARD))
        )
    works = [fill]
    if _kind(op) == "embedding":
        works.append(
            work(
                op,
                Family.REDUCTION,
                "sort",
                Elements(indices.elements),
                reads=(indices,),
                writes=(Value("sorted", indices.shape, indices.dtype),),
                phase=Phase.BACKWARD,
            )
        )
    works.append(scatter_add(op, indices))
    return Backward(tuple(works), (indices.name,))
