"""What several shard rules share: operands, and ops described by letters for their dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from predictor.features.graph import Attribute, Value
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.registry import Axis, along

Letters: TypeAlias = Sequence[str | None]
"""Per dimension of an operand the letter of what runs along it; None cannot be split."""


def operand_of(op: OpView, operand: int) -> Value:
    """The value behind an operand as rules count them. Raises InvalidGraph when it is absent."""
    return op.input(operand) if operand >= 0 else op.output(~operand)


def operands_of(op: OpView) -> dict[int, Value]:
    """All operands that are given, by the numbers that rules count them with."""
    found = {index: value for index, value in enumerate(op.inputs) if value is not None}
    found.update({~index: value for index, value in enumerate(op.outputs) if value is not None})
    return found


def by_letters(
    op: OpView,
    terms: Mapping[int, Letters],
    operand: int,
    split: Split,
    attributes: Mapping[str, Attribute] | None = None,
) -> Axis | str:
    """The axis of an op that runs along letters, as an Einsum does; a letter without output is summed over.

    A dimension of size 1 where others are longer is broadcast: it stays whole.
    """
    letters = terms.get(operand, ())
    letter = letters[split.dim] if split.dim < len(letters) else None
    if letter is None:
        return f"{op.op_type} cannot be split along dimension {split.dim} of its operand"
    values = operands_of(op)
    size = values[operand].shape[split.dim]
    places: dict[int, Split | None] = {}
    for index, term in terms.items():
        if index in values and letter in term:
            dim = list(term).index(letter)
            if values[index].shape[dim] == size:
                places[index] = Split(dim, split.outer, split.sizes)
    sums = not any(index < 0 for index in places)
    if sums:
        # What is added to the sum (a bias) is added once.
        places = {index: place for index, place in places.items() if index >= 0}
    return along(op, places, sums=sums, attributes=attributes)


def same_dimensions(op: OpView, operand: int, split: Split, blocked: frozenset[int] | set[int]) -> Axis | str:
    """The axis of an op whose large operands all have the first input's dimensions, kept or of length 1.

    `blocked` dimensions are those that the op mixes: rows of a norm, spatial ones of a pooling.
    """
    shape = op.input(0).shape
    value = operand_of(op, operand)
    if len(value.shape) != len(shape):
        return f"{op.op_type} cannot be split along its parameters"
    if split.dim in blocked:
        return f"{op.op_type} runs over dimension {split.dim}"
    size = value.shape[split.dim]
    if size != shape[split.dim]:
        return f"{op.op_type} changes dimension {split.dim}"
    places: dict[int, Split | None] = {
        index: split
        for index, other in operands_of(op).items()
        if len(other.shape) == len(shape) and other.shape[split.dim] == size
    }
    return along(op, places)
