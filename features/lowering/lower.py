"""From the graph of a file to the graph of a job: the order in which the Graph -> Graph passes must run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from predictor.errors import InvalidRequest
from predictor.features.graph import Graph, Node
from predictor.features.lowering.compiler_layout import lays_images_last
from predictor.features.lowering.engines import ENGINES, fuse_for_engine
from predictor.features.lowering.fusion import recognise
from predictor.features.lowering.grouping import group_pointwise
from predictor.features.lowering.in_place import mark_updates
from predictor.features.lowering.layout import mark_images_in_place
from predictor.features.lowering.narrow_weights import store_weights
from predictor.features.lowering.patterns.attention import FUSED_SINCE
from predictor.features.lowering.precision import apply_precision
from predictor.features.lowering.quantised import fuse_quantised
from predictor.types import Layout, Precision, Runtime, Weights


def lower(
    graph: Graph,
    *,
    precision: Precision = Precision.FP32,
    runtime: Runtime = Runtime.EAGER,
    training: bool = False,
    layout: Layout = Layout.NCHW,
    release: float = 0.0,
    weights: Weights = Weights.FULL,
    narrow_norms: bool = False,
    split: Callable[[Graph], Graph] | None = None,
) -> Graph:
    """Recognises blocks, applies the numeric policy, then groups what a compiler or an engine fuses.

    Quantised products run on integers when a compiler or an engine makes an inference program; eager
    frameworks run what is written, and training needs the floats. Raises InvalidRequest when an inference
    engine is asked to train.

    Autocast decides operator by operator, so it must see blocks (a GELU spelled with Pow is no Pow) but no
    groups. So must `split`, which makes the graph of one rank of a plan (predictor.parallel.sharding): what
    ranks exchange, no compiler fuses. `release` of torch, as major + minor / 100, is what
    `release_of_lowering` gives; 0 is the newest. `narrow_norms` is as `apply_precision` takes it.
    """
    engine = ENGINES.get(runtime)
    if engine is not None and training:
        raise InvalidRequest(
            f"runtime {runtime.value} runs inference only; expected eager or compiled for training",
            field="runtime",
        )
    inner = partial(
        lower,
        precision=precision,
        runtime=runtime,
        training=training,
        layout=layout,
        release=release,
        weights=weights,
        narrow_norms=narrow_norms,
    )
    graph = replace(graph, nodes=tuple(_with_lowered_body(node, inner) for node in graph.nodes))
    if not training:
        graph = mark_updates(graph)
    if runtime is not Runtime.EAGER and not training:
        graph = fuse_quantised(graph)
    if runtime is Runtime.COMPILED and lays_images_last(graph, training=training):
        layout = Layout.NHWC
    recognised = store_weights(recognise(graph, runtime, layout, release), weights)
    typed = apply_precision(recognised, precision, narrow_norms=narrow_norms)
    if runtime in _LAYING_IMAGES:
        typed = mark_images_in_place(typed)
    if split is not None:
        typed = split(typed)
    if engine is not None:
        typed = fuse_for_engine(typed, engine)
    groups = runtime is Runtime.COMPILED if engine is None else engine.groups_pointwise
    return group_pointwise(typed) if groups else typed


def release_of_lowering(runtime: Runtime, release: float) -> float:
    """What `lower` need know of a framework's release; equal for releases that run the same kernels.

    Each compiler fuses its own; eager mode runs attention as one kernel since torch 2.0, and nothing else
    depends on it. Engines have releases of their own.
    """
    if runtime is Runtime.COMPILED:
        return release
    return _BEFORE_FUSED_ATTENTION if runtime is Runtime.EAGER and 0.0 < release < FUSED_SINCE else 0.0


_BEFORE_FUSED_ATTENTION = 1.0


_LAYING_IMAGES = frozenset({Runtime.COMPILED, Runtime.TENSORRT})
"""Who decides how images lie. With conversions timm's compiled networks fit worse (8.9 to 9.8 %)."""


def _with_lowered_body(node: Node, lowered: Callable[[Graph], Graph]) -> Node:
    body = node.attributes.get("body")
    if not isinstance(body, Graph):
        return node
    return replace(node, attributes={**node.attributes, "body": lowered(body)})
