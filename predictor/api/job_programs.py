"""Programs of a request: what a device, or a rank of a plan, runs; and what makes two of them equal."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypedDict

from predictor.api.sources import Binding
from predictor.errors import InvalidRequest
from predictor.features.graph import Graph
from predictor.features.lowering.lower import release_of_lowering
from predictor.features.programs.program_source import ProgramSource
from predictor.features.programs.work import Program
from predictor.parallel.rank_program import RankProgram, rank_program
from predictor.releases import release_number
from predictor.request import PredictionRequest
from predictor.types import Layout, Mode, Optimizer, Precision, Runtime, Weights


class JobOptions(TypedDict):
    """What a program depends on besides its graph, its plan and `strict`."""

    mode: Mode
    precision: Precision
    optimizer: Optimizer
    runtime: Runtime
    layout: Layout
    weights: Weights
    release: float
    keeps_gradients: bool


def job_options(request: PredictionRequest) -> JobOptions:
    """The options of a request; equal ones make equal programs."""
    return {
        "mode": request.mode,
        "precision": request.precision,
        "optimizer": request.optimizer,
        "runtime": request.runtime,
        "layout": request.layout,
        "weights": request.weights,
        "release": release_of_lowering(request.runtime, release_number(request.framework_version)),
        "keeps_gradients": request.precedes_torch_2,
    }


def job_key(request: PredictionRequest) -> Hashable:
    """Equal for requests with equal options."""
    return tuple(job_options(request).values())


def device_program(graph: Graph, request: PredictionRequest) -> Program:
    """The program of one device that runs the whole job. Raises InvalidGraph, UnsupportedOp with `strict`."""
    from predictor.features.programs.program import build_program

    return build_program(graph, strict=request.strict, **job_options(request))


def request_rank_program(graph: Graph, request: PredictionRequest) -> RankProgram:
    """The program of one rank of the request's plan. Raises InvalidPlan, UnsupportedOp with `strict`."""
    return rank_program(graph, request.plan, strict=request.strict, **job_options(request))


def captured_program(source: ProgramSource, binding: Binding, request: PredictionRequest) -> Program:
    """The program of a captured module. Raises InvalidRequest for what its example inputs decide."""
    if binding.dims or binding.input_shapes:
        raise InvalidRequest(
            "a torch module takes its shapes from the example inputs: set them there, not by dims or "
            "input_shapes",
            field="dims" if binding.dims else "input_shapes",
        )
    if request.weights is not Weights.FULL:
        raise InvalidRequest(
            "weights: a captured torch module is priced with the weights that it has; export it, or quantise "
            "the module",
            field="weights",
        )
    return source.program(
        batch=binding.batch,
        mode=request.mode,
        precision=request.precision,
        optimizer=request.optimizer,
        runtime=request.runtime,
        strict=request.strict,
    )
