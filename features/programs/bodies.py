"""The work of a node with a body: Loop and Scan. All ops of one trip, times the trips.

Gradients of a body are those of one trip, times the trips; each trip keeps what its own backward step reads.
What a trip holds beside that, at its worst moment, is memory that the node takes while it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from predictor.errors import InvalidGraph
from predictor.features.execution import execution_order, with_gradient
from predictor.features.graph import Graph, Node
from predictor.features.programs.backward import BackwardPass
from predictor.features.programs.evaluate_rules import Evaluated, RuleEvaluator
from predictor.features.programs.liveness import memory_timeline, plain_order
from predictor.features.programs.memory_timeline import Line
from predictor.features.programs.rules import Backward
from predictor.features.programs.work import OpInstance
from predictor.features.reading.control import TRIP_COUNT

OP_LIMIT = 1_000_000
"""Kernels that the loops of a program may stand for."""


def evaluate_body(evaluate: RuleEvaluator, node: Node, body: Graph) -> Evaluated:
    """Works of `node`, whose trips all look alike.

    Raises InvalidGraph when the trips come to more than OP_LIMIT kernels.
    """
    trips = node.attributes.get(TRIP_COUNT, 1)
    times = trips if isinstance(trips, int) else 1
    nodes, weights = execution_order(body)
    sources = _sources_of_gradient(evaluate, node, body)
    needed = with_gradient(body, nodes, sources) if sources else set()
    inside = evaluate.of_body(body, needed, weights)
    evaluated = [inside(inner) for inner in nodes]
    step = [op for inner, found in zip(nodes, evaluated, strict=True) for op in found.ops(inner)]
    _check_size(node, step, times)
    backward, backward_covered = None, True
    way_back = BackwardPass(body, nodes, evaluated, needed)
    forward_bytes = backward_bytes = 0
    if not sources:
        order = plain_order(len(nodes), training=False)
        trip = memory_timeline(body, way_back.memory_steps(frozenset()), order)
        forward_bytes = int(trip.bytes_by_line.sum(axis=0).max(initial=0))
    else:
        back: list[OpInstance] = []
        way_back.run(back)
        _check_size(node, back, times)
        steps = way_back.memory_steps(frozenset())
        timeline = memory_timeline(body, steps, way_back.order, seeds=way_back.seeds)
        saved_bytes = timeline.sum_of(Line.SAVED)
        # The sum of a weight's gradients is the node's; each trip makes its part beside it.
        beside = timeline.bytes_by_line[[Line.TRANSIENT, Line.PARAMETER_GRADIENT]].sum(axis=0)
        forward_bytes = int(beside[: timeline.forward_length].max(initial=0))
        backward_bytes = int(beside[timeline.forward_length :].max(initial=0))
        kept = tuple(f"in{index}" for index, name in enumerate(node.inputs) if name)
        backward = Backward(tuple(op.work for op in back) * times, kept, saved_bytes * times)
        backward_covered = all(found.backward_covered for found in evaluated)
    return Evaluated(
        forward=tuple(op.work for op in step) * times,
        backward=backward,
        covered=all(op.covered for op in step),
        backward_covered=backward_covered,
        workspace_bytes=max((found.workspace_bytes for found in evaluated), default=0),
        backward_workspace_bytes=max((found.backward_workspace_bytes for found in evaluated), default=0),
        temporary_bytes=forward_bytes if times else 0,
        backward_temporary_bytes=backward_bytes if times else 0,
        inner=tuple(step) * times,
        missing=tuple(
            name for inner, found in zip(nodes, evaluated, strict=True) for name in found.uncovered(inner)
        ),
    )


def _sources_of_gradient(evaluate: RuleEvaluator, node: Node, body: Graph) -> set[str]:
    """Inputs and weights of the body whose gradient the node must deliver."""
    if not evaluate.training:
        return set()
    # The node's inputs are the body's, one by one, and then the weights that it reads.
    weights = [name for name in body.values if name in body.parameters or name in body.buffers]
    pairs = zip(node.inputs, (*body.inputs, *weights), strict=False)
    found = {inner for outer, inner in pairs if outer and evaluate.wants_gradient(outer)}
    return {name for name in found if name in body.values and body.values[name].dtype.is_float}


def _check_size(node: Node, step: Sequence[OpInstance], times: int) -> None:
    if len(step) * times > OP_LIMIT:
        raise InvalidGraph(
            f"{node.op_type} runs {times} times {len(step)} kernels; at most {OP_LIMIT} in all are priced: "
            f"lower --dim {node.name}.trip_count=N",
            node=node.name,
        )
