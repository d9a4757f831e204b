"""Graph + job -> Program: forward ops, the backward pass derived from them, the optimizer step, and memory.

An exported graph holds no loss: the backward pass starts from gradients of its outputs (one fill each). A
value with k readers on the gradient's path costs k - 1 additions.
"""

from __future__ import annotations

from collections import Counter

from predictor.errors import InvalidGraph, UnsupportedOp
from predictor.features.collector import without_collection
from predictor.features.execution import execution_order, with_gradient
from predictor.features.graph import Graph, Node
from predictor.features.lowering.lower import lower
from predictor.features.lowering.recompute import Runs, replayed_nodes
from predictor.features.ops.optimizer import optimizer_memory, optimizer_work
from predictor.features.programs.backward import BackwardPass
from predictor.features.programs.bodies import OP_LIMIT
from predictor.features.programs.evaluate_rules import Evaluated, RuleEvaluator
from predictor.features.programs.liveness import memory_timeline
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, BackwardRule, WorkRule, load_rules
from predictor.features.programs.work import OpInstance, Program
from predictor.registry import Registry
from predictor.types import Layout, Mode, Optimizer, Precision, Recompute, Runtime, Weights

_OPTIMIZER_NODE = "optimizer"


def build_program(
    graph: Graph,
    *,
    mode: Mode,
    precision: Precision,
    optimizer: Optimizer,
    runtime: Runtime,
    layout: Layout = Layout.NCHW,
    release: float = 0.0,
    weights: Weights = Weights.FULL,
    narrow_norms: bool = False,
    work_rules: Registry[WorkRule] = WORK_RULES,
    backward_rules: Registry[BackwardRule] = BACKWARD_RULES,
    strict: bool = False,
    master_weights: bool = False,
    recompute: Recompute = Recompute.NONE,
    recompute_layers: int | None = None,
    keeps_gradients: bool = False,
) -> Program:
    """One iteration of `graph` on one device, in execution order.

    Args:
        graph: as read from a file; blocks are fused and the precision policy is applied here.
        mode: INFER is the forward pass; TRAIN adds backward and the step of `optimizer`.
        layout: NHWC keeps images channels-last: convolutions copy what lies otherwise.
        release: of torch, as major + minor / 100; 0 is the newest. Older compilers fuse fewer blocks.
        weights: how inference stores those of its products (lowering/narrow_weights.py).
        narrow_norms: under autocast layer and group norms run in 16 bits (lowering/precision.py).
        strict: raise UnsupportedOp, naming every op type without a rule, instead of pricing it by its bytes.
        master_weights: 16-bit weights have FP32 copies in the optimizer's state, and FP32 gradients, as
            Megatron-LM and DeepSpeed keep them.
        recompute, recompute_layers: activations that backward computes again (lowering/recompute.py);
            those kernels are ops of the program, in its backward phase.
        keeps_gradients: those of weights are set to zero and not freed before an iteration
            (`zero_grad(set_to_none=False)`, torch's default before 2.0).

    Raises InvalidGraph when operands make no sense to an op's rule.
    """
    load_rules()
    training = mode is Mode.TRAIN
    with without_collection(len(graph.nodes)):
        return program_of(
            lower(
                graph,
                runtime=runtime,
                precision=precision,
                training=training,
                layout=layout,
                release=release,
                weights=weights,
                narrow_norms=narrow_norms,
            ),
            mode=mode,
            precision=precision,
            optimizer=optimizer,
            runtime=runtime,
            work_rules=work_rules,
            backward_rules=backward_rules,
            strict=strict,
            fingerprint=graph.fingerprint,
            # An engine's plan holds what it folded, not what the model is trained with.
            parameter_count=graph.parameter_count,
            master_weights=master_weights,
            recompute=recompute,
            recompute_layers=recompute_layers,
            keeps_gradients=keeps_gradients,
        )


def program_of(
    graph: Graph,
    *,
    mode: Mode,
    precision: Precision = Precision.FP32,
    optimizer: Optimizer = Optimizer.NONE,
    runtime: Runtime = Runtime.EAGER,
    work_rules: Registry[WorkRule] = WORK_RULES,
    backward_rules: Registry[BackwardRule] = BACKWARD_RULES,
    strict: bool = False,
    fingerprint: str | None = None,
    parameter_count: int | None = None,
    master_weights: bool = False,
    recompute: Recompute = Recompute.NONE,
    recompute_layers: int | None = None,
    replays: Runs = (),
    wide_gradients: bool | None = None,
    keeps_gradients: bool = False,
) -> Program:
    """As `build_program`, for a graph that is lowered already.

    `fingerprint` and `parameter_count` are those of the file's graph. `replays` are runs of nodes that
    backward computes again beside those of `recompute`; `wide_gradients` says whether gradients of weights
    are summed up in FP32, as they are with master weights unless it says otherwise.
    """
    load_rules()
    training = mode is Mode.TRAIN
    wide = master_weights if wide_gradients is None else wide_gradients
    nodes, weights = execution_order(graph)
    needs_gradient = with_gradient(graph, nodes) if training else set()
    evaluate = RuleEvaluator(
        graph,
        work_rules,
        backward_rules,
        precision=precision,
        training=training,
        weights=weights,
        needs_gradient=needs_gradient,
    )
    evaluated = [evaluate(node) for node in nodes]
    if strict:
        _require_rules(nodes, evaluated)
    if sum(len(found.inner) for found in evaluated) > OP_LIMIT:
        raise InvalidGraph(f"loops run more than {OP_LIMIT} kernels in all; lower --dim NODE.trip_count=N")
    ops = [op for node, found in zip(nodes, evaluated, strict=True) for op in found.ops(node)]
    backward = BackwardPass(graph, nodes, evaluated, needs_gradient)
    if training:
        backward.run(ops, (*replayed_nodes(graph, recompute, recompute_layers), *replays))
        trained = [graph.values[name] for name in backward.ready]
        step = optimizer_work(
            trained, optimizer, precision=precision, runtime=runtime, master_weights=master_weights
        )
        ops.extend(OpInstance(work, _OPTIMIZER_NODE, optimizer.value) for work in step)
    else:
        trained = []
    timeline = memory_timeline(
        graph,
        backward.memory_steps(weights if precision is Precision.AMP else frozenset()),
        backward.order,
        seeds=backward.seeds,
        optimizer=optimizer_memory(trained, optimizer, runtime, master_weights=master_weights),
        wide_gradients=wide,
        names=tuple(node.name for node in nodes),
    )
    if keeps_gradients:
        timeline = timeline.with_kept_gradients()
    return Program(
        ops=tuple(ops),
        memory=timeline.work(),
        gradients=backward.gradients(wide=wide),
        parameter_count=graph.parameter_count if parameter_count is None else parameter_count,
        batch=graph.batch,
        fingerprint=fingerprint or graph.fingerprint,
        notes=graph.notes,
        timeline=timeline,
    )


def _require_rules(nodes: list[Node], evaluated: list[Evaluated]) -> None:
    pairs = zip(nodes, evaluated, strict=True)
    missing = Counter(name for node, found in pairs for name in found.uncovered(node))
    if missing:
        listed = ", ".join(f"{name} ({count}x)" for name, count in sorted(missing.items()))
        raise UnsupportedOp(
            f"{len(missing)} op types have no work rule: {listed}; register rules through the entry-point "
            "group predictor.work_rules, or drop strict to price them by the bytes they move",
            ops=",".join(sorted(missing)),
        )
