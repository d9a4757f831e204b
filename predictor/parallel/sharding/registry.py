"""The registry of shard rules: when one operand of an op is split, how are its other operands and results?

A rule is asked about one split of one operand: `rule(op, operand, split, parts)`. Inputs count from 0,
outputs are -1, -2, ... It answers with an Axis, with a Recut where it could take another cut of the same
operand, or with a sentence that says why nothing can be split so. Packages add rules through the entry-point
group `predictor.shard_rules`: each entry names a function `register(shard_rules)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import TypeAlias

from predictor.features.graph import Attribute
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.layout import Recut, Split
from predictor.registry import Registry


@dataclass(frozen=True, slots=True)
class Axis:
    """One way in which an op runs on a part of its operands.

    Attributes:
        inputs, outputs: how each is split; None is whole. Without `sums`, an output that is whole is each
            rank's own.
        sums: the ranks' outputs must be added up.
        attributes: the node's attributes that count what is split, as one rank has them.
        ring: the ranks pass keys and values on while the op runs (perfcast::RingAttention).
        instead_of_ring: the axis to exchange for, all-to-all, where no ring is wanted.
        taken: by input, the dimension and length of the part that a rank reads of an operand that is whole.
        notes: what a reader of the plan should know.
    """

    inputs: tuple[Split | None, ...]
    outputs: tuple[Split | None, ...]
    sums: bool = False
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    ring: bool = False
    instead_of_ring: Axis | None = None
    taken: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, operand: int) -> Split | None:
        """Split of an operand as rules count them."""
        return self.inputs[operand] if operand >= 0 else self.outputs[~operand]


ShardRule: TypeAlias = Callable[[OpView, int, Split, int], Axis | Recut | str]

SHARD_RULES: Registry[ShardRule] = Registry("shard rule")


class Linear(StrEnum):
    """Operands in which an op is linear.

    On an unfinished sum its result is an unfinished sum, so that one all-reduce behind it does, where the
    tensor is smaller or several sums have met; and the gradient of its input may be finished instead of its
    result's.
    """

    ALL = "all"
    """Additions: in all operands together."""
    ANY = "any"
    """Products: in each, if the others are whole."""
    FIRST = "first"
    """Moves of the first operand, divisions of it, sums over it."""


LINEAR: Registry[Linear] = Registry("linear op")


def along(
    op: OpView,
    places: Mapping[int, Split | None],
    *,
    sums: bool = False,
    attributes: Mapping[str, Attribute] | None = None,
    notes: tuple[str, ...] = (),
) -> Axis:
    """The Axis that splits the operands in `places` and leaves the others whole; absent ones are skipped."""
    return Axis(
        tuple(places.get(index) if value else None for index, value in enumerate(op.inputs)),
        tuple(places.get(~index) if value else None for index, value in enumerate(op.outputs)),
        sums=sums,
        attributes=attributes or {},
        notes=notes,
    )


@cache
def load_shard_rules() -> None:
    """Registers the built-in rules and those of installed packages, once per process."""
    from importlib.metadata import entry_points

    import predictor.parallel.sharding.rules  # noqa: F401

    for entry in sorted(entry_points(group="predictor.shard_rules"), key=lambda item: item.name):
        entry.load()(SHARD_RULES)
