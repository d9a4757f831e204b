"""Shard rules of look-ups: embedding tables by words or width, and rows that are picked or sorted.

Routing sorts rows by expert and puts them back. A permutation of rows that are split is taken to stay within
what each rank holds, as routers of split batches do: every rank sorts and counts its own rows.
"""

from __future__ import annotations

from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.registry import LINEAR, SHARD_RULES, Axis, Linear, along
from predictor.parallel.sharding.rules.parts import operand_of, same_dimensions

LINEAR.register("", "Gather")(Linear.FIRST)


@SHARD_RULES.register("", "Gather")
def gather(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Words of a table (the ranks' results are added up), its width, or the indices."""
    data, indices, out = op.input(0), op.input(1), op.output()
    axis = op.integer("axis") % len(data.shape)
    rank = len(indices.shape)
    if operand == 0 and split.dim == axis:
        if op.is_weight(0):
            return along(op, {0: split}, sums=True)
        return _picked(op, split, axis, parts)
    if operand == 1:
        return along(op, {1: split, -1: split._replace(dim=axis + split.dim)})
    dim = split.dim
    if operand == -1:
        if axis <= dim < axis + rank:
            return along(op, {1: split._replace(dim=dim - axis), -1: split})
        dim = dim if dim < axis else dim - rank + 1
    target = dim if dim < axis else dim + rank - 1
    if out.shape[target] != data.shape[dim]:
        return "Gather changes the dimension"
    return along(op, {0: split._replace(dim=dim), -1: split._replace(dim=target)})


def _picked(op: OpView, split: Split, axis: int, parts: int) -> Axis | str:
    """Rows picked from rows: each rank picks its own, where they are a whole multiple."""
    data, indices = op.input(0), op.input(1)
    times, rest = divmod(indices.elements, data.shape[axis])
    if rest or not times or len(indices.shape) != 1:
        return "Gather picks single positions"
    rows = Split(0, split.outer, tuple(size * times for size in split.sizes))
    return along(op, {0: split, 1: rows, -1: rows._replace(dim=axis)})


@SHARD_RULES.register("", "GatherElements")
def gather_elements(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """All dimensions but the indexed one."""
    return same_dimensions(op, operand, split, {op.integer("axis") % len(op.input(0).shape)})


@SHARD_RULES.register("", "ScatterElements")
def scatter_elements(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Counts and permutations of the rows that a rank holds, and all dimensions but the indexed one."""
    data, indices = op.input(0), op.input(1)
    axis = op.integer("axis") % len(data.shape)
    if split.dim != axis:
        return same_dimensions(op, operand, split, {axis})
    if data.shape == indices.shape == op.input(2).shape:
        return along(op, {0: split, 1: split, 2: split, -1: split})
    if operand in (1, 2) and operand_of(op, operand).shape == indices.shape:
        return along(op, {1: split, 2: split})
    return "ScatterElements writes anywhere"


@SHARD_RULES.register("", "TensorScatter")
def tensor_scatter(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """A cache of keys or values: each rank writes the new positions of the heads that it holds."""
    axis = op.integer("axis", -2) % len(op.input(0).shape)
    if split.dim in (0, axis):
        return "TensorScatter writes any position of a sample"
    return along(op, {0: split, 1: split, -1: split})
