"""Predictor: request -> graph -> program -> costs -> prediction, each step remembered.

Thread-safe (memos lock, everything else is frozen), picklable (by its bundle's path) and deterministic.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.api.answer import assemble
from predictor.api.explain import explain_program
from predictor.api.job_programs import (
    captured_program,
    device_program,
    job_key,
    request_rank_program,
)
from predictor.api.links import Links
from predictor.api.plan_answer import Pricing, Resolved
from predictor.api.plan_tables import SplitTables
from predictor.api.requested import (
    assumed_cluster,
    check_bound,
    check_unbound,
    job_context,
    job_framework,
    local_batch,
    requested_cluster,
    requested_device,
)
from predictor.api.sources import Binding, GraphSources
from predictor.cache import Memo
from predictor.compose.calibrated import calibrated_costs
from predictor.compose.energy import program_profile
from predictor.compose.exchange_sources import exchange_rows
from predictor.compose.footprint import footprint
from predictor.compose.plan_cost import is_plain
from predictor.compose.time import ProgramCosts, price_program
from predictor.errors import InvalidGraph, InvalidRequest, PerfcastError
from predictor.features.graph import Graph
from predictor.features.programs.work import Program
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.bundle import Bundle
from predictor.models.device_calibration import DeviceCalibration, stored_calibrations
from predictor.models.memory.peak import ForwardWork, MemoryModel
from predictor.models.ops.op_time import OpTimeModel
from predictor.models.plans.network_calibration import NetworkCalibration
from predictor.models.plans.plan_calibration import stored_plans
from predictor.models.plans.step_correction import StepCorrection
from predictor.models.power.board_power import PowerModel
from predictor.models.power.profile import JobProfile
from predictor.models.steps.step_time import StepTimeModel
from predictor.parallel.plan import Plan
from predictor.parallel.rank_program import RankProgram, captured_rank, shard_key
from predictor.request import PredictionRequest, checked_request
from predictor.types import Explanation, Mode, Prediction

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from predictor.api.fit import Axis
    from predictor.api.memory_view import MemorySeries
    from predictor.api.plan_search import PlanSource
    from predictor.compose.memory import MemoryCost
    from predictor.compose.timeline import Timeline
    from predictor.features.lowering.adapters import Adapters
    from predictor.features.lowering.thin import ThinGraph
    from predictor.fits import Change, FitAnswer
    from predictor.search.search import Goal, SearchResult
    from predictor.search.space import SearchSpace


@dataclass(frozen=True, slots=True)
class PowerJob:
    """One device's part of a job as the power model sees it, and that model."""

    profile: JobProfile
    device: DeviceSpec
    model: PowerModel


class Predictor(SplitTables):
    """Predicts time, memory and energy from one bundle of trained models."""

    def __init__(
        self,
        bundle: Bundle,
        *,
        calibrations: Sequence[DeviceCalibration] | None = None,
        networks: Sequence[NetworkCalibration] | None = None,
    ) -> None:
        """Of a loaded bundle; `calibrations` and `networks` take the place of those that it holds."""
        self._bundle = bundle
        self._calibrations = stored_calibrations(bundle) if calibrations is None else list(calibrations)
        self.links = Links(bundle, networks)
        self._op_time = OpTimeModel.from_bundle(bundle)
        self._step_time = StepTimeModel.from_bundle(bundle)
        self._memory = MemoryModel.from_bundle(bundle)
        self._power = PowerModel.from_bundle(bundle)
        # Plans were calibrated on top of the bundle's own calibrations.
        plans = stored_plans(bundle) if networks is None else ()
        self._pricing = Pricing(self._memory, self._power, StepCorrection.from_bundle(bundle), plans)
        self._sources = GraphSources()
        # By size, so that large models cannot fill the memory: with the graphs about 150 MB when full.
        self._programs: Memo[Hashable, Program] = Memo(100_000, lambda program: len(program.ops))
        self._ranks: Memo[Hashable, RankProgram] = Memo(200_000, lambda rank: len(rank.program.ops))
        self._plan_sources: Memo[Hashable, PlanSource] = Memo(4)
        self._thin: Memo[Hashable, ThinGraph] = Memo(50_000, lambda thin: len(thin.graph.nodes))
        self._costs: Memo[Hashable, ProgramCosts] = Memo(1_000_000, lambda costs: len(costs.index))
        self._answers: Memo[Hashable, Prediction] = Memo(16384)

    @classmethod
    def load(cls, bundle: str | Path | None = None) -> Predictor:
        """The predictor of the bundle at that path, or of the one that ships. Raises InvalidBundle."""
        return cls(Bundle.load(bundle))

    @property
    def bundle_id(self) -> str:
        """Identity of the trained models; echoed in every answer."""
        return self._bundle.id

    def add_graph(self, data: bytes) -> str:
        """Stores a model without its weights; returns the id to use as `graph`. Raises InvalidGraph."""
        return self._sources.add(data)

    def predict(
        self,
        request: PredictionRequest | None = None,
        *,
        module: torch.nn.Module | None = None,
        example_inputs: Any = None,
        **options: Any,
    ) -> Prediction:
        """Time, memory and energy of one iteration.

        Instead of a request, a torch module with example inputs and the fields of a PredictionRequest by
        name: `predict(module=model, example_inputs=(image,), device="h100-sxm-80gb", mode="train")`. The
        module runs on fake tensors: no weight is allocated, and it may lie on the `meta` device. For several
        questions about one module make a TorchModel once and put it in the requests.

        Raises InvalidInput (and its subclasses) for what cannot be priced, CoverageMissing with `strict`.
        A job that does not fit is an answer with `fits = False`.
        """
        request = _request(request, module, example_inputs, options)
        check_bound(request)
        key = self._request_key(request)
        answer = self._answers.get(key)
        if answer is None:
            resolved = self._resolve(request)
            answer = self._answer(resolved)
            if (accounting := request.accounting) is not None:
                found = footprint(answer, resolved.device, resolved.cluster, accounting)
                answer = replace(answer, footprint=found)
            self._answers.put(key, answer)
        return answer

    def predict_many(self, requests: Iterable[PredictionRequest]) -> list[Prediction | PerfcastError]:
        """Answers in order; a request that fails holds its error instead and never fails the rest."""
        answers: list[Prediction | PerfcastError] = []
        for request in requests:
            try:
                answers.append(self.predict(request))
            except PerfcastError as error:
                answers.append(error)
        return answers

    def explain(self, request: PredictionRequest) -> Explanation:
        """The prediction with its op groups, most expensive first."""
        prediction = self.predict(request)
        resolved = self._resolve(request)
        training = request.mode is Mode.TRAIN
        exchanges = exchange_rows(request.plan, resolved.cluster, training=training)
        rows = explain_program(resolved.rank.program, resolved.costs, resolved.device)
        return Explanation(prediction, rows, exchanges)

    def with_calibrations(
        self, calibrations: Sequence[DeviceCalibration], networks: Sequence[NetworkCalibration]
    ) -> Predictor:
        """The same bundle and programs under other calibrations."""
        other = Predictor(self._bundle, calibrations=calibrations, networks=networks)
        for name in ("_sources", "_programs", "_ranks"):
            setattr(other, name, getattr(self, name))
        return other

    def priced(self, request: PredictionRequest) -> tuple[Program, ProgramCosts]:
        """The program of a request and what its ops cost. Raises what `predict` raises."""
        resolved = self._resolve(request)
        return resolved.rank.program, resolved.costs

    def power_job(self, request: PredictionRequest) -> PowerJob:
        """What the power model sees of a request: for studies over caps. Raises what `predict` raises."""
        resolved = self._resolve(request)
        profile = program_profile(resolved.rank.program, resolved.costs, resolved.device, request.runtime)
        return PowerJob(profile, resolved.device, self._power)

    def timeline(self, request: PredictionRequest) -> Timeline:
        """The events of one iteration: what each stage of the plan computes, sends and waits for.

        Raises as `predict`.
        """
        return self._pricing.timeline(self._resolve(request))

    def search_plans(
        self,
        request: PredictionRequest,
        goal: Goal | None = None,
        *,
        max_devices: int | None = None,
        cp: Sequence[int] = (1,),
        space: SearchSpace | None = None,
    ) -> SearchResult:
        """The best plans for a model, a job and a cluster; the request's own plan does not matter.

        Args:
            goal: what to make small, and how many plans to find; by default the five fastest.
            max_devices: no plan uses more; by default the cluster's.
            cp: ways to split each sequence that are looked at; by default it is not split.
            space: the choices to look at; by default those that engineers consider
            (predictor.search.space.default_space).

        Raises as `predict`, InvalidPlan when nothing can be split so, DoesNotFit when no plan fits.
        """
        from predictor.api.plan_search import search_plans
        from predictor.search.search import Goal

        goal = goal or Goal()
        source = self.plan_source(request, max_devices=max_devices, with_energy=goal.needs_energy)
        return search_plans(source, goal, max_devices, cp, space)

    def plan_source(
        self, request: PredictionRequest, *, max_devices: int | None = None, with_energy: bool = False
    ) -> PlanSource:
        """Costs of a request's model under any plan, remembered: what `search_plans` works with."""
        from predictor.api.plan_search import PlanSource

        if request.batch is None:
            raise InvalidRequest("plan search: no batch is given; add --batch N", field="batch")
        check_unbound(request, "plan search")
        asked = replace(request, plan=Plan())
        if asked.cluster is None:
            asked = replace(asked, cluster=assumed_cluster(request, max_devices))
        return self._plan_sources.get_or(
            (self._request_key(asked), with_energy),
            lambda: PlanSource(
                asked,
                self._pricing,
                self.predict,
                self._resolve_graph,
                self._resolve_thin,
                with_energy=with_energy,
            ),
        )

    def memory(self, request: PredictionRequest) -> MemoryCost:
        """Peak memory alone, with the chance that it fits; its time is not asked for. Raises as `predict`."""
        return self.memory_of(request, self.rank(request))

    def rank(self, request: PredictionRequest) -> RankProgram:
        """One microbatch of one rank of the request's plan. Raises as `predict`."""
        return self._rank(request)[1]

    def memory_of(
        self,
        request: PredictionRequest,
        rank: RankProgram,
        forward: ForwardWork | None = None,
        ends: NDArray[np.intp] | None = None,
    ) -> MemoryCost:
        """The request's peak when its ranks run `rank`, cut at `ends`; see predictor.api.fit."""
        device = requested_device(request)
        requested_cluster(request, device)
        if ends is None and request.plan.pp > 1:
            ends = self.stage_ends(request)
        framework = job_framework(request)
        return self._pricing.memory_of(rank, device, request.plan, ends, forward, framework)

    def stage_ends(self, request: PredictionRequest) -> NDArray[np.intp]:
        """Pieces up to and including each virtual stage of the request's plan. Raises as `predict`."""
        return self._pricing.stage_ends(self._resolve(request))

    def memory_series(self, request: PredictionRequest) -> MemorySeries:
        """Memory over one iteration and what is alive at its peak. Raises as `predict`."""
        from predictor.api.memory_view import memory_series

        ends = self.stage_ends(request) if request.plan.pp > 1 else None
        return memory_series(self.rank(request), request.plan, ends, whole=is_plain(request.plan))

    def fit(
        self,
        request: PredictionRequest,
        *,
        axis: str | Axis = "batch",
        probability: float = 0.9,
    ) -> FitAnswer:
        """The largest size along `axis` with which the job fits with `probability`.

        Args:
            request: all else of the job; its own size is where the search begins.
            axis: `batch`, a symbolic dimension of the graph, or an Axis of predictor.api.fit.

        Raises InvalidRequest for what is no axis or probability, else as `predict` for the smallest size.
        """
        from predictor.api.fit import Axis, batch_axis, dimension_axis, fit

        if not isinstance(axis, Axis):
            axis = batch_axis(request) if axis == "batch" else dimension_axis(request, axis)
        return fit(self, axis, probability)

    def changes_to_fit(self, request: PredictionRequest, probability: float = 0.9) -> list[Change]:
        """What to change so that the job fits with `probability`, the fastest first. Raises as `predict`."""
        from predictor.api.fit_changes import changes

        return changes(self, request, probability)

    def adapted(self, request: PredictionRequest, adapters: Adapters) -> Prediction:
        """The answer on one device when low-rank adapters are trained beside frozen weights.

        Raises as `predict`, and InvalidRequest when no product of the graph can have an adapter.
        """
        from predictor.api.adapted import adapted_program

        binding = Binding(local_batch(request), request.dims, request.input_shapes)
        program = adapted_program(self._sources, request, binding, adapters)
        device = requested_device(request)
        costs = self._priced(program, device, request)
        whole = replace(request, plan=Plan())
        return self._answer(Resolved(whole, RankProgram(program, None, None), device, None, costs))

    def __reduce__(self) -> tuple[object, ...]:
        return Predictor.load, (self._bundle.path,)

    def _answer(self, resolved: Resolved) -> Prediction:
        if not is_plain(resolved.request.plan):
            return self._pricing.answer(resolved, self.bundle_id)
        return assemble(
            resolved.request,
            program=resolved.rank.program,
            costs=resolved.costs,
            device=resolved.device,
            cluster=resolved.cluster,
            memory_model=self._memory,
            power_model=self._power,
            bundle_id=self.bundle_id,
        )

    def _resolve_graph(self, request: PredictionRequest) -> Resolved:
        """As `_resolve`, with the graph of a rank even where the plan does not need it."""
        return self._resolve(request, needs_graph=True)

    def _resolve_thin(self, request: PredictionRequest) -> tuple[Resolved, NDArray[np.intp] | None]:
        """As `_resolve_graph` of a graph with few layers, and which piece stands for each of the whole."""
        from predictor.features.lowering.thin import thinned, whole_rows

        source = request.graph
        if not isinstance(source, str | bytes | os.PathLike | Graph):
            return self._resolve_graph(request), None
        binding = Binding(local_batch(request), request.dims, request.input_shapes)
        graph = self._sources.graph(source, binding)
        thin = self._thin.get_or((graph.fingerprint, graph.notes), lambda: thinned(graph))
        if not thin.runs:
            return self._resolve_graph(request), None
        resolved = self._resolve_graph(replace(request, graph=thin.graph))
        pieces = resolved.rank.pieces
        return resolved, None if pieces is None else whole_rows(thin, pieces)

    def _resolve(self, request: PredictionRequest, *, needs_graph: bool = False) -> Resolved:
        device = requested_device(request)
        cluster = self._cluster(request, device)
        program_key, rank = self._rank(request, needs_graph=needs_graph)
        costs = self._costs.get_or(
            (program_key, _device_key(device), request.framework_version, request.runs_framework),
            lambda: self._priced(rank.program, device, request),
        )
        if not costs.time_s.any():
            raise InvalidGraph(
                "the graph computes nothing: no op of it runs a kernel (constants, shapes and views cost "
                "nothing); check that its outputs depend on its inputs"
            )
        return Resolved(request, rank, device, cluster, costs)

    def _cluster(self, request: PredictionRequest, device: DeviceSpec) -> ClusterSpec | None:
        cluster = requested_cluster(request, device)
        return None if cluster is None else self.links.measured(cluster, request.runtime)

    def _priced(self, program: Program, device: DeviceSpec, request: PredictionRequest) -> ProgramCosts:
        costs = price_program(
            program,
            device,
            self._op_time,
            self._step_time,
            job_context(request, program),
            fused_optimizer=request.runs_framework,
        )
        for calibration in self._calibrations:
            if calibration.is_of(device):
                return calibrated_costs(program, costs, calibration, request.runtime)
        return costs

    def _rank(self, request: PredictionRequest, *, needs_graph: bool = False) -> tuple[Hashable, RankProgram]:
        """One microbatch of one rank, and what its program is remembered under."""
        binding = Binding(local_batch(request), request.dims, request.input_shapes)
        options = (job_key(request), request.strict)
        source, plan = request.graph, request.plan
        if not isinstance(source, str | bytes | os.PathLike | Graph):
            key: Hashable = (source.key, binding.batch, *options)
            program = self._programs.get_or(key, lambda: captured_program(source, binding, request))
            return key, captured_rank(program, plan)
        graph = self._sources.graph(source, binding)
        key = (graph.fingerprint, graph.notes, *options)
        if is_plain(plan) and not needs_graph:
            program = self._programs.get_or(key, lambda: device_program(graph, request))
            return key, RankProgram(program, None, None)
        key = (*key, shard_key(plan))
        return key, self._ranks.get_or(key, lambda: request_rank_program(graph, request))

    def _request_key(self, request: PredictionRequest) -> Hashable:
        device = request.device if isinstance(request.device, str) else _device_key(request.device)
        cluster = request.cluster if isinstance(request.cluster, str | None) else repr(request.cluster)
        binding = Binding(request.batch, request.dims, request.input_shapes)
        return (
            self._sources.key(request.graph),
            device,
            binding.key,
            job_key(request),
            request.framework_version,
            request.rank_jitter,
            request.trainer,
            request.plan,
            cluster,
            request.power_limit_w,
            request.accounting,
            request.strict,
        )


def _request(
    request: PredictionRequest | None, module: object, example_inputs: object, options: Mapping[str, Any]
) -> PredictionRequest:
    if request is not None:
        if module is not None or options:
            raise InvalidRequest("give a request, or a module with its options, not both", field="module")
        return checked_request(request)
    if module is None:
        raise InvalidRequest("give a request, or module= and example_inputs=", field="module")
    from predictor.features.torch_capture import TorchModel

    try:
        return PredictionRequest(TorchModel(module, example_inputs), **options)
    except TypeError as error:
        raise InvalidRequest(f"{error}; expected fields of PredictionRequest") from None


def _device_key(device: DeviceSpec) -> Hashable:
    return repr(device)
