"""What a prediction's reader should know beside the numbers, as codes and sentences."""

from __future__ import annotations

from predictor.compose.energy import EnergyCost
from predictor.compose.memory import MemoryCost
from predictor.compose.time import TimeCost
from predictor.features.programs.work import Program
from predictor.hardware.catalog import normalize_name
from predictor.hardware.spec import ClusterSpec, DeviceKind, DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.power.board_power import limit_w
from predictor.request import PredictionRequest
from predictor.types import SURELY_FITS, Mode, Notice, Runtime, Trainer
from predictor.units import format_bytes

NOTABLE_FRACTION = 0.02
"""Shares of the time below this are not worth a warning."""

_NOTABLE_WAIT = 0.1
"""Share of the time that waits for the host of a framework which nobody named."""

_MUCH_FASTER = 4.0
_WIDE = frozenset({"fp64", "fp32", "tf32"})

_UNMEASURED_RUNTIMES = frozenset({Runtime.ONNXRUNTIME, Runtime.TENSORRT})


def notices(
    request: PredictionRequest,
    program: Program,
    time: TimeCost,
    memory: MemoryCost,
    energy: EnergyCost,
    device: DeviceSpec,
    cluster: ClusterSpec | None,
) -> list[Notice]:
    """Everything about the answer that its reader should know, most basic first."""
    found: list[Notice] = list(program.notes)
    if request.mode is Mode.TRAIN and not program.gradients:
        found.append(
            Notice(
                "NOTHING_TO_TRAIN",
                "the graph has no trainable parameter: training it is a forward pass; "
                "was it exported with folded or quantised weights?",
            )
        )
    if reason := _unmeasured_runtime(request):
        found.append(Notice("RUNTIME_UNMEASURED", f"runtime {request.runtime.value}: {reason}"))
    unknown = sorted({op.op_type for op in program.ops if not op.covered})
    if unknown:
        found.append(
            Notice(
                "OP_FALLBACK",
                f"no work rule for {', '.join(unknown)}: priced by bytes moved, "
                f"{_percent(time.coverage.fallback)} of the time; to add one: docs/how-to/add-an-op.md",
            )
        )
    found += _missing_units(program, device)
    found += _extrapolations(request, time, memory, energy, device)
    waits = time.breakdown_s["host_launch"] / time.iteration.value if time.iteration.value else 0.0
    trains_eagerly = request.mode is Mode.TRAIN and request.runtime is Runtime.EAGER
    assumed = request.trainer is Trainer.AUTO and request.runs_framework
    if assumed and trains_eagerly and waits > _NOTABLE_WAIT:
        found.append(
            Notice(
                "TRAINER_ASSUMED",
                f"{_percent(waits)} of the time waits for the host, as Megatron-LM's modules make it; "
                "--trainer torch prices torch's own",
            )
        )
    if not memory.fits:
        found.append(
            Notice(
                "DOES_NOT_FIT",
                f"needs {format_bytes(memory.device_peak.value)} of "
                f"{format_bytes(memory.capacity_bytes)} usable on {device.id}"
                f"{_chance(memory)}: lower the batch or split over more devices",
            )
        )
    elif memory.fit_probability < SURELY_FITS:
        found.append(
            Notice(
                "MAY_NOT_FIT",
                f"may not fit in {format_bytes(memory.capacity_bytes)} usable on {device.id}"
                f"{_chance(memory)}: the peak may be up to {format_bytes(memory.device_peak.high)}",
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


def _unmeasured_runtime(request: PredictionRequest) -> str:
    if request.runtime in _UNMEASURED_RUNTIMES:
        return (
            "what it fuses follows its documentation, and its launch times are assumptions; no measurement "
            "here is of it"
        )
    if request.runtime is Runtime.COMPILED and request.precedes_torch_2:
        return f"torch {request.framework_version} has no compiler; name --torch 2.0 or later"
    return ""


def _chance(memory: MemoryCost) -> str:
    """How likely the job runs, where that is in doubt."""
    percent = round(100 * memory.fit_probability)
    return f" (runs with {percent} % chance)" if 0 < percent < 100 else ""


def _is_of(cluster: ClusterSpec, device: DeviceSpec) -> bool:
    names = (device.id, device.name, *device.aliases)
    return normalize_name(cluster.device_id) in {normalize_name(name) for name in names}


def _missing_units(program: Program, device: DeviceSpec) -> list[Notice]:
    """Types of products for which no document states units, where another type is far faster."""
    rates = device.matrix_flops_per_s
    best = max(rates, key=lambda kind: rates[kind], default="")
    found: list[Notice] = []
    for kind in sorted({op.work.compute.value for op in program.ops if op.work.matrix_flops}):
        # GPUs run 32 bits on plain pipelines, as everybody knows; TF32 allows rounding and forces none.
        expected = device.kind is DeviceKind.GPU and kind in _WIDE
        peak = matrix_peak(device, kind)
        if expected or peak > device.vector_flops_per_s or _MUCH_FASTER * peak > rates.get(best, 0.0):
            continue
        found.append(
            Notice(
                "NO_MATRIX_UNITS",
                f"{device.id}: no document states matrix units for {kind}, so its products run on FP32 "
                f"pipelines; the board is far faster in {', '.join(sorted(rates.keys() - _WIDE))}",
            )
        )
    return found


def _extrapolations(
    request: PredictionRequest, time: TimeCost, memory: MemoryCost, energy: EnergyCost, device: DeviceSpec
) -> list[Notice]:
    """What of the answer goes beyond the measurements, why, and what that means for its reader."""
    found: list[Notice] = []
    if time.out_of_range_fraction > NOTABLE_FRACTION:
        new = time.unmeasured_fraction
        reasons = {
            f"never measured on {device.id} in {request.precision}, but carried over from other devices": new,
            "of shapes beyond those measured": time.out_of_range_fraction - new,
        }
        parts = [f"{_percent(share)} goes to ops {why}" for why, share in reasons.items() if share > 0.005]
        found.append(Notice("TIME_OUT_OF_RANGE", f"time: {', '.join(parts)}; decide by the interval"))
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
