"""Which of two branches costs more: their work on a device that moves 1 byte while it does 50 FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.errors import InvalidGraph
from predictor.features.graph import Graph
from predictor.features.programs.evaluate_rules import RuleEvaluator
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
from predictor.features.reading.control import TRIP_COUNT
from predictor.features.reading.tensor_type import Array, TensorType
from predictor.features.reading.typed_model import TypedCall
from predictor.types import Precision

_FLOPS_PER_BYTE = 50
_LAUNCH_BYTES = 2**20


def cost_of(
    calls: Sequence[TypedCall],
    types: Mapping[str, TensorType],
    contents: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> float | None:
    """FLOPs / 50 + bytes + 1 MiB a launch; None where a type is unknown."""
    from predictor.features.reading.onnx_convert import part_of

    load_rules()
    graph = part_of(calls, types, contents, opsets)
    evaluate = RuleEvaluator(
        graph,
        WORK_RULES,
        BACKWARD_RULES,
        precision=Precision.FP32,
        training=False,
        weights=frozenset(),
        needs_gradient=frozenset(),
    )
    return _total(graph, evaluate)


def _total(graph: Graph, evaluate: RuleEvaluator) -> float | None:
    total = 0.0
    for node in graph.nodes:
        body, trips = node.attributes.get("body"), node.attributes.get(TRIP_COUNT, 1)
        try:
            if isinstance(body, Graph) and isinstance(trips, int):
                once = _total(body, evaluate.of_body(body, set(), set()))
                if once is None:
                    return None
                total += trips * once
                continue
            works = evaluate(node).forward
        except (KeyError, InvalidGraph):
            return None
        total += sum(
            work.flops / _FLOPS_PER_BYTE + work.moved_bytes + _LAUNCH_BYTES * work.launch_count
            for work in works
        )
    return total
