"""From the graph of a file to the graph of a job: the order in which the Graph -> Graph passes must run."""

from __future__ import annotations

from predictor.features.fusion import recognise
from predictor.features.graph import Graph
from predictor.features.grouping import group_pointwise
from predictor.features.precision import apply_precision
from predictor.types import Precision, Runtime


def lower(graph: Graph, *, precision: Precision = Precision.FP32, runtime: Runtime = Runtime.EAGER) -> Graph:
    """Recognises blocks, applies the numeric policy, then groups what a compiler fuses.

    Autocast decides operator by operator, so it must see blocks (a GELU spelled with Pow is no Pow) but no
    groups."""
    typed = apply_precision(recognise(graph, runtime), precision)
    return group_pointwise(typed) if runtime is Runtime.COMPILED else typed
