"""Which device, cluster and samples of a rank a request means."""

from __future__ import annotations

from predictor.errors import InvalidPlan, InvalidRequest
from predictor.features.graph import Graph
from predictor.features.programs.work import Program, has_images
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.steps.features import LATEST_VERSION, JobContext
from predictor.parallel.plan import Plan
from predictor.releases import release_number
from predictor.request import PredictionRequest
from predictor.types import Layout, OffloadTarget


def local_batch(request: PredictionRequest) -> int | None:
    """Samples of one microbatch of one replica. Raises InvalidRequest, InvalidPlan: they do not divide."""
    replicas, parts = request.plan.dp, request.plan.microbatches
    if replicas * parts == 1 or isinstance(request.graph, Graph):
        return request.batch
    if request.batch is None:
        raise InvalidRequest(
            f"plan: {replicas} replicas share the global batch, and no batch is given; add --batch N"
            if parts == 1
            else f"plan: {replicas * parts} microbatches share the global batch, and no batch is given; add "
            "--batch N",
            field="batch",
        )
    if request.batch % (replicas * parts):
        whole = replicas * parts
        below = request.batch // whole * whole
        near = f"{below} or {below + whole}" if below else str(whole)
        over = f"dp={replicas} replicas" + (f" in {parts} microbatches each" if parts > 1 else "")
        raise InvalidPlan(
            f"plan: batch {request.batch} does not divide over {over}; try batch {near}",
            field="batch",
        )
    return request.batch // (replicas * parts)


def check_bound(request: PredictionRequest) -> None:
    """Raises InvalidRequest where a Graph, whose sizes are numbers already, is asked for others."""
    graph, plan = request.graph, request.plan
    if not isinstance(graph, Graph):
        return
    samples = graph.batch * plan.dp * plan.microbatches
    if request.batch not in (None, samples):
        raise InvalidRequest(
            f"batch is {request.batch}, but the Graph was read for {graph.batch} samples, which makes "
            f"{samples} with dp={plan.dp} and {plan.microbatches} microbatches; read it for another batch, "
            "or give its file",
            field="batch",
        )
    if request.dims or request.input_shapes:
        raise InvalidRequest(
            "a Graph has its sizes already: give dims and input_shapes to read_graph, or give the file",
            field="dims" if request.dims else "input_shapes",
        )


def check_unbound(request: PredictionRequest, asker: str) -> None:
    """Raises InvalidRequest where a Graph is given to `asker`, which tries other sizes."""
    if isinstance(request.graph, Graph):
        raise InvalidRequest(
            f"{asker}: a Graph has sizes already; give the model's file or bytes", field="graph"
        )


def job_framework(request: PredictionRequest) -> float:
    """Version of the framework as major + minor / 100; the newest that was measured where none is given."""
    return release_number(request.framework_version) or LATEST_VERSION


def job_context(request: PredictionRequest, program: Program) -> JobContext:
    """What the step model is told of a job. A layout is of images: without convolutions there is none."""
    laid = has_images(op.work for op in program.ops)
    return JobContext(
        request.mode,
        request.precision,
        request.runtime,
        request.layout if laid else Layout.NCHW,
        job_framework(request),
    )


def requested_cluster(request: PredictionRequest, device: DeviceSpec) -> ClusterSpec | None:
    """The cluster that the plan needs, None for one device. Raises InvalidPlan: too small, UnknownName."""
    from predictor.hardware.catalog import default_cluster, find_cluster

    count = request.plan.device_count
    if request.cluster is None:
        return default_cluster(device, count) if count > 1 else None
    cluster = find_cluster(request.cluster) if isinstance(request.cluster, str) else request.cluster
    if count > cluster.device_count:
        raise InvalidPlan(
            f"plan: {count} devices, but cluster {cluster.id} has {cluster.device_count}; lower "
            f"{_largest_axis(request.plan)} or name a larger one",
            field=f"plan.{_largest_axis(request.plan)}",
        )
    return cluster


def _largest_axis(plan: Plan) -> str:
    return max(("dp", "tp", "pp", "cp"), key=lambda name: int(getattr(plan, name)))


def assumed_cluster(request: PredictionRequest, max_devices: int | None) -> ClusterSpec:
    """As many devices as a search may use. Raises InvalidRequest when nothing says how many."""
    from predictor.hardware.catalog import default_cluster

    if max_devices is None:
        raise InvalidRequest(
            "plan search: name a cluster or a number of devices: --cluster NAME or --max-devices N",
            field="cluster",
        )
    return default_cluster(requested_device(request), max_devices)


def requested_device(request: PredictionRequest) -> DeviceSpec:
    """Looked up by name where it is one. Raises UnknownDevice, InvalidPlan: no host to offload to."""
    from predictor.hardware.catalog import find_device

    device = request.device if isinstance(request.device, DeviceSpec) else find_device(request.device)
    plan = request.plan
    if plan.offload and plan.offload_to is OffloadTarget.CPU and device.kind.is_host:
        raise InvalidPlan(
            f"plan: offload to cpu on {device.id}, which computes in the host's own memory; offload to nvme, "
            "or not at all",
            field="plan.offload",
        )
    return device
