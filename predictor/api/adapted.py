"""Programs of jobs that train adapters: a graph is lowered, its weights frozen, adapters added."""

from __future__ import annotations

import os

from predictor.api.job_programs import job_options
from predictor.api.sources import Binding, GraphSources
from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.graph import Graph
from predictor.features.lowering.adapters import Adapters, adapt
from predictor.features.lowering.lower import lower
from predictor.features.programs.program import program_of
from predictor.features.programs.work import Program
from predictor.parallel.plan import Plan
from predictor.request import PredictionRequest
from predictor.types import Mode


def adapted_program(
    sources: GraphSources, request: PredictionRequest, binding: Binding, adapters: Adapters
) -> Program:
    """One iteration that trains adapters alone. Raises InvalidRequest, InvalidPlan: one device only."""
    if not isinstance(request.graph, str | bytes | os.PathLike | Graph) or request.mode is not Mode.TRAIN:
        raise InvalidRequest("adapters: expected a training job of a model file", field="graph")
    plan = request.plan
    if plan != Plan(recompute=plan.recompute, recompute_layers=plan.recompute_layers):
        raise InvalidPlan(
            "adapters: one device without microbatches; the plan may recompute and nothing else"
        )
    graph = sources.graph(request.graph, binding)
    lowered = lower(
        graph,
        precision=request.precision,
        runtime=request.runtime,
        training=True,
        layout=request.layout,
        release=job_options(request)["release"],
    )
    return program_of(
        adapt(lowered, adapters),
        mode=Mode.TRAIN,
        precision=request.precision,
        optimizer=request.optimizer,
        runtime=request.runtime,
        strict=request.strict,
        fingerprint=graph.fingerprint,
        recompute=plan.recompute,
        recompute_layers=plan.recompute_layers,
        keeps_gradients=request.precedes_torch_2,
    )
