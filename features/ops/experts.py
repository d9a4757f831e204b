"""Products of sorted rows with one matrix per group: the experts of a mixture in one kernel.

perfcast::GroupedMatMul(x[rows, in], weights[groups, in, out][, ends[groups], scales, zeros]) -> [rows, out]:
rows up to ends[0] meet the first matrix, rows up to ends[1] the second; `to` is the result's type where it is
not x's. Weights in few bits have a scale a block [groups, blocks, out], and zeros where the format has them.
Which expert gets how many tokens is known only at run time and changes no sum: FLOPs are 2 * rows * in * out.
Kernel shape and traffic are those of rows that choose by chance: the matrices of groups that some row is
expected to meet are read, with equally many rows each.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.graph import Value
from predictor.features.ops.matmul import contract
from predictor.features.ops.parts import copy, gradient_of
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Family, OpWork, Phase

# Inputs behind the ends of groups.
_BLOCKS = (3, 4)


def _sizes(op: OpView) -> tuple[int, int, int, int, int]:
    """(active groups, rows of each, out, in, all rows)."""
    data, weights = op.input(0), op.input(1)
    rows = data.shape[0]
    active = touched_groups(weights.shape[0], rows)
    return active, -(-rows // active), weights.shape[2], weights.shape[1], rows


def touched_groups(groups: int, rows: int) -> int:
    """How many of so many groups are expected to get one of `rows` rows or more; at least 1."""
    return max(1, round(groups * (1.0 - (1.0 - 1.0 / max(1, groups)) ** rows)))


def _active(op: OpView, *indices: int) -> tuple[Value, ...]:
    """What some row is expected to meet of operands that have a part per group."""
    groups = _sizes(op)[0]
    given = filter(None, map(op.optional, indices))
    return tuple(replace(value, shape=(groups, *value.shape[1:])) for value in given)


@WORK_RULES.register("perfcast", "GroupedMatMul")
def grouped_matmul(op: OpView) -> tuple[OpWork, ...]:
    """One kernel over all groups."""
    groups, m, n, k, rows = _sizes(op)
    reads = (op.input(0), *_active(op, 1, *_BLOCKS))
    work = contract(
        op,
        "grouped_matmul",
        Contraction(groups, m, n, k),
        reads=reads,
        writes=(op.output(),),
        compute=op.matrix_compute(0, 1),
    )
    return (replace(work, matrix_flops=2 * rows * n * k),)


@BACKWARD_RULES.register("perfcast", "GroupedMatMul")
def grouped_matmul_backward(op: OpView) -> Backward:
    """dX with the matrices transposed; dW of every group, zeros where a group has no rows."""
    groups, m, n, k, rows = _sizes(op)
    data, weights, out = op.input(0), op.input(1), op.output()
    plans = (
        (0, Contraction(groups, m, k, n), (out, *_active(op, 1)), data, weights),
        (1, Contraction(groups, k, n, m), (out, data), weights, data),
    )
    works: list[OpWork] = []
    saves: list[str] = []
    for index, shape, reads, target, kept in plans:
        if op.wants_gradient(index):
            work = contract(
                op,
                "grouped_matmul",
                shape,
                reads=reads,
                writes=(target,),
                compute=op.matrix_compute(0, 1),
                phase=Phase.BACKWARD,
            )
            works.append(replace(work, matrix_flops=2 * rows * n * k))
            saves.append(kept.name)
    return Backward(tuple(works), tuple(saves))


@WORK_RULES.register("perfcast", "Permuted")
def permuted(op: OpView) -> tuple[OpWork, ...]:
    """Rows of x in another order, some several times or summed up; a table of numbers says which."""
    return (copy(op, "permute", reads=(op.input(0),), writes=(op.output(),), family=Family.GATHER),)


@BACKWARD_RULES.register("perfcast", "Permuted")
def permuted_backward(op: OpView) -> Backward:
    """The rows go back; only their numbers are kept."""
    data, out = op.input(0), op.output()
    move = copy(
        op,
        "permute",
        reads=(gradient_of(out),),
        writes=(data,),
        family=Family.GATHER,
        phase=Phase.BACKWARD,
    )
    rows = max(data.elements, out.elements) // max(1, data.shape[-1])
    return Backward((move,), saved_extra_bytes=_NUMBER_BYTES * rows)


_NUMBER_BYTES = 4


@WORK_RULES.register("perfcast", "Scale")
def scale(op: OpView) -> tuple[OpWork, ...]:
    """Chances of the chosen experts by token."""
    return (copy(op, "permute", reads=(op.output(),), writes=(op.output(),), family=Family.GATHER),)


@BACKWARD_RULES.register("perfcast", "Scale")
def scale_backward(op: OpView) -> Backward:
    """Back to the table of chances."""
    out = op.output()
    move = copy(
        op,
        "permute",
        reads=(gradient_of(out),),
        writes=(op.input(0),),
        family=Family.GATHER,
        phase=Phase.BACKWARD,
    )
    return Backward((move,))
