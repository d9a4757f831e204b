"""The program of one rank for one microbatch: the graph lowered, sharded, and cut where stages can begin."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from predictor.errors import InvalidPlan
from predictor.features.collector import without_collection
from predictor.features.graph import Graph
from predictor.features.lowering.layers import Segments, segments
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import program_of
from predictor.features.programs.rules import load_rules
from predictor.features.programs.work import Program
from predictor.parallel.plan import Plan
from predictor.parallel.sharding import Sharding, sharding
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime, Weights


@dataclass(frozen=True, slots=True)
class RankProgram:
    """One microbatch of one rank, not yet cut into stages.

    Attributes:
        program: all ops in order, exchanges between ranks included.
        graph: what they run, sharded; None where only the program is known (captured torch modules).
        pieces: where stages can begin. experts: parameters that differ between expert ranks.
        partial: groups, besides replicas, over which the gradients of parameters are summed.
    """

    program: Program
    graph: Graph | None
    pieces: Segments | None
    experts: frozenset[str] = frozenset()
    partial: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def shard_key(plan: Plan) -> Hashable:
    """Equal for plans whose ranks run the same kernels on equal microbatches."""
    return (
        plan.tp,
        plan.cp,
        plan.ep,
        plan.sequence_parallel,
        plan.cp_kind,
        plan.load_imbalance,
        plan.recompute,
        plan.recompute_layers,
    )


def rank_program(
    graph: Graph,
    plan: Plan,
    *,
    mode: Mode,
    precision: Precision,
    optimizer: Optimizer,
    runtime: Runtime,
    layout: Layout = Layout.NCHW,
    release: float = 0.0,
    weights: Weights = Weights.FULL,
    strict: bool = False,
    keeps_gradients: bool = False,
) -> RankProgram:
    """The program of a rank of `plan`.

    Args:
        graph: as read from a file, bound to the samples of one microbatch.
        release, weights, keeps_gradients: as build_program takes them.

    Raises InvalidPlan when the graph cannot be sharded so, UnsupportedOp with `strict`.
    """
    load_rules()
    training = mode is Mode.TRAIN
    found: list[Sharding] = []

    def split(typed: Graph) -> Graph:
        found.append(sharding(typed, plan, training=training))
        return found[0].graph

    with without_collection(len(graph.nodes)):
        local = lower(
            graph,
            runtime=runtime,
            precision=precision,
            training=training,
            layout=layout,
            release=release,
            weights=weights,
            split=split if plan.splits_graph else None,
        )
        program = program_of(
            local,
            mode=mode,
            precision=precision,
            optimizer=optimizer,
            runtime=runtime,
            strict=strict,
            fingerprint=graph.fingerprint,
            parameter_count=graph.parameter_count,
            recompute=plan.recompute,
            recompute_layers=plan.recompute_layers,
            keeps_gradients=keeps_gradients,
        )
        pieces = segments(local)
    shards = found[0].parameters if found else {}
    return RankProgram(
        program,
        local,
        pieces,
        experts=frozenset(name for name, shard in shards.items() if "ep" in shard.split_over),
        partial={name: shard.partial_over for name, shard in shards.items() if shard.partial_over},
    )


def captured_rank(program: Program, plan: Plan) -> RankProgram:
    """The rank of a captured torch module, which is a program without a graph.

    Raises InvalidPlan for plans that would have to cut it.
    """
    cut = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1]
    if plan.zero == 3:
        cut.append("zero")
    if cut:
        listed = ", ".join(f"{name}={getattr(plan, name)}" for name in cut)
        raise InvalidPlan(
            f"plan: {listed} on a captured torch module: a capture lists the kernels of one device, not the "
            "graph to split; export it (`perfcast graph from-torch`) and predict the ONNX file, or "
            "use dp with zero of at most 2",
            field=f"plan.{cut[0]}",
        )
    return RankProgram(program, None, None)
