"""The typed graph: frozen, no protobuf, no weights. Everything downstream is a pure function of it.

Nodes stand in topological order. Every value a node touches has an entry in `values`; the empty string is an
omitted optional input. Small integer constants (shapes, axes, indices) keep their contents in `constants`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TypeAlias

from predictor.features.dtype import DType
from predictor.types import Notice

Attribute: TypeAlias = "int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Graph"
Shape: TypeAlias = tuple[int, ...]
IN_PLACE = "perfcast_in_place"
"""Attribute of a node whose first output takes over the memory of its first input."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's type: shape with every dimension a number, and element type."""

    name: str
    shape: Shape
    dtype: DType

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Storage in bytes, sub-byte types packed."""
        return -(-self.elements * self.dtype.bits // 8)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call."""

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def permutation(self, rank: int) -> tuple[int, ...]:
        """The input's axes in the order of a Transpose's output; reversed where the file names none."""
        order = self.attributes.get("perm")
        return tuple(map(int, order)) if isinstance(order, tuple) else tuple(reversed(range(rank)))


@dataclass(frozen=True)
class Graph:
    """A model bound to concrete shapes.

    Attributes:
        nodes: in topological order.
        values: type of every value by name.
        inputs: names the caller feeds (parameters excluded), in the file's order.
        outputs: names the model returns.
        parameters: names of trainable tensors (floating-point initializers, not BatchNorm statistics).
        buffers: names of the other initializers (statistics, index tables, constants).
        constants: contents of small integer tensors by name, flattened.
        opsets: operator-set version by domain.
        batch: number of samples per iteration, i.e. what throughput counts.
        fingerprint: `sha256:...` of the canonical structure: independent of names and of the file's node
        order.
        notes: what reading assumed: sizes that depend on data, trip counts, branches.
        resident: those of `buffers` that no node reads and that are kept all the same: weights of a branch
        that another iteration may take.
    """

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: frozenset[str]
    buffers: frozenset[str]
    constants: Mapping[str, tuple[int, ...]]
    opsets: Mapping[str, int]
    batch: int
    fingerprint: str
    name: str = ""
    notes: tuple[Notice, ...] = ()
    resident: tuple[str, ...] = ()

    @property
    def parameter_count(self) -> int:
        """Elements of all trainable tensors, each counted once however often it is used."""
        return sum(self.values[name].elements for name in self.parameters)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the nodes that read each value."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.inputs):
                if name:
                    found.setdefault(name, []).append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Index of the node that writes each value."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.outputs if name}
