"""Einsum: one batch of products per pair of operands.

Letters that both operands and the result share are the batch, those of one operand and the result are rows or
columns, the rest is summed. FLOPs 2 * batch * m * n * k.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from predictor.features.graph import Shape, Value
from predictor.features.ops.matmul import contract
from predictor.features.ops.parts import row_work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Family, OpWork, Phase, Rows


def einsum_sides(op: OpView) -> tuple[list[str], str, dict[str, int]]:
    """Index letters per operand, of the output, and the size of each letter."""
    count = len(op.text("equation").partition("->")[0].split(","))
    return _sides(op.text("equation"), [op.input(index).shape for index in range(count)])


def _sides(equation: str, shapes: Sequence[Shape]) -> tuple[list[str], str, dict[str, int]]:
    """Index letters per operand, of the output, and the size of each letter; an ellipsis becomes digits."""
    equation = equation.replace(" ", "")
    left, _, right = equation.partition("->")
    terms: list[str] = []
    sizes: dict[str, int] = {}
    for index, term in enumerate(left.split(",")):
        shape = shapes[index]
        hidden = len(shape) - len(term.replace("...", ""))
        # Ellipsis dimensions align at the right: the last one is digit 0 in every operand.
        letters = term.replace("...", "".join(str(digit) for digit in range(hidden - 1, -1, -1)))
        terms.append(letters)
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    ellipsis = "".join(
        sorted({letter for term in terms for letter in term if letter.isdigit()}, reverse=True)
    )
    if "->" not in equation:
        joined = "".join(terms)
        right = ellipsis + "".join(sorted(c for c in set(joined) if not c.isdigit() and joined.count(c) == 1))
    return terms, right.replace("...", ellipsis), sizes


def operand_orders(equation: str, shapes: Sequence[Shape]) -> tuple[tuple[int, ...], ...] | None:
    """Axes of both operands as their batch of products has them, outermost first; None for other counts.

    The gradients of the operands leave the products in these orders.
    """
    terms, out, _ = _sides(equation, shapes)
    if len(terms) != 2 or len(set(terms[0])) != len(terms[0]) or len(set(terms[1])) != len(terms[1]):
        return None
    left, right = terms
    shared = [letter for letter in out if letter in left and letter in right]
    summed = [letter for letter in left if letter in right and letter not in out]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    return (
        tuple(left.index(letter) for letter in (*shared, *rows, *summed)),
        tuple(right.index(letter) for letter in (*shared, *summed, *columns)),
    )


def _einsum_contraction(left: str, right: str, out: str, sizes: dict[str, int]) -> Contraction:
    def count(letters: set[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    a, b, kept = set(left), set(right), set(out)
    # A letter of one operand that is neither kept nor shared is summed away inside the product.
    return Contraction(
        count(a & b & kept), count((a - b) & kept), count((b - a) & kept), count((a | b) - kept)
    )


@WORK_RULES.register("", "Einsum")
def einsum(op: OpView) -> tuple[OpWork, ...]:
    """Two operands are one batch of products, more are contracted from the left, one is summed."""
    terms, out_term, sizes = einsum_sides(op)
    out = op.output()
    if len(terms) == 1:
        rows = Rows(out.elements, max(1, op.input(0).elements // max(1, out.elements)))
        return (row_work(op, Family.REDUCTION, "sum", rows, 1, reads=(op.input(0),), writes=(out,)),)
    works: list[OpWork] = []
    current, current_value = terms[0], op.input(0)
    for index in range(1, len(terms)):
        rest = set("".join(terms[index + 1 :])) | set(out_term)
        kept = "".join(letter for letter in dict.fromkeys(current + terms[index]) if letter in rest)
        shape = _einsum_contraction(current, terms[index], kept, sizes)
        result = (
            out
            if index == len(terms) - 1
            else Value(f"step{index}", tuple(sizes[c] for c in kept), out.dtype)
        )
        kind = "linear" if shape.batch == 1 else "bmm"
        works.append(
            contract(
                op,
                kind,
                shape,
                reads=(current_value, op.input(index)),
                writes=(result,),
                compute=op.matrix_compute(),
            )
        )
        current, current_value = kept, result
    return tuple(works)


@BACKWARD_RULES.register("", "Einsum")
def einsum_backward(op: OpView) -> Backward:
    """Per operand that needs it, the product of the output's gradient with the other operand."""
    terms, out_term, sizes = einsum_sides(op)
    out = op.output()
    if len(terms) != 2:
        forward = tuple(item.in_phase(Phase.BACKWARD) for item in einsum(op))
        count = sum(op.wants_gradient(index) for index in range(len(terms)))
        return Backward(forward * count, tuple(value.name for value in op.present_inputs))
    works: list[OpWork] = []
    saves: list[str] = []
    for index, other in ((0, 1), (1, 0)):
        if not op.wants_gradient(index):
            continue
        shape = _einsum_contraction(out_term, terms[other], terms[index], sizes)
        works.append(
            contract(
                op,
                "linear" if shape.batch == 1 else "bmm",
                shape,
                reads=(out, op.input(other)),
                writes=(op.input(index),),
                compute=op.matrix_compute(),
                phase=Phase.BACKWARD,
            )
        )
        saves.append(op.input(other).name)
    return Backward(tuple(works), tuple(saves))
