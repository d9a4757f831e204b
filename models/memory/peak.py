"""Peak memory of one device: what an allocator reserves for the program, kernels' workspace, the runtime.

    device peak = runtime context + communication buffers + reserved + share * potential

`reserved` comes from the program's lifetimes run through a caching allocator (features/programs/liveness.py);
it holds every tensor, rounding and fragmentation. What it cannot know is the library's choice of kernels:
`potential` is how much more the allocator would hold if every convolution took four times its operands as
workspace, plus a fifth of `reserved` for programs without convolutions. Trees predict the share of that
potential that is used, from dimensionless features of the program. The runtime context (driver, kernels'
code, library handles) is a constant of the training rows' stack on NVIDIA devices, see
`runtime_context_bytes` for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.allocator import MEDIUM_SEGMENT_BYTES
from predictor.features.programs.work import IMAGE_CONVERSION, Convolution, Family, OpWork, Phase, Program
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, TrainedModel
from predictor.models.device_identity import is_known
from predictor.models.memory.allocated import (
    ALLOCATED_LINES,
    AllocatedJob,
    AllocatedModel,
    allocated_features,
)
from predictor.models.memory.bounds import BoundsModel, bound_rows_of
from predictor.models.steps.features import LATEST_VERSION
from predictor.types import Interval
from predictor.units import MIB

FloatArray = NDArray[np.float64]

MODEL_NAME = "memory"
BOOSTER = "workspace_share"
LINES: tuple[str, ...] = (*ALLOCATED_LINES, "allocator_overhead", "runtime_context")
# NCCL keeps buffers and channels per communicator: 4 MiB per channel and protocol is its documented default
# (NCCL_BUFFSIZE); some 32 channels on a node of eight. Analytic: no training row has more than one device.
_COMMUNICATOR_BYTES = 128 * MIB
# Resident set of Python 3.11 with torch 2.13 (CPU build) after a first convolution forward and backward,
# measured on this project's development machine: what a job on host memory holds before any tensor of its
# own.
_HOST_CONTEXT_BYTES = 229 * MIB
# CUDA loads kernels lazily since 11.7, which can leave a context of a few hundred MiB where the training
# rows' stack held 1.7 GiB. No row says how often: away from the measured stack the lower bound allows for it.
_LEAN_CONTEXT_BYTES = 400 * MIB


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Peak memory of one device; `breakdown_bytes` has the keys LINES and sums to `device_peak.value`."""

    device_peak: Interval
    allocator_peak: Interval
    breakdown_bytes: Mapping[str, float]
    out_of_range: bool


FEATURES: tuple[str, ...] = (
    "log_workspace",
    "log_large_workspace",
    "live_share",
    "activation_share",
    "persistent_share",
    "transient_share",
    "log_reserved_over_segment",
    "log_ops",
    "log_batch",
    "log_activation_per_op",
    "largest_tensor",
    "log_distinct_convs",
    "spatial_flops",
    "grouped_flops",
    "pointwise_flops",
    "pointwise_conv",
    "spatial_conv",
    "large_kernel_conv",
    "grouped_conv",
    "depthwise_conv",
    "few_channel_conv",
    "conv_traffic",
    "depthwise_traffic",
    "matmul_traffic",
    "attention_traffic",
    "normalization_traffic",
    "elementwise_traffic",
    "pooling_traffic",
    "copy_traffic",
)
_CONV_CLASSES = FEATURES[15:21]


_PLAIN_POTENTIAL = 0.2
_SHARE_RANGE = (-0.5, 2.5)


def workspace_potential_bytes(program: Program) -> float:
    """What `share` is a share of."""
    memory = program.memory
    more = max(0, memory.large_workspace_reserved_bytes - memory.reserved_bytes)
    return more + _PLAIN_POTENTIAL * memory.reserved_bytes


def trains(program: Program) -> bool:
    """Whether the program has a backward pass."""
    return any(op.work.phase is Phase.BACKWARD for op in program.ops)


def memory_features(program: Program, forward: ForwardWork | None = None) -> FloatArray:
    """One row in the order of FEATURES: shares and ratios of the program's own bytes.

    `forward` stands for what the program's own ops say.
    """
    memory = program.memory
    reserved = max(1, memory.reserved_bytes)
    persistent = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_state_bytes
    ops = max(1, sum(op.work.kind != IMAGE_CONVERSION for op in program.ops))
    forward = forward or forward_work(program)
    traffic = max(1.0, fsum(forward.traffic.values()))
    flops = max(1.0, fsum(forward.flops.values()))

    def share(*families: str) -> float:
        return fsum(forward.traffic.get(family, 0.0) for family in families) / traffic

    values = [
        log(max(1, memory.workspace_reserved_bytes) / reserved),
        log(max(1, memory.large_workspace_reserved_bytes) / reserved),
        memory.live_peak_bytes / reserved,
        memory.activation_bytes / reserved,
        persistent / reserved,
        memory.transient_bytes / reserved,
        log(reserved / MEDIUM_SEGMENT_BYTES),
        log(ops),
        log(max(1, program.batch)),
        log(max(1.0, memory.activation_bytes / ops / MIB)),
        forward.largest_write_bytes / reserved,
        log(1 + forward.distinct_convs),
        *(
            forward.flops.get(name, 0.0) / flops
            for name in ("spatial_conv", "grouped_conv", "pointwise_conv")
        ),
        *(forward.largest_conv.get(name, 0.0) / reserved for name in _CONV_CLASSES),
        share(Family.CONVOLUTION),
        share("depthwise_conv"),
        share(Family.MATMUL, Family.BATCHED_MATMUL),
        share(Family.ATTENTION, Family.SOFTMAX),
        share(Family.NORMALIZATION),
        share(Family.ELEMENTWISE, Family.REDUCTION),
        share(Family.POOLING),
        share(Family.COPY, Family.GATHER),
    ]
    return np.array(values)


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """Of the forward ops: bytes by family, FLOPs and the largest operands by kind of convolution."""

    traffic: Mapping[str, float]
    flops: Mapping[str, float]
    largest_conv: Mapping[str, float]
    largest_write_bytes: float
    distinct_convs: int


def mixed_forward(parts: Sequence[ForwardWork], weights: FloatArray) -> ForwardWork:
    """The sum of `parts`, each times its weight: forward work at a size between theirs."""

    def mix(name: str) -> dict[str, float]:
        tables = [getattr(part, name) for part in parts]
        return {
            key: max(
                0.0, float(sum(w * table.get(key, 0.0) for w, table in zip(weights, tables, strict=True)))
            )
            for key in tables[0]
        }

    sizes = np.array([part.largest_write_bytes for part in parts])
    return ForwardWork(
        mix("traffic"),
        mix("flops"),
        mix("largest_conv"),
        max(0.0, float(weights @ sizes)),
        parts[0].distinct_convs,
    )


def forward_work(program: Program) -> ForwardWork:
    """Summed over the program's forward ops."""
    traffic: dict[str, float] = {}
    flops: dict[str, float] = {}
    largest: dict[str, float] = {}
    written = 0
    convs: set[OpWork] = set()
    for op in program.ops:
        work = op.work
        if work.phase is not Phase.FORWARD or work.kind == IMAGE_CONVERSION:
            continue
        family: str = work.family
        kind = family
        if isinstance(work.shape, Convolution):
            kind = _conv_class(work.shape)
            convs.add(work)
            largest[kind] = max(largest.get(kind, 0.0), float(_operand_bytes(work)))
            if kind == "depthwise_conv":
                family = kind
        written = max(written, work.write_bytes)
        traffic[family] = traffic.get(family, 0.0) + work.moved_bytes
        flops[kind] = flops.get(kind, 0.0) + work.flops
    return ForwardWork(traffic, flops, largest, written, len(convs))


def _operand_bytes(work: OpWork) -> int:
    return work.moved_bytes - work.parameter_bytes


def _conv_class(shape: Convolution) -> str:
    if shape.groups > 1:
        return "depthwise_conv" if shape.groups == shape.in_channels else "grouped_conv"
    if max(shape.kernel, default=1) == 1:
        return "pointwise_conv"
    if shape.in_channels <= 4:
        return "few_channel_conv"
    return "spatial_conv" if max(shape.kernel) == 3 else "large_kernel_conv"


class MemoryModel:
    """Peak memory of a program on any device."""

    def __init__(
        self,
        params: Mapping[str, Any],
        booster: Any,
        allocated: AllocatedModel | None = None,
        bounds: BoundsModel | None = None,
    ) -> None:
        """`allocated` corrects jobs under plans; without it they are judged by single devices' jobs.

        `bounds` says which jobs run that would take more with room to spare.
        """
        self._booster = booster
        self._allocated = allocated
        self._bounds = bounds
        self.context_bytes = float(params["context_bytes"])
        self._low = np.array(params["feature_low"], dtype=np.float64)
        self._high = np.array(params["feature_high"], dtype=np.float64)
        self._devices = np.array(params["devices"], dtype=np.float64)
        self._spread: Mapping[str, float] = params["log_spread"]

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> MemoryModel:
        """The memory model of a bundle. Raises InvalidBundle when it holds none."""
        booster = bundle.booster(MODEL_NAME, BOOSTER)
        bounds = BoundsModel.from_bundle(bundle, FEATURES)
        return cls(bundle.params(MODEL_NAME), booster, AllocatedModel.from_bundle(bundle), bounds)

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> MemoryModel:
        """A model straight from training, without a bundle on disk."""
        return cls(trained.params, load_booster(trained.boosters[BOOSTER]))

    def device_peaks(
        self, features: FloatArray, reserved_bytes: FloatArray, potential_bytes: FloatArray
    ) -> FloatArray:
        """(n,) peaks of training jobs on one device.

        Args:
            features: (n, len(FEATURES)) rows of `memory_features`.
            reserved_bytes: (n,) `MemoryWork.reserved_bytes`.
            potential_bytes: (n,) `workspace_potential_bytes`.
        """
        share = self._booster.inplace_predict(features.astype(np.float32)).astype(np.float64)
        peaks: FloatArray = (
            self.context_bytes + reserved_bytes + np.clip(share, *_SHARE_RANGE) * potential_bytes
        )
        return peaks

    def predict(
        self,
        program: Program,
        device: DeviceSpec,
        replicas: int = 1,
        forward: ForwardWork | None = None,
    ) -> MemoryEstimate:
        """Peak of one device when `replicas` of them share the global batch (`program` is one replica's).

        Without a backward pass nothing was measured: the allocator's figure stands uncorrected, the
        interval is the one of an unknown situation and `out_of_range` is set.
        """
        memory = program.memory
        training = trains(program)
        row = memory_features(program, forward)
        reserved = self._reserved_bytes(program, row, training)
        buffers = self._communication_bytes(program, replicas)
        context = self.runtime_context_bytes(device)
        value = context + buffers + reserved
        known = training and is_known(device, self._devices)
        spread = self._spread["known_device" if known else "new_device"]
        peak = _around(value, spread)
        if not known:
            peak = replace(peak, low=peak.low - max(0.0, context - _LEAN_CONTEXT_BYTES) * exp(-spread))
        live = min(float(memory.live_peak_bytes), reserved)
        outside = bool(((row < self._low) | (row > self._high)).any())
        lines = self._lines(program, reserved, buffers)
        return MemoryEstimate(
            device_peak=_above_weights(peak, lines, min(context, _LEAN_CONTEXT_BYTES)),
            allocator_peak=_above_weights(_around(live + buffers, spread), lines),
            breakdown_bytes={**lines, "runtime_context": context},
            out_of_range=outside or not training,
        )

    def chance_to_run(
        self,
        program: Program,
        device: DeviceSpec,
        capacity_bytes: float,
        replicas: int = 1,
        framework: float = LATEST_VERSION,
        forward: ForwardWork | None = None,
    ) -> float | None:
        """Chance that a training job whose batch runs whole fits; None where no job like it was seen.

        Args:
            framework: version as major + minor / 100. Else as `predict`.
        """
        memory = program.memory
        training = trains(program)
        if self._bounds is None or not training or device.kind.is_host:
            return None
        if not self._bounds.knows(capacity_bytes):
            return None
        room = capacity_bytes - self._communication_bytes(program, replicas)
        if room <= memory.live_peak_bytes:
            return 0.0
        numbers = (workspace_potential_bytes(program), float(memory.reserved_bytes), framework)
        potential, reserved, version = (np.array([number]) for number in numbers)
        row = bound_rows_of(memory_features(program, forward)[None, :], potential, reserved, version)[0]
        return self._bounds.chance(row, float(memory.reserved_bytes), room)

    def _reserved_bytes(self, program: Program, row: FloatArray, training: bool) -> float:
        """What the allocator holds for the program run as a whole."""
        memory = program.memory
        if not training:
            return float(memory.workspace_reserved_bytes)
        plain, potential = float(memory.reserved_bytes), workspace_potential_bytes(program)
        peaks = self.device_peaks(row[None, :], np.array([plain]), np.array([potential]))
        # No choice of kernels makes the tensors themselves smaller.
        return max(float(peaks[0]) - self.context_bytes, float(memory.live_peak_bytes))

    def predict_stage(
        self,
        program: Program,
        device: DeviceSpec,
        lines: Mapping[str, float],
        communicators: int,
        job: AllocatedJob | None = None,
    ) -> MemoryEstimate:
        """Peak of a device that runs `program` in parts, or holds shards of its tensors.

        Args:
            program: one microbatch of the rank, whole: what its allocator holds beyond its tensors is taken
                to grow with the tensors.
            lines: bytes of tensors at the peak by name of LINES.
            communicators: groups of ranks that exchange something.
            job: what the correction of such jobs sees; without it they stay as their tensors are.
        """
        live = float(sum(lines.values()))
        buffers = float(communicators * _COMMUNICATOR_BYTES)
        context = self.runtime_context_bytes(device)
        if self.corrects_plans(program):
            allocated, overhead, workspace, outside = self._corrected(live, job)
        else:
            allocated, overhead, workspace = self._beyond(program, live)
            outside = True
        found = dict.fromkeys(LINES, 0.0)
        for name, size in lines.items():
            found[name] += float(size)
        found["allocator_overhead"] += overhead
        found["workspace"] += workspace
        found["communication_buffers"] += buffers
        found["runtime_context"] += context
        spread = self._spread["new_device"]
        peak = _around(sum(found.values()), spread)
        peak = replace(peak, low=peak.low - max(0.0, context - _LEAN_CONTEXT_BYTES) * exp(-spread))
        return MemoryEstimate(
            device_peak=_above_weights(peak, found, min(context, _LEAN_CONTEXT_BYTES)),
            allocator_peak=_above_weights(allocated, found),
            breakdown_bytes=found,
            out_of_range=outside,
        )

    def corrects_plans(self, program: Program) -> bool:
        """Training without convolutions, by a bundle that knows such jobs under plans."""
        convolves = any(isinstance(op.work.shape, Convolution) for op in program.ops)
        return self._allocated is not None and trains(program) and not convolves

    def _corrected(self, live: float, job: AllocatedJob | None) -> tuple[Interval, float, float, bool]:
        """What is allocated, bytes that are reserved beyond it, workspace in it, and whether the job is new.

        The tensors are there whatever the correction says.
        """
        assert self._allocated is not None
        if job is None:
            return _around(live, self._spread["new_device"]), 0.0, 0.0, True
        handed, reserved = (replace(job, device_level=level) for level in (False, True))
        factor, interval = self._allocated.predict(handed)
        factor = max(1.0, factor)
        beyond = max(factor, self._allocated.predict(reserved)[0])
        ratio = factor * live / interval.value
        outside = not self._allocated.is_like_training(allocated_features(handed))
        return interval.scaled(ratio), (beyond - factor) * live, (factor - 1.0) * live, outside

    def _beyond(self, program: Program, live: float) -> tuple[Interval, float, float]:
        """What is allocated, fragmentation, and workspace, as the program has them when run whole."""
        training = trains(program)
        whole = max(1.0, float(program.memory.live_peak_bytes))
        reserved = self._reserved_bytes(program, memory_features(program), training)
        beyond = max(0.0, reserved / whole - 1.0) * live
        rounding = min(beyond, max(0.0, program.memory.reserved_bytes / whole - 1.0) * live)
        return _around(live, self._spread["new_device"]), rounding, beyond - rounding

    def runtime_context_bytes(self, device: DeviceSpec) -> float:
        """What the runtime holds before the first tensor.

        Fitted on an NVIDIA data-center card and taken for all of that vendor; measured for jobs in host
        memory; elsewhere a lean context stands in, for want of any measurement.
        """
        if device.kind.is_host:
            return _HOST_CONTEXT_BYTES
        return self.context_bytes if device.vendor == "NVIDIA" else _LEAN_CONTEXT_BYTES

    def _communication_bytes(self, program: Program, replicas: int) -> float:
        """The flat copy of all gradients that torch DDP keeps in buckets, and the communicator's buffers."""
        if replicas <= 1:
            return 0.0
        return float(program.memory.gradient_bytes + _COMMUNICATOR_BYTES)

    def _lines(self, program: Program, reserved: float, buffers: float) -> dict[str, float]:
        """Splits `reserved` into lines: the tensors by what they are, then workspace, the rest is overhead.

        The correction is mostly workspace: what it adds goes there. Where it makes `reserved` smaller than
        the tensors it holds at once, activations give way first.
        """
        memory = program.memory
        wanted = {
            "parameters": float(memory.parameter_bytes + memory.buffer_bytes),
            "optimizer_state": float(memory.optimizer_state_bytes),
            # Those that exist at the peak: what is left of it.
            "gradients": float(
                min(
                    memory.gradient_bytes,
                    max(
                        0,
                        memory.live_peak_bytes
                        - (memory.parameter_bytes + memory.buffer_bytes + memory.optimizer_state_bytes)
                        - (memory.activation_bytes + memory.input_bytes + memory.transient_bytes),
                    ),
                )
            ),
            "activations": float(memory.activation_bytes + memory.input_bytes),
            "workspace": float(memory.transient_bytes),
        }
        lines = dict.fromkeys(LINES, 0.0)
        left = reserved
        for name in ("parameters", "optimizer_state", "activations", "gradients", "workspace"):
            lines[name] = min(left, wanted[name])
            left -= lines[name]
        library = max(0.0, reserved - memory.reserved_bytes)
        lines["workspace"] += min(left, library)
        lines["allocator_overhead"] = left - min(left, library)
        lines["communication_buffers"] = buffers
        return lines


def _around(value: float, log_spread: float) -> Interval:
    return Interval(value, value * exp(-log_spread), value * exp(log_spread))


def _above_weights(peak: Interval, lines: Mapping[str, float], context_bytes: float = 0.0) -> Interval:
    """`peak` with a lower bound that holds the weights and the optimizer's state, which never leave."""
    least = lines["parameters"] + lines["optimizer_state"] + context_bytes
    return replace(peak, low=max(peak.low, min(least, peak.value)))
