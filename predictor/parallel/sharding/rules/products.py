"""Shard rules of matrix products: columns of the weight, or rows whose products are added up."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.ops.einsum import einsum_sides
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split, local_shape
from predictor.parallel.sharding.registry import SHARD_RULES, Axis, along
from predictor.parallel.sharding.rules.parts import by_letters


def _batch(shape_length: int, kept: int) -> tuple[str, ...]:
    """Digits for the dimensions in front of the last `kept`, aligned at the right."""
    return tuple(str(digit) for digit in range(shape_length - kept - 1, -1, -1))


@SHARD_RULES.register("perfcast", "Linear", "BlockLinear")
@SHARD_RULES.register("com.microsoft", "GemmFloat8")
def linear(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """x W + b over the last dimension; scales stay whole."""
    front = _batch(len(op.input(0).shape), 1)
    turned = op.integer("transposed_weight") or op.integer("transB")
    weight = ("n", "k") if turned else ("k", "n")
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
    return _with_blocks(op, by_letters(op, {0: left, 1: right, -1: out}, operand, split), parts, 2)


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
    return _with_blocks(op, by_letters(op, terms, operand, split), parts, 3)


def _with_blocks(op: OpView, axis: Axis | str, parts: int, first: int) -> Axis | str:
    """Scales and zeros [..., blocks, columns], from input `first` on, are cut with their weight.

    Along the inner dimension where parts are whole blocks; else every rank keeps all of them.
    """
    if isinstance(axis, str) or axis.inputs[1] is None:
        return axis
    cut, weight, inputs = axis.inputs[1], op.input(1).shape, list(axis.inputs)
    for index in range(first, len(inputs)):
        value = op.optional(index)
        if value is None or len(value.shape) != len(weight):
            continue
        unit = weight[cut.dim] // value.shape[cut.dim]
        if all(size % (unit * parts) == 0 for size in cut.sizes):
            inputs[index] = cut._replace(sizes=tuple(size // unit for size in cut.sizes))
    return replace(axis, inputs=tuple(inputs))


@SHARD_RULES.register("com.microsoft", "MatMulNBits")
def in_blocks(op: OpView, operand: int, split: Split, parts: int) -> Axis | str:
    """x[..., K] W with W packed as [N, blocks, bytes of a block], scales and zeros row by row."""
    data, packed, bits = op.input(0), op.input(1), op.integer("bits", 4)
    rows, blocks, _ = packed.shape
    front = _batch(len(data.shape), 1)
    # A row with one block is cut inside it, and its scale is everybody's.
    kept = ("n", "k", None) if blocks > 1 else ("n", None, "k")
    terms = {0: (*front, "k"), 1: kept, -1: (*front, "n")}
    place = terms.get(operand, ())[split.dim : split.dim + 1]
    if place == ("n",):
        cut = {1: split._replace(dim=0), -1: split._replace(dim=len(front))}
        for index in (2, 3, 5):
            value = op.optional(index)
            if value is not None:
                each = value.elements // rows
                cut[index] = Split(0, split.outer, tuple(size * each for size in split.sizes))
        return along(op, cut, attributes={"N": local_shape(packed.shape, cut[1], parts)[0]})
    if place != ("k",):
        return by_letters(op, terms, operand, split)
    unit = op.integer("block_size") if blocks > 1 else 8 // bits
    units = split.sizes if operand else tuple(size // unit for size in split.sizes)
    depths = tuple(size * unit for size in units)
    if any(size % parts for size in units) or (not operand and depths != split.sizes):
        return f"MatMulNBits has {sum(units)} blocks of {unit}, which do not divide over {parts} ranks"
    cut = {0: Split(len(front), split.outer, depths), 1: Split(kept.index("k"), split.outer, units)}
    if blocks > 1:
        cut[2] = Split(0, split.outer * rows, units)
    return along(op, cut, sums=True, attributes={"K": local_shape(data.shape, cut[0], parts)[-1]})
