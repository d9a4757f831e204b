"""Experts over ranks: each rank holds some, and tokens travel to them and back, all-to-all.

Expert ranks are replicas: each has its own tokens. Between the products of one mixture a rank works on the
tokens of all of them for its experts: as many rows as it sent, times the load imbalance on the busiest rank
(Lepikhin et al. 2020, GShard, arXiv:2006.16668).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import TypeAlias

from predictor.features.graph import Attribute, Graph, Node, Shape, Value
from predictor.features.programs.op_view import OpView
from predictor.parallel.sharding.book import Book
from predictor.parallel.sharding.layout import Split
from predictor.parallel.sharding.realise import Realised
from predictor.registry import Registry

ExpertRule: TypeAlias = Callable[[OpView], int]
"""How many experts the op's second input holds; 0 for a product of something else."""

EXPERTS: Registry[ExpertRule] = Registry("expert rule")

_ROWS = 2
_BUFFERS = 3


@EXPERTS.register("perfcast", "GroupedMatMul")
def _grouped(op: OpView) -> int:
    """Sorted rows [rows, in] by matrices [experts, in, out]."""
    return op.input(1).shape[0]


@EXPERTS.register("", "MatMul")
def _batched(op: OpView) -> int:
    """Buffers [experts, capacity, in] by matrices [experts, in, out]."""
    data, weight = op.input(0), op.input(1)
    fitting = len(data.shape) == len(weight.shape) == _BUFFERS and data.shape[0] == weight.shape[0]
    return weight.shape[0] if fitting and op.is_weight(1) and not op.is_weight(0) else 0


def split_experts(book: Book, load_imbalance: float) -> tuple[Realised, list[str]]:
    """The graph of one expert rank, and why experts were not split."""
    graph, parts = book.graph, book.parts
    mixtures: dict[tuple[str, int], list[int]] = {}
    for index, node in enumerate(graph.nodes):
        rule = EXPERTS.get(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
        count = rule(book.view(index)) if rule else 0
        if count > 1:
            # Products of one mixture share the ends of its groups; those on buffers are told apart below.
            ends = next((name for name in node.inputs[2:] if name and name not in book.weights), "")
            mixtures.setdefault((ends, count), []).append(index)
    made = Realised(graph)
    if not mixtures:
        return made, [f"no experts were found to split over {parts} ranks"]
    uneven = sorted({count for _, count in mixtures if count % parts})
    reasons = [f"{count} experts do not divide over {parts} ranks" for count in uneven]
    inside: dict[int, int] = {}
    for (ends, count), products in mixtures.items():
        if count % parts == 0:
            inside |= dict.fromkeys(_between(graph, products) if ends else _chained(graph, products), count)
    inside |= _lookups(book, inside)
    if inside:
        _Dispatch(book, inside, load_imbalance, made).run()
    return made, reasons


def _between(graph: Graph, products: list[int]) -> set[int]:
    """The products and every node on a path from one to another."""
    after: set[int] = set()
    for index in range(products[0], products[-1] + 1):
        sources = {graph.producer.get(name) for name in graph.nodes[index].inputs}
        if index in products or sources & after:
            after.add(index)
    found: set[int] = set()
    for index in range(products[-1], products[0] - 1, -1):
        readers = {reader for name in graph.nodes[index].outputs for reader in graph.consumers.get(name, ())}
        if index in products or (index in after and readers & found):
            found.add(index)
    return found


def _lookups(book: Book, inside: dict[int, int]) -> dict[int, int]:
    """Nodes that pick rows of tables by expert (biases) for nodes inside: they run where the experts are."""
    graph, found = book.graph, {}
    for index, experts in inside.items():
        for made in filter(None, map(graph.producer.get, graph.nodes[index].inputs)):
            given = [name for name in graph.nodes[made].inputs if name]
            tables = [name for name in given if name in book.weights]
            counts = all(name in tables or not graph.values[name].dtype.is_float for name in given)
            readers = {
                reader for name in graph.nodes[made].outputs for reader in graph.consumers.get(name, ())
            }
            if tables and counts and readers <= inside.keys():
                found[made] = experts
    return found


def _chained(graph: Graph, products: list[int]) -> set[int]:
    """Mixtures on buffers: an up and a down product each, with what lies between them."""
    found: set[int] = set()
    group: list[int] = []
    for index in products:
        weight, data = (graph.values[name].shape for name in graph.nodes[index].inputs[1::-1])
        opening = not group or data[-1] == graph.values[graph.nodes[group[0]].inputs[0]].shape[-1]
        if opening and group and weight[-1] != data[-1] and _is_down(graph, group):
            found |= _between(graph, group)
            group = []
        group.append(index)
    return found | (_between(graph, group) if group else set())


def _is_down(graph: Graph, group: list[int]) -> bool:
    """Whether the last product gave the width that the first one took."""
    first, last = graph.nodes[group[0]], graph.nodes[group[-1]]
    return graph.values[last.outputs[0]].shape[-1] == graph.values[first.inputs[0]].shape[-1]


class _Dispatch:
    """Writes the graph in which the nodes `inside` run on the tokens of a rank's experts.

    `inside` says of how many experts each such node is.
    """

    def __init__(self, book: Book, inside: dict[int, int], load_imbalance: float, made: Realised) -> None:
        self._book = book
        self._graph = book.graph
        self._inside = inside
        self._imbalance = load_imbalance
        self._made = made
        self._values: dict[str, Value] = dict(book.graph.values)
        self._nodes: list[Node] = []
        self._sent: dict[str, str] = {}
        self._returned: dict[str, str] = {}
        self._buffered = {
            name
            for index in inside
            for name in book.graph.nodes[index].inputs
            if name and len(book.graph.values[name].shape) == _BUFFERS and name not in book.weights
        }

    def run(self) -> None:
        """Fills `made`."""
        graph = self._graph
        for index in sorted(self._inside):
            for name in graph.nodes[index].inputs:
                if name in self._book.weights:
                    self._split_weight(name, self._inside[index])
        for index, node in enumerate(graph.nodes):
            if index in self._inside:
                self._enter(node)
            else:
                inputs = tuple(self._returned.get(name, name) for name in node.inputs)
                self._nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
        self._made.graph = replace(
            graph,
            nodes=tuple(self._nodes),
            values=self._values,
            outputs=tuple(self._returned.get(name, name) for name in graph.outputs),
            opsets={"perfcast": 1, **graph.opsets},
        )

    def _split_weight(self, name: str, experts: int) -> None:
        """A matrix (or bias) per expert, and what it is cast from."""
        shape = self._graph.values[name].shape
        # Scales of one number (of FP8 activations) are every rank's.
        if len(shape) < _ROWS or shape[0] != experts or self._values[name].shape != shape:
            return
        self._values[name] = replace(self._values[name], shape=(experts // self._book.parts, *shape[1:]))
        if name in self._graph.parameters:
            self._made.split[name] = Split(0, 1, (experts,))
        made_by = self._graph.producer.get(name)
        if made_by is not None:
            for source in self._graph.nodes[made_by].inputs:
                if source:
                    self._split_weight(source, experts)

    def _enter(self, node: Node) -> None:
        inputs = tuple(self._dispatched(name) for name in node.inputs)
        self._nodes.append(replace(node, inputs=inputs))
        for name in filter(None, node.outputs):
            value = self._values[name]
            self._values[name] = replace(value, shape=self._inner_shape(value.shape))
            readers = self._graph.consumers.get(name, ())
            if name in self._graph.outputs or any(reader not in self._inside for reader in readers):
                self._returned[name] = self._all_to_all(name, value.shape)

    def _dispatched(self, name: str) -> str:
        """What a node inside reads for `name`: its tokens from all ranks."""
        made = self._graph.producer.get(name, -1)
        value = self._graph.values.get(name)
        if not name or made in self._inside or name in self._book.weights or value is None:
            return name
        # Ends of groups are counts: each rank's own, exchanged with the tokens.
        if not value.dtype.is_float or len(value.shape) < _ROWS:
            return name
        if name not in self._sent:
            self._sent[name] = self._all_to_all(name, self._inner_shape(value.shape))
        return self._sent[name]

    def _inner_shape(self, shape: Shape) -> Shape:
        if len(shape) == _BUFFERS and self._buffered:
            rows = ceil(shape[1] * self._book.parts * self._imbalance)
            return (shape[0] // self._book.parts, rows, shape[2])
        return (ceil(shape[0] * self._imbalance), *shape[1:])

    def _all_to_all(self, source: str, shape: Shape) -> str:
        name = f"{source}.ep.AllToAll"
        self._values[name] = Value(name, shape, self._values[source].dtype)
        given: dict[str, Attribute] = {"group": "ep", "ranks": self._book.parts}
        self._nodes.append(Node(name, "AllToAll", (source,), (name,), "perfcast", given))
        return name
