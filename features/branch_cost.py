"""Which of two branches costs more: their work on a device that moves 1 byte while it does 50 FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from predictor.errors import InvalidGraph
from predictor.features.node_types import Array, TensorType
from predictor.features.typed import TypedCall
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
    from predictor.features.evaluate_rules import RuleEvaluator
    from predictor.features.onnx_convert import part_of
    from predictor.features.rules import BACKWARD_RULES, WORK_RULES, load_rules

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
    total = 0.0
    for node in graph.nodes:
        try:
            works = [op.work for op in evaluate(node).ops(node)]
        except (KeyError, InvalidGraph):
            return None
        total += sum(
            w.flops / _FLOPS_PER_BYTE + w.moved_bytes + _LAUNCH_BYTES * w.launch_count for w in works
        )
    return total
