"""The last step: costs of one program become a Prediction with its warnings."""

from __future__ import annotations

from predictor.compose.energy import EnergyCost, compose_energy, slowdown_under_cap
from predictor.compose.memory import MemoryCost, compose_memory
from predictor.compose.time import ProgramCosts, TimeCost, compose_time
from predictor.features.work import Program
from predictor.hardware.catalog import normalize_name
from predictor.hardware.spec import ClusterSpec, DeviceSpec
from predictor.models.memory import MemoryModel
from predictor.models.power import PowerModel, limit_w
from predictor.request import PredictionRequest
from predictor.types import Mode, Notice, Prediction
from predictor.units import format_bytes

# Shares of the time below this are not worth a warning.
_NOTABLE_FRACTION = 0.02


def assemble(
    request: PredictionRequest,
    *,
    program: Program,
    costs: ProgramCosts,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
    memory_model: MemoryModel,
    power_model: PowerModel,
    bundle_id: str,
) -> Prediction:
    """The prediction of a priced program."""
    plan = request.plan
    time = compose_time(
        program,
        costs,
        runtime=request.runtime,
        plan=plan,
        cluster=cluster,
        slowdown=slowdown_under_cap(
            program, costs, device, request.runtime, request.power_limit_w, power_model
        ),
    )
    memory = compose_memory(program, device, plan, memory_model)
    energy = compose_energy(
        program, costs, time, device, plan, request.runtime, request.power_limit_w, power_model
    )
    return Prediction(
        iteration_time_s=time.iteration,
        throughput_samples_per_s=time.iteration.inverse(program.batch * plan.dp),
        device_peak_bytes=memory.device_peak,
        allocator_peak_bytes=memory.allocator_peak,
        fits=memory.fits,
        energy_j=energy.energy_j,
        average_power_w=energy.average_power_w,
        time_breakdown_s=time.breakdown_s,
        memory_breakdown_bytes=memory.breakdown_bytes,
        energy_breakdown_j=energy.breakdown_j,
        coverage=time.coverage,
        bundle=bundle_id,
        graph=program.fingerprint,
        device=device.id,
        device_count=plan.device_count,
        capacity_bytes=memory.capacity_bytes,
        out_of_range=time.out_of_range_fraction > _NOTABLE_FRACTION
        or memory.out_of_range
        or energy.out_of_range,
        warnings=tuple(_notices(request, program, time, memory, energy, device, cluster)),
    )


def _notices(
    request: PredictionRequest,
    program: Program,
    time: TimeCost,
    memory: MemoryCost,
    energy: EnergyCost,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
) -> list[Notice]:
    found: list[Notice] = list(program.notes)
    unknown = sorted({op.op_type for op in program.ops if not op.covered})
    if unknown:
        found.append(
            Notice(
                "OP_FALLBACK",
                f"no work rule for {', '.join(unknown)}: priced by bytes moved, "
                f"{_percent(time.coverage.fallback)} of the time; to add one: docs/how-to/add-an-op.md",
            )
        )
    found += _extrapolations(request, time, memory, energy, device)
    if not memory.fits:
        found.append(
            Notice(
                "DOES_NOT_FIT",
                f"needs {format_bytes(memory.device_peak.value)} of "
                f"{format_bytes(memory.capacity_bytes)} usable on {device.id}: lower the batch or split over "
                "more devices",
            )
        )
    if device.estimated_fields:
        fields = ", ".join(device.estimated_fields)
        found.append(
            Notice("DEVICE_ESTIMATED", f"{device.id}: no document states {fields}; estimated by a rule")
        )
    limit = limit_w(device, request.power_limit_w)
    if request.power_limit_w is not None and limit != request.power_limit_w:
        why = "its default limit" if request.power_limit_w > limit else "no less keeps it running"
        found.append(
            Notice(
                "POWER_LIMIT_CHANGED",
                f"a power limit of {request.power_limit_w:g} W counts as {limit:.3g} W on {device.id}: {why}",
            )
        )
    if cluster is not None and request.cluster is None:
        found.append(
            Notice(
                "CLUSTER_ASSUMED",
                f"no cluster given: {cluster.devices_per_node} devices a node over "
                f"{cluster.intra_node.kind}, nodes over {cluster.inter_node.kind}; name yours with --cluster",
            )
        )
    if cluster is not None and not _is_of(cluster, device):
        found.append(
            Notice(
                "CLUSTER_OF_ANOTHER_DEVICE",
                f"cluster {cluster.id} is described with {cluster.device_id}, and the job runs on "
                f"{device.id}: its links may be others; name the cluster of your devices",
            )
        )
    return found


def _is_of(cluster: ClusterSpec, device: DeviceSpec) -> bool:
    names = (device.id, device.name, *device.aliases)
    return normalize_name(cluster.device_id) in {normalize_name(name) for name in names}


def _extrapolations(
    request: PredictionRequest, time: TimeCost, memory: MemoryCost, energy: EnergyCost, device: DeviceSpec
) -> list[Notice]:
    """What of the answer goes beyond the measurements, why, and what that means for its reader."""
    found: list[Notice] = []
    if time.out_of_range_fraction > _NOTABLE_FRACTION:
        if time.unmeasured_fraction > time.out_of_range_fraction / 2:
            why = f"never measured on {device.id} in {request.precision}, but carried over from other devices"
        else:
            why = "of shapes beyond those measured"
        message = f"time: {_percent(time.out_of_range_fraction)} goes to ops {why}; decide by the interval"
        found.append(Notice("TIME_OUT_OF_RANGE", message))
    if memory.out_of_range and request.mode is Mode.INFER:
        message = (
            "peak memory: measured for training only; here it is the tensors and a typical runtime context"
        )
        found.append(Notice("MEMORY_OUT_OF_RANGE", message))
    elif memory.out_of_range:
        message = "peak memory: the model is larger, smaller or of other make than those measured"
        found.append(Notice("MEMORY_OUT_OF_RANGE", f"{message}; leave room above it"))
    if energy.out_of_range:
        message = "power and energy: the job loads the device unlike any that was measured"
        found.append(Notice("POWER_OUT_OF_RANGE", f"{message}; decide by the interval"))
    return found


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}".replace("%", " %")
