"""A forecaster with real graphs and checks and a made-up cost, for tests that need no bundle."""

from __future__ import annotations

from collections.abc import Iterable

from predictor.api.sources import Binding, GraphSources
from predictor.errors import CoverageMissing, PerfcastError
from predictor.features.programs.program import build_program
from predictor.hardware.catalog import find_cluster, find_device
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.request import PredictionRequest
from predictor.types import Coverage, Explanation, Interval, Notice, OpCostRow, Prediction

FAKE_BUNDLE = "sha256:" + "f" * 64


def _around(value: float) -> Interval:
    return Interval(value, value * 0.9, value * 1.1 / 1.0000001)


class FakePredictor:
    """FLOPs over the vector peak plus bytes over the bandwidth: enough to tell requests apart."""

    def __init__(self) -> None:
        self._sources = GraphSources()

    @property
    def bundle_id(self) -> str:
        return FAKE_BUNDLE

    def add_graph(self, data: bytes) -> str:
        return self._sources.add(data)

    def predict(self, request: PredictionRequest) -> Prediction:
        return self.explain(request).prediction

    def predict_many(self, requests: Iterable[PredictionRequest]) -> list[Prediction | PerfcastError]:
        answers: list[Prediction | PerfcastError] = []
        for request in requests:
            try:
                answers.append(self.predict(request))
            except PerfcastError as error:
                answers.append(error)
        return answers

    def explain(self, request: PredictionRequest) -> Explanation:
        device = request.device if isinstance(request.device, DeviceSpec) else find_device(request.device)
        if request.cluster is not None and not isinstance(request.cluster, ClusterSpec):
            find_cluster(request.cluster)
        binding = Binding(request.batch, request.dims, request.input_shapes)
        graph = self._sources.graph(request.graph, binding)
        program = build_program(
            graph,
            mode=request.mode,
            precision=request.precision,
            optimizer=request.optimizer,
            runtime=request.runtime,
            strict=request.strict,
        )
        if request.strict and device.kind == "phone":
            raise CoverageMissing(f"no model covers {device.id}", device=device.id)
        flops = sum(op.work.flops for op in program.ops)
        moved = sum(op.work.moved_bytes for op in program.ops)
        compute_s, traffic_s = flops / device.vector_flops_per_s, moved / device.memory_bytes_per_s
        time_s = compute_s + traffic_s
        memory = program.memory
        peak_bytes = float(memory.parameter_bytes + memory.activation_bytes + memory.transient_bytes)
        power_w = min(device.tdp_w, request.power_limit_w or device.tdp_w)
        prediction = Prediction(
            iteration_time_s=_around(time_s),
            throughput_samples_per_s=_around(time_s).inverse(program.batch),
            device_peak_bytes=_around(peak_bytes),
            allocator_peak_bytes=_around(peak_bytes),
            fits=peak_bytes < device.memory_bytes,
            energy_j=_around(time_s * power_w),
            average_power_w=_around(power_w),
            time_breakdown_s={"compute": compute_s, "traffic": traffic_s},
            memory_breakdown_bytes={"parameters": float(memory.parameter_bytes), "rest": peak_bytes},
            energy_breakdown_j={"device": time_s * power_w},
            coverage=Coverage(analytic=1.0),
            bundle=FAKE_BUNDLE,
            graph=graph.fingerprint,
            device=device.id,
            device_count=request.plan.device_count,
            capacity_bytes=device.memory_bytes,
            warnings=(Notice("MADE_UP", "numbers of a test"),),
        )
        rows = tuple(
            OpCostRow(
                op_type=op.op_type,
                family=op.work.family.value,
                kind=op.work.kind,
                phase=op.work.phase.value,
                count=1,
                time_s=op.work.flops / device.vector_flops_per_s,
                share_fraction=op.work.flops / max(flops, 1),
                floor_s=0.0,
                flops=op.work.flops,
                moved_bytes=op.work.moved_bytes,
                bound="compute",
                source="analytic",
                example_node=op.node,
            )
            for op in program.ops
        )
        return Explanation(prediction, rows)
