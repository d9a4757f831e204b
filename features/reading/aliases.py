"""Nodes whose first output is their first input under another name: identities, casts to the same type ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from predictor.features.graph import Graph, Node, Value
from predictor.registry import Registry

AliasRule: TypeAlias = Callable[[Node, Graph], bool]
ALIAS_RULES: Registry[AliasRule] = Registry("alias rule")
"""Rules that say whether a node is an alias as the file spells it."""


def keeps_type(node: Node, values: Mapping[str, Value]) -> bool:
    """True when the first output has the known shape and type of the first input."""
    before, after = values.get(node.inputs[0]), values.get(node.outputs[0])
    return (
        before is not None
        and after is not None
        and (before.shape, before.dtype) == (after.shape, after.dtype)
    )


def keeps_order(node: Node) -> bool:
    """True for a Transpose that leaves every axis in its place."""
    order = node.attributes.get("perm")
    return isinstance(order, tuple) and order == tuple(range(len(order)))


@ALIAS_RULES.register("", "Identity")
def _identity(node: Node, graph: Graph) -> bool:
    return True


@ALIAS_RULES.register("", "Cast", "CastLike", "Expand", "Tile")
def _same_result(node: Node, graph: Graph) -> bool:
    return keeps_type(node, graph.values)


@ALIAS_RULES.register("", "Concat", "Sum", "Mean", "Max", "Min")
def _single_operand(node: Node, graph: Graph) -> bool:
    return len(node.inputs) == 1


@ALIAS_RULES.register("", "Slice", since=10)
def _whole_slice(node: Node, graph: Graph) -> bool:
    # A step of -1 over everything keeps the shape and reverses the contents.
    steps = graph.constants.get(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else ()
    return steps is not None and all(step > 0 for step in steps) and keeps_type(node, graph.values)


@ALIAS_RULES.register("", "Slice", since=1)
def _whole_slice_by_attributes(node: Node, graph: Graph) -> bool:
    return keeps_type(node, graph.values)


@ALIAS_RULES.register("", "Pad", since=11)
def _no_padding(node: Node, graph: Graph) -> bool:
    pads = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    return pads is not None and not any(pads)


@ALIAS_RULES.register("", "Pad", since=1)
def _no_padding_by_attributes(node: Node, graph: Graph) -> bool:
    pads = node.attributes.get("pads", node.attributes.get("paddings", (1,)))
    return isinstance(pads, tuple) and not any(pads)


@ALIAS_RULES.register("", "Transpose")
def _same_order(node: Node, graph: Graph) -> bool:
    return keeps_order(node)


@ALIAS_RULES.register("", "Dropout", since=12)
def _inference_dropout(node: Node, graph: Graph) -> bool:
    mask_used = len(node.outputs) > 1 and bool(node.outputs[1]) and node.outputs[1] in graph.consumers
    if len(node.inputs) > 2 and node.inputs[2]:
        training = graph.constants.get(node.inputs[2])
        return training is not None and not any(training) and not mask_used
    return not mask_used


@ALIAS_RULES.register("", "Dropout", since=7)
def _plain_dropout(node: Node, graph: Graph) -> bool:
    return not (len(node.outputs) > 1 and node.outputs[1] in graph.consumers)


@ALIAS_RULES.register("", "Dropout", since=1)
def _old_dropout(node: Node, graph: Graph) -> bool:
    return bool(node.attributes.get("is_test"))
