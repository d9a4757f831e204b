"""From the graph of a file to the graph of a job: the order in which the Graph -> Graph passes must run."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.fusion import recognise
from predictor.features.graph import Graph, Node
from predictor.features.grouping import group_pointwise
from predictor.features.precision import apply_precision
from predictor.types import Precision, Runtime


def lower(graph: Graph, *, precision: Precision = Precision.FP32, runtime: Runtime = Runtime.EAGER) -> Graph:
    """Recognises blocks, applies the numeric policy, then groups what a compiler fuses.

    Autocast decides operator by operator, so it must see blocks (a GELU spelled with Pow is no Pow) but no
    groups."""
    nodes = tuple(_with_lowered_body(node, precision, runtime) for node in graph.nodes)
    typed = apply_precision(recognise(replace(graph, nodes=nodes), runtime), precision)
    return group_pointwise(typed) if runtime is Runtime.COMPILED else typed


def _with_lowered_body(node: Node, precision: Precision, runtime: Runtime) -> Node:
    body = node.attributes.get("body")
    if not isinstance(body, Graph):
        return node
    lowered = lower(body, precision=precision, runtime=runtime)
    return replace(node, attributes={**node.attributes, "body": lowered})
