"""What a compiler fuses: pointwise, normalising and reducing neighbours become one perfcast::FusedPointwise.

Two neighbours share a kernel when no other kernel (product, convolution, pooling ...) lies between them
on any path. Two linear passes decide that. Forward: a node's depth is the largest number of other kernels
on a path to it. Backward: a fusible node is postponed to the depth of its first reader. Neighbours equal
in postponed depth belong together; a path between them through another kernel would make the later one
deeper, so groups form no cycle. Traffic inside a group is free; its inputs and the values read outside it
are paid. The bias of a convolution is written with what reads the convolution, where that is such a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from predictor.errors import InvalidGraph
from predictor.features.graph import Graph, Node, Value
from predictor.features.ops.collectives import COLLECTIVE_OPS
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES, load_rules
from predictor.features.programs.work import Family, OpWork

_FUSIBLE = frozenset(
    {Family.ELEMENTWISE, Family.NORMALIZATION, Family.SOFTMAX, Family.REDUCTION, Family.COPY}
)

_APART = COLLECTIVE_OPS | {"NonMaxSuppression", "NonZero", "Unique"}
"""Exchanges, and what compilers leave to libraries: how much these write depends on the data."""
_BIASED = frozenset({"Conv", "ConvTranspose"})

_Works: TypeAlias = list[tuple[OpWork, ...] | None]
"""Per node: its kernels, none for a view; None where no rule knows the op."""


def group_pointwise(graph: Graph) -> Graph:
    """`graph` with each group of two or more fusible neighbours as one node; idempotent."""
    if any(node.op_type == "FusedPointwise" for node in graph.nodes):
        return graph
    load_rules()
    works = [forward_work(node, graph.values, graph.constants, graph.opsets) for node in graph.nodes]
    fusible = [
        node.op_type not in _APART and work is not None and all(w.family in _FUSIBLE for w in work)
        for node, work in zip(graph.nodes, works, strict=True)
    ]
    graph = _with_merged_biases(graph, works, fusible)
    postponed = _postponed_depths(graph, fusible)
    groups = _groups(graph, fusible, postponed)
    replaced: dict[int, Node | None] = {}
    for members in groups:
        members = _without_trailing_views(graph, members, works)
        if sum(bool(works[index]) for index in members) < 2:
            continue
        replaced.update(dict.fromkeys(members))
        replaced[members[-1]] = _fused(graph, members, works)
    nodes = [replaced.get(index, node) for index, node in enumerate(graph.nodes)]
    return replace(graph, nodes=_sorted([node for node in nodes if node is not None]))


def _with_merged_biases(graph: Graph, works: _Works, fusible: list[bool]) -> Graph:
    """`graph` whose convolutions leave their bias to the kernel that reads them (inductor's lowering)."""
    nodes = list(graph.nodes)
    for index, node in enumerate(graph.nodes):
        if (
            node.op_type in _BIASED
            and len(works[index] or ()) > 1
            and _is_read_by(graph, index, works, fusible)
        ):
            nodes[index] = replace(node, attributes={**node.attributes, "perfcast_fused_bias": 1})
    return replace(graph, nodes=tuple(nodes))


def _is_read_by(graph: Graph, index: int, works: _Works, fusible: list[bool]) -> bool:
    """Whether a fusible kernel reads a node's result, directly or through views."""
    waiting = [index]
    for place in waiting:
        for name in graph.nodes[place].outputs:
            for reader in graph.consumers.get(name, ()):
                if fusible[reader] and works[reader]:
                    return True
                if fusible[reader]:
                    waiting.append(reader)
    return False


def forward_work(
    node: Node,
    values: Mapping[str, Value],
    constants: Mapping[str, tuple[int, ...]],
    opsets: Mapping[str, int],
) -> tuple[OpWork, ...] | None:
    """Work by the registered rule: empty for views, None where no rule knows the op or makes sense of it.

    What makes no sense is told, with the node's name, when the program is built.
    """
    opset = opsets.get(node.domain, 1)
    rule = WORK_RULES.get(node.domain, node.op_type, opset)
    if rule is None:
        return None

    def typed(names: tuple[str, ...]) -> tuple[Value | None, ...]:
        return tuple(values.get(name) if name else None for name in names)

    known = tuple(constants.get(name) for name in node.inputs)
    view = OpView(
        node.domain, node.op_type, node.attributes, typed(node.inputs), typed(node.outputs), opset, known
    )
    try:
        return rule(view)
    except (InvalidGraph, ArithmeticError, IndexError, KeyError, TypeError, ValueError):
        return None


def _postponed_depths(graph: Graph, fusible: list[bool]) -> list[int]:
    depth = [0] * len(graph.nodes)
    for index, node in enumerate(graph.nodes):
        for name in node.inputs:
            source = graph.producer.get(name)
            if source is not None:
                depth[index] = max(depth[index], depth[source] + (not fusible[source]))
    for index in range(len(graph.nodes) - 1, -1, -1):
        if fusible[index]:
            readers = [r for name in graph.nodes[index].outputs for r in graph.consumers.get(name, ())]
            depth[index] = min((depth[reader] for reader in readers), default=depth[index])
    return depth


def _groups(graph: Graph, fusible: list[bool], depth: list[int]) -> list[list[int]]:
    """Sets of fusible nodes joined by edges of equal depth, each in topological order (union-find)."""
    leader = list(range(len(graph.nodes)))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    for index, node in enumerate(graph.nodes):
        for name in node.inputs:
            source = graph.producer.get(name)
            if source is not None and fusible[index] and fusible[source] and depth[index] == depth[source]:
                leader[find(index)] = find(source)
    members: dict[int, list[int]] = {}
    for index in range(len(graph.nodes)):
        if fusible[index]:
            members.setdefault(find(index), []).append(index)
    return list(members.values())


def _without_trailing_views(graph: Graph, members: list[int], works: _Works) -> list[int]:
    """A view that is read outside only is no part of the kernel: its input is what the kernel writes."""
    inside = set(members)
    for index in reversed(members):
        readers = {r for name in graph.nodes[index].outputs for r in graph.consumers.get(name, ())}
        if not works[index] and not readers & inside:
            inside.discard(index)
    return [index for index in members if index in inside]


def _fused(graph: Graph, members: list[int], works: _Works) -> Node:
    inside = set(members)
    nodes = [graph.nodes[index] for index in members]
    made = {name for node in nodes for name in node.outputs}
    inputs = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    outputs = [
        name
        for node in nodes
        for name in node.outputs
        if name and (name in graph.outputs or any(r not in inside for r in graph.consumers.get(name, ())))
    ]
    last, kernels = nodes[-1], [index for index in members if works[index]]
    return Node(
        last.name,
        "FusedPointwise",
        tuple(inputs),
        tuple(outputs),
        "perfcast",
        {
            "kinds": ",".join(graph.nodes[index].op_type for index in kernels),
            "flops": sum(work.flops for index in kernels for work in works[index] or ()),
            "op_count": len(kernels),
        },
    )


def _sorted(nodes: list[Node]) -> tuple[Node, ...]:
    """Topological order: a group stands where its last member stood, so some readers must move back."""
    made_by = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    waiting = [len({made_by[n] for n in node.inputs if n in made_by}) for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source in {made_by[n] for n in node.inputs if n in made_by}:
            readers[source].append(index)
    ordered: list[Node] = []
    for start in range(len(nodes)):
        stack = [start] if waiting[start] == 0 else []
        while stack:
            index = stack.pop()
            waiting[index] = -1
            ordered.append(nodes[index])
            for reader in reversed(readers[index]):
                waiting[reader] -= 1
                # Later ones are reached by the outer loop, in their own order.
                if waiting[reader] == 0 and reader < start:
                    stack.append(reader)
    return tuple(ordered)
