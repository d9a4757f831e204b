"""Shard rules of matrix products: columns of the weight, or rows whose products are added up."""

from __future__ import annotations

from predictor.features.ops.einsum import einsum_sides
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.registry import SHARD_RULES, Axis
from predictor.parallel.sharding.rules.parts import by_letters


def _batch(shape_length: int, kept: int) -> tuple[str, ...]:
    """Digits for the dimensions in front of the last `kept`, aligned at the right."""
    return tuple(str(digit) for digit in range(shape_length - kept - 1, -1, -1))


@SHARD_RULES.register("perfcast", "Linear")
def linear(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """x W + b over the last dimension."""
    front = _batch(len(op.input(0).shape), 1)
    weight = ("n", "k") if op.integer("transposed_weight") else ("k", "n")
    return by_letters(op, {0: (*front, "k"), 1: weight, 2: _bias(op, "n"), -1: (*front, "n")}, operand, split)


def _bias(op: OpView, letter: str) -> tuple[str | None, ...]:
    bias = op.optional(2)
    rank = len(bias.shape) if bias is not None else 0
    return (*(None,) * (rank - 1), letter)[-rank:] if rank else ()


@SHARD_RULES.register("", "MatMul", "MatMulInteger")
def matmul(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Any ranks, the dimensions in front broadcast."""
    a, b = len(op.input(0).shape), len(op.input(1).shape)
    left = (*_batch(a, 2), "m", "k") if a > 1 else ("k",)
    right = (*_batch(b, 2), "k", "n") if b > 1 else ("k",)
    rows, columns = ("m",) if a > 1 else (), ("n",) if b > 1 else ()
    rank = len(op.output().shape) - len(rows) - len(columns)
    out = (*_batch(rank, 0), *rows, *columns)
    return by_letters(op, {0: left, 1: right, -1: out}, operand, split)


@SHARD_RULES.register("", "Gemm")
def gemm(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """alpha A' B' + beta C."""
    left = ("k", "m") if op.integer("transA") else ("m", "k")
    right = ("n", "k") if op.integer("transB") else ("k", "n")
    bias = op.optional(2)
    rank = len(bias.shape) if bias is not None else 0
    return by_letters(op, {0: left, 1: right, 2: ("m", "n")[2 - rank :], -1: ("m", "n")}, operand, split)


@SHARD_RULES.register("", "Einsum")
def einsum(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Along any letter."""
    terms, out, _ = einsum_sides(op)
    letters = {index: tuple(term) for index, term in enumerate(terms)}
    if any(len(set(term)) != len(term) for term in terms):
        return "Einsum takes a diagonal"
    return by_letters(op, {**letters, -1: tuple(out)}, operand, split)


@SHARD_RULES.register("perfcast", "GroupedMatMul")
def grouped(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """Rows as each rank has them, columns, or sums over the inner dimension; experts are left to ep."""
    terms = {0: ("r", "k"), 1: (None, "k", "n"), -1: ("r", "n")}
    return by_letters(op, terms, operand, split)
