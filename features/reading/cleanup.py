"""Graph -> graph without what exporters leave behind: copies, constants, shape arithmetic, dead nodes.

What is left is what a framework runs. Views (Reshape, Squeeze ...) stay: they are free, and later passes read
layouts off them.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Value
from predictor.features.reading.aliases import ALIAS_RULES
from predictor.features.reading.parameters import trainable
from predictor.features.reading.weight_copies import WeightCopies, split_merged_vectors

IMPURE = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
"""Their result is new on every call, even on constant inputs."""


def clean_up(graph: Graph) -> Graph:
    """The same computation without exporter noise. Idempotent; drops the fingerprint when anything changed.

    Values whose type is unknown may disappear on the way; those that stay are the caller's to report.
    """
    nodes, resolve, copies = _without_aliases(graph)
    nodes = [_with_simple_body(node) for node in nodes]
    graph = replace(graph, parameters=graph.parameters | copies) if copies else graph
    constant = _constant_values(graph, nodes)
    outputs = tuple(resolve.get(name, name) for name in graph.outputs)
    kept = _alive([node for node in nodes if not _is_folded(node, constant, graph)], outputs)
    used = dict.fromkeys(graph.inputs)
    for node in kept:
        used.update(dict.fromkeys((*node.inputs, *node.outputs)))
    used.update(dict.fromkeys((*outputs, *graph.resident)))
    read = {name for node in kept for name in node.inputs}.union(outputs)
    used.pop("", None)
    written = {name for node in kept for name in node.outputs}
    leaves = [name for name in used if name not in written and name not in graph.inputs]
    result = replace(
        graph,
        nodes=tuple(kept),
        values={name: graph.values[name] for name in used if name in graph.values},
        # Nobody reads the others, and how large they are, or what they are called, cannot be known.
        inputs=tuple(name for name in graph.inputs if name and (name in graph.values or name in read)),
        outputs=outputs,
        parameters=frozenset(name for name in leaves if name in graph.parameters and name in read),
        buffers=frozenset(name for name in leaves if name not in graph.parameters or name not in read),
        constants={name: graph.constants[name] for name in leaves if name in graph.constants},
        fingerprint="",
    )
    result = split_merged_vectors(result)
    parameters = trainable(result)
    result = replace(result, parameters=parameters, buffers=result.buffers | (result.parameters - parameters))
    return graph if result == replace(graph, fingerprint="") else result


def _with_simple_body(node: Node) -> Node:
    """The node without aliases, constants and dead nodes in its body; what the body reads stays the same."""
    body = node.attributes.get("body")
    if not isinstance(body, Graph):
        return node
    aliased, resolve, _ = _without_aliases(body)
    constant = _constant_values(body, aliased)
    outputs = tuple(resolve.get(name, name) for name in body.outputs)
    alive = _alive([inner for inner in aliased if not _is_folded(inner, constant, body)], outputs)
    nodes = tuple(_with_simple_body(inner) for inner in alive)
    written = {name for inner in alive for name in inner.outputs}
    leaves = {name for inner in alive for name in inner.inputs if name and name not in written}
    computed = leaves - body.parameters - {*body.inputs}
    simple = replace(body, nodes=nodes, outputs=outputs, buffers=body.buffers | computed)
    return replace(node, attributes={**node.attributes, "body": simple})


def _without_aliases(graph: Graph) -> tuple[list[Node], dict[str, str], frozenset[str]]:
    """Nodes that do something, the first name of every alias, and aliases that are weights of their own."""
    resolve: dict[str, str] = {}
    nodes: list[Node] = []
    copies = WeightCopies(graph)
    for node in graph.nodes:
        inputs = tuple(resolve.get(name, name) for name in node.inputs)
        if inputs != node.inputs:
            node = replace(node, inputs=inputs)
        rule = ALIAS_RULES.get(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
        if rule is not None and inputs and inputs[0] and node.outputs and rule(node, graph):
            if not copies.claims(node):
                resolve[node.outputs[0]] = inputs[0]
        else:
            nodes.append(node)
    return nodes, resolve, frozenset(copies.names)


def _constant_values(graph: Graph, nodes: list[Node]) -> frozenset[str]:
    """Values that are the same on every call and need no weight: contents known, or computed from such."""
    constant = set(graph.constants)
    constant.update(name for name in graph.buffers if _is_single(graph.values.get(name)))
    for node in nodes:
        if node.op_type in IMPURE or any(isinstance(value, Graph) for value in node.attributes.values()):
            continue
        # A node without inputs is a Constant; contents too large to keep do not make it less constant.
        if all(name in constant for name in node.inputs if name):
            constant.update(name for name in node.outputs if name)
    return frozenset(constant)


def _is_single(value: Value | None) -> bool:
    return value is not None and value.elements == 1


def _is_folded(node: Node, constant: frozenset[str], graph: Graph) -> bool:
    """True when nothing runs: a Constant, or constant arithmetic on integers, vectors and single numbers.

    Larger constant floats and flags (masks, grids) are left as they are computed: frameworks do build them in
    every step, and what builds a mask tells whether it is causal.
    """
    if not node.inputs:
        return all(name in constant for name in node.outputs)
    for name in node.outputs:
        if not name:
            continue
        value = graph.values.get(name)
        if name not in constant or value is None:
            return False
        if (
            len(value.shape) > 1
            and value.elements > 1
            and (value.dtype.is_float or value.dtype is DType.BOOL)
        ):
            return False
    return True


def _alive(nodes: list[Node], outputs: tuple[str, ...]) -> list[Node]:
    """Nodes that an output depends on."""
    needed = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            needed.discard("")
            kept.append(node)
    return kept[::-1]
