"""A lowered graph under construction: values with their types, nodes with the layer that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Shape, Value


@dataclass
class RankGraphBuilder:
    """Collects what one rank runs; values are named after what makes them.

    Attributes:
        dtype: of whatever is not said otherwise. piece: name of the layer that nodes belong to from now on.
        away: values that leave for the host between forward and backward.
        again: nodes, by index, that backward runs again before their last one's step.
    """

    dtype: DType
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    experts: set[str] = field(default_factory=set)
    again: list[tuple[int, ...]] = field(default_factory=list)
    away: set[str] = field(default_factory=set)
    piece: str = "embedding"

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.values[name].shape

    def input(self, name: str, *shape: int, dtype: DType = DType.INT64) -> str:
        """What the data loader brings."""
        self.inputs.append(name)
        return self._value(name, shape, dtype)

    def weight(self, name: str, *shape: int, expert: bool = False, dtype: DType | None = None) -> str:
        """A trained tensor; its name is made unique."""
        unique = f"{self.piece}.{name}.{len(self.parameters)}"
        self.parameters.add(unique)
        if expert:
            self.experts.add(unique)
        return self._value(unique, shape, dtype)

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape,
        *,
        dtype: DType | None = None,
        domain: str = "perfcast",
        **attributes: Attribute,
    ) -> str:
        """One op and its result."""
        return self.nodes_of(op_type, inputs, (shape,), dtype=dtype, domain=domain, **attributes)[0]

    def nodes_of(
        self,
        op_type: str,
        inputs: Sequence[str],
        shapes: Sequence[Shape],
        *,
        dtype: DType | None = None,
        domain: str = "perfcast",
        **attributes: Attribute,
    ) -> tuple[str, ...]:
        """One op with a result per shape."""
        stem = f"{self.piece}.{op_type.lower()}.{len(self.nodes)}"
        names = tuple(stem if i == 0 else f"{stem}.{i}" for i in range(len(shapes)))
        kind = dtype or self.values[inputs[0]].dtype
        for name, shape in zip(names, shapes, strict=True):
            self._value(name, shape, kind)
        self.nodes.append(Node(stem, op_type, tuple(inputs), names, domain, attributes))
        self.pieces.append(self.piece)
        return names

    # Ops of models

    def linear(self, x: str, weight: str, bias: str | None = None, *, transposed: bool = False) -> str:
        """x W (+ b); `transposed` for a (out, in) table such as a tied head."""
        out = self.shape(weight)[0 if transposed else 1]
        operands = (x, weight) if bias is None else (x, weight, bias)
        shape = (*self.shape(x)[:-1], out)
        return self.node(
            "Linear", operands, shape, dtype=self.values[x].dtype, transposed_weight=int(transposed)
        )

    def norm(self, x: str, weights: Sequence[str]) -> str:
        """Layer norm, or RMS norm with one weight."""
        kind = "LayerNormalization" if len(weights) > 1 else "RMSNormalization"
        return self.node(kind, (x, *weights), self.shape(x), domain="", axis=-1)

    def add(self, a: str, b: str) -> str:
        """Element by element; the second may be a bias."""
        return self.node("Add", (a, b), self.shape(a), domain="")

    def multiply(self, a: str, b: str) -> str:
        """Element by element, the second broadcast."""
        return self.node("Mul", (a, b), self.shape(a), domain="")

    def dropout(self, x: str, drops: bool) -> str:
        """A mask of one byte per element is kept."""
        return self.node("Dropout", (x,), self.shape(x), domain="") if drops else x

    def view(self, x: str, *shape: int) -> str:
        """The same memory under another shape."""
        return self.node("Reshape", (x,), shape, domain="")

    def slices(self, x: str, shapes: Sequence[Shape]) -> tuple[str, ...]:
        """Parts of a tensor that stay where they are."""
        return self.nodes_of("Split", (x,), shapes, domain="", axis=-1)

    def copy(self, x: str, *shape: int) -> str:
        """Another order in memory."""
        return self.node("Contiguous", (x,), shape or self.shape(x))

    def cast(self, x: str, dtype: DType) -> str:
        """Another element type."""
        if self.values[x].dtype is dtype:
            return x
        to = {DType.FLOAT32: 1, DType.FLOAT16: 10, DType.BFLOAT16: 16}[dtype]
        return self.node("Cast", (x,), self.shape(x), dtype=dtype, domain="", to=to)

    # Exchanges

    def gather_sequence(self, x: str, ranks: int, *, keeps: bool = False) -> str:
        """Tokens of all tensor ranks; `keeps`: the whole is kept for backward, not the part."""
        shape = (self.shape(x)[0] * ranks, *self.shape(x)[1:])
        if keeps:
            return self.node("AllGather", (x,), shape, group="tp", ranks=ranks)
        return self.node("AllGather", (x,), shape, group="tp", ranks=ranks, gathers_again=1)

    def scatter_sum(self, x: str, ranks: int) -> str:
        """A part of the sum over tensor ranks."""
        shape = (self.shape(x)[0] // ranks, *self.shape(x)[1:])
        return self.node("ReduceScatter", (x,), shape, group="tp", ranks=ranks)

    def sum_over_ranks(self, x: str, ranks: int) -> str:
        """The sum over tensor ranks, in place."""
        return self.node("AllReduce", (x,), self.shape(x), group="tp", ranks=ranks)

    def graph(self, outputs: Sequence[str], batch: int, name: str) -> Graph:
        """Everything built so far."""
        return Graph(
            nodes=tuple(self.nodes),
            values=dict(self.values),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            parameters=frozenset(self.parameters),
            buffers=frozenset(),
            constants={},
            opsets={"": 23, "perfcast": 1},
            batch=batch,
            fingerprint=f"sha256:{name}",
            name=name,
        )

    def _value(self, name: str, shape: Sequence[int], dtype: DType | None) -> str:
        self.values[name] = Value(name, tuple(shape), dtype or self.dtype)
        return name
