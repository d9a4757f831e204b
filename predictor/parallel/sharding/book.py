"""What the passes ask about the nodes of one graph: shard rules, work, gradients; each question once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from predictor.features.execution import execution_order, with_gradient
from predictor.features.graph import Graph, Node
from predictor.features.programs.evaluate_rules import RuleEvaluator
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
from predictor.parallel.sharding.layout import Recut, Split, fits
from predictor.parallel.sharding.registry import (
    LINEAR,
    SHARD_RULES,
    Axis,
    Linear,
    ShardRule,
    load_shard_rules,
)
from predictor.registry import Registry
from predictor.types import Precision


@dataclass(frozen=True, slots=True)
class Work:
    """Forward work of a node as the passes weigh it."""

    matrix_flops: int
    moved_bytes: int


class Book:
    """Answers about `graph` when it is split over `parts` ranks."""

    def __init__(
        self, graph: Graph, parts: int, *, training: bool, rules: Registry[ShardRule] = SHARD_RULES
    ) -> None:
        load_rules()
        load_shard_rules()
        self.graph = graph
        self.parts = parts
        self.training = training
        nodes, weights = execution_order(graph)
        self.weights = weights
        """Values computed from parameters and buffers alone."""
        self.with_gradient = with_gradient(graph, nodes) if training else set()
        self._rules = rules
        self._evaluate = RuleEvaluator(
            graph,
            WORK_RULES,
            BACKWARD_RULES,
            precision=Precision.FP32,
            training=False,
            weights=weights,
            needs_gradient=set(),
        )
        self._signatures: dict[int, Hashable] = {}
        self._views: dict[Hashable, OpView] = {}
        self._answers: dict[Hashable, Axis | Recut | str] = {}
        self._works: dict[Hashable, Work] = {}
        self._origins: dict[str, frozenset[str]] = {}

    @cached_property
    def stored(self) -> frozenset[str]:
        """Of what ranks may hold parts: parameters, and frozen weights of products with their scales."""
        graph = self.graph
        frozen = {
            name
            for index, node in enumerate(graph.nodes)
            if len(node.inputs) > 1 and node.inputs[1] in graph.buffers and self.work(index).matrix_flops
            for name in node.inputs[1:]
            if name in graph.buffers
        }
        return graph.parameters | frozen

    def signature(self, index: int) -> Hashable:
        """What tells node `index` from others for a rule."""
        found = self._signatures.get(index)
        if found is None:
            found = self._signatures[index] = self._evaluate.signature(self.graph.nodes[index])
        return found

    def view(self, index: int) -> OpView:
        """Node `index` as rules see it."""
        signature = self.signature(index)
        found = self._views.get(signature)
        if found is None:
            found = self._views[signature] = self._evaluate.view(self.graph.nodes[index])
        return found

    def ask(self, index: int, operand: int, split: Split) -> Axis | Recut | str:
        """How node `index` runs when its `operand` is split so, or why not."""
        key = self.signature(index), operand, split
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._ask(self.graph.nodes[index], index, operand, split)
        return found

    def _ask(self, node: Node, index: int, operand: int, split: Split) -> Axis | Recut | str:
        rule = self._rules.get(node.domain, node.op_type, self.graph.opsets.get(node.domain, 1))
        if rule is None:
            return f"{node.op_type} has no shard rule"
        found = rule(self.view(index), operand, split, self.parts)
        if isinstance(found, Axis):
            for place in (*found.inputs, *found.outputs):
                if place and not fits(place, self.parts):
                    return f"{'+'.join(map(str, place.sizes))} do not divide over {self.parts} ranks"
        return found

    def work(self, index: int) -> Work:
        """Work of node `index`, whole."""
        signature = self.signature(index)
        found = self._works.get(signature)
        if found is None:
            works = self._evaluate(self.graph.nodes[index]).forward
            found = self._works[signature] = Work(
                sum(work.matrix_flops for work in works), sum(work.moved_bytes for work in works)
            )
        return found

    def origins(self, name: str) -> frozenset[str]:
        """Parameters from which a weight is computed, through casts and the like; itself for a parameter."""
        found = self._origins.get(name)
        if found is None:
            if name in self.graph.parameters:
                found = frozenset({name})
            else:
                index = self.graph.producer.get(name)
                inputs = self.graph.nodes[index].inputs if index is not None else ()
                found = frozenset().union(*(self.origins(source) for source in inputs if source))
            self._origins[name] = found
        return found

    def linear(self, index: int) -> Linear | None:
        """Operands in which node `index` is linear."""
        node = self.graph.nodes[index]
        return LINEAR.get(node.domain, node.op_type, self.graph.opsets.get(node.domain, 1))

    def sum_bytes(self, name: str) -> int:
        """Bytes of a sum over ranks where it is finished: behind the moves that alone read it."""
        size = self.size_bytes(name)
        while name not in self.graph.outputs and len(readers := self.graph.consumers.get(name, ())) == 1:
            node = self.graph.nodes[readers[0]]
            linear = self.linear(readers[0])
            if linear not in (Linear.ANY, Linear.FIRST) or len(node.outputs) > 1:
                break
            if linear is Linear.FIRST and node.inputs[0] != name:
                break
            name = node.outputs[0]
            if self.size_bytes(name) > size:
                break
            size = self.size_bytes(name)
        return size

    def moved_from(self, name: str) -> str | None:
        """What a value is a move of, where that is better exchanged: it is smaller, or read several times.

        Rows for each expert are exchanged before they are repeated; views and casts for each of three
        products once.
        """
        index = self.graph.producer.get(name)
        if index is None or self.linear(index) is not Linear.FIRST:
            return None
        source = self.graph.nodes[index].inputs[0]
        moves = [
            self.graph.nodes[reader].outputs[0]
            for reader in self.graph.consumers[source]
            if self.linear(reader) is Linear.FIRST and self.graph.nodes[reader].inputs[0] == source
        ]
        together = sum(map(self.size_bytes, moves))
        size = self.size_bytes(source)
        worth_it = together >= size if len(moves) > 1 else together > size
        return source if worth_it else None

    def entry(self, name: str) -> str:
        """The value whose gradient is finished instead of that of `name`."""
        while (source := self.moved_from(name)) is not None:
            name = source
        return name

    def touching(self, name: str) -> tuple[int, ...]:
        """Nodes that write or read a value."""
        made = self.graph.producer.get(name)
        readers = self.graph.consumers.get(name, ())
        return readers if made is None else (made, *readers)

    def size_bytes(self, name: str) -> int:
        """Bytes of a value, whole."""
        return self.graph.values[name].size_bytes
