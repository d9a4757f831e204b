"""Efficiencies by kind of work: the log-linear model that the aggregate booster starts from.

    log multiplier(op) = sum over EFFECTS of w[effect, class and phase, level of the job]
                         + device effect[kind] + slope[class and phase] * log(learned / floor)
                         + source effect

so that the time of an iteration is sum(floor * multiplier). Weights are shrunk to zero (the slope to 1: the
op-level model is believed until timings disagree). Device effects are a Gaussian process over specifications:
a device that nobody timed takes the effects of its likes, and none where there are none. What a publisher's
harness adds to all of its timings is a source effect: fitted so that nothing else has to explain it, and left
out of answers. Fitted by damped Gauss-Newton on log times, robust to outliers (pseudo-Huber).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import UnknownDevice
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.catalog import find_device, list_devices
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.device_identity import device_numbers, is_known
from predictor.models.steps.features import CLASSES, JobContext
from predictor.models.steps.harness import Harness
from predictor.types import Layout, Mode, Precision, Runtime

KIND = "log_linear"
PHASE_COUNT = 3
GROUP_COUNT = len(CLASSES) * PHASE_COUNT
"""Classes of work by phase."""

_VERSION_STEPS = (1.115, 1.5, 2.035)
EFFECTS: Mapping[str, tuple[int, float]] = {
    "base": (1, 10.0),
    "precision": (3, 2.0),
    "compiled": (2, 2.0),
    "training": (2, 2.0),
    "layout": (2 * (len(_VERSION_STEPS) + 1), 3.0),
}
"""Effect -> (levels, strength of the pull to zero, in iterations whose time is all of one class)."""
LOG_LOWEST, LOG_HIGHEST = -1.5, 2.5
"""Bounds of the log multiplier that the booster starts from."""

Levels = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PricedOps:
    """n ops as a prior sees them.

    Attributes:
        group: (n,) class and phase, as `groups`. floor_s: (n,) floor of all runs.
        log_learned: (n,) log of the op-level prediction over the floor.
        parts: (n, 4) of all runs, as features.parts.
    """

    group: Levels
    floor_s: FloatArray
    log_learned: FloatArray
    parts: FloatArray

    def take(self, rows: slice) -> PricedOps:
        """Some of them."""
        return PricedOps(self.group[rows], self.floor_s[rows], self.log_learned[rows], self.parts[rows])


def levels(job: JobContext) -> tuple[int, ...]:
    """Level of each effect, in the order of EFFECTS."""
    precision = {Precision.FP32: 0, Precision.TF32: 1}.get(job.precision, 2)
    version = int(np.digitize(job.framework_version, _VERSION_STEPS))
    # Compilers lay images channels-last, whatever they are given.
    last = job.layout is Layout.NHWC or job.runtime is not Runtime.EAGER
    layout = int(last) * (len(_VERSION_STEPS) + 1) + version
    return 0, precision, int(job.runtime is not Runtime.EAGER), int(job.mode is Mode.TRAIN), layout


_KIND_OF_CLASS: Mapping[str, str] = {
    **{name: "product" for name in CLASSES if name.startswith(("linear", "bmm"))},
    **{name: "convolution" for name in CLASSES if name.endswith("conv") or "conv_" in name},
    **{name: "grouped" for name in CLASSES if name.startswith(("grouped", "few_groups", "depthwise"))},
    "attention": "attention",
    **dict.fromkeys(("batch_norm", "layer_norm", "group_norm", "norm_sums", "softmax", "reduction"), "rows"),
    "recurrent": "recurrent",
}
DEVICE_KINDS = ("product", "convolution", "grouped", "attention", "rows", "recurrent", "traffic")
"""Coarser kinds of work, in which devices differ."""
DEVICE_KIND = np.repeat(
    [DEVICE_KINDS.index(_KIND_OF_CLASS.get(name, "traffic")) for name in CLASSES], PHASE_COUNT
)
"""(GROUP_COUNT,) index into DEVICE_KINDS."""


# Specifications, scaled so that a distance of 1 halves what one device says about another.
_LENGTHS = (0.7, 0.7, 0.7, 0.9, 1.2)
_SAME_ARCHITECTURE, _OTHER_ARCHITECTURE = 1.0, 0.6
_KINSHIP, _OTHER_BOARDS = 0.95, 0.6
_RATIO_LENGTHS = (1.0, 1.5, 2.5, 6.0)
SAME_DEVICE = 0.02
"""Specifications nearer than this are one device."""


def specification(device: DeviceSpec) -> tuple[float, ...]:
    """(5,) logs over their length scales: vector and FP16 rates, bandwidth, cores, cache."""
    cache = device.l2_bytes or 32 * 1024 * device.core_count
    values = (
        device.vector_flops_per_s,
        matrix_peak(device, "fp16"),
        device.memory_bytes_per_s,
        device.core_count,
        cache,
    )
    return tuple(float(np.log(value) / length) for value, length in zip(values, _LENGTHS, strict=True))


_CONSUMER = re.compile(r"^(gtx|rtx)-\d+(?!.*max-q)")


def is_consumer_board(device: DeviceSpec) -> bool:
    """Whether a board is a desktop GeForce.

    Its clocks run above their rating, and its tensor cores at half their rate; boards for servers and
    workstations are rated at a clock that they seldom exceed.
    """
    return _CONSUMER.match(_catalogue_id(device)) is not None


def _catalogue_id(device: DeviceSpec) -> str:
    """What the catalogue calls these numbers; the device's own id where it has none such."""
    numbers = np.array([device_numbers(device)])
    with suppress(UnknownDevice):
        # One file is read where the name is the catalogue's, all of them where it is not.
        named = find_device(device.id)
        if is_known(named, numbers):
            return named.id
    return next((board.id for board in list_devices() if is_known(board, numbers)), device.id)


def _ratios(apart: FloatArray, clock: FloatArray) -> FloatArray:
    """(d, 4) what separates devices, from differences of `specification` (d, 5) and of log clocks (d,).

    Not how large they are but how they are made: tensor and vector rate of a core and cycle, arithmetic
    beside memory, and, little, cache beside cores.
    """
    vector, tensor, memory, cores, cache = (apart * np.array(_LENGTHS)).T
    return (
        np.stack(
            [tensor - cores - clock, vector - cores - clock, vector - memory, cache - cores],
            axis=1,
        )
        / _RATIO_LENGTHS
    )


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """Known devices, as specifications (d, 5), vendors and architectures."""

    specifications: FloatArray
    vendors: tuple[str, ...]
    architectures: tuple[str, ...]
    consumer: tuple[bool, ...] | None = None
    log_clocks: tuple[float, ...] = ()

    @classmethod
    def of(cls, devices: Sequence[DeviceSpec]) -> DeviceKernel:
        """The kernel over training devices."""
        return cls(
            np.array([specification(device) for device in devices]).reshape(len(devices), len(_LENGTHS)),
            tuple(device.vendor for device in devices),
            tuple(device.architecture for device in devices),
            tuple(is_consumer_board(device) for device in devices),
            tuple(float(np.log(device.clock_hz)) for device in devices),
        )

    def likeness(self, device: DeviceSpec) -> FloatArray:
        """(d,) correlation of a device's effects with those of each known device, 1 for itself."""
        apart = self.specifications - np.array(specification(device))
        vendor = np.array([name == device.vendor for name in self.vendors], dtype=np.float64)
        kin = np.array([name == device.architecture for name in self.architectures])
        if self.consumer is None:
            factor = np.where(kin, _SAME_ARCHITECTURE, _OTHER_ARCHITECTURE)
        else:
            apart = _ratios(apart, np.array(self.log_clocks) - np.log(device.clock_hz))
            alike = np.array(self.consumer) == is_consumer_board(device)
            factor = np.where(kin, 1.0, _KINSHIP) * np.where(alike, 1.0, _OTHER_BOARDS)
        return np.asarray(vendor * factor * np.exp(-0.5 * np.square(apart).sum(axis=1)), dtype=np.float64)

    def holds(self, device: DeviceSpec) -> bool:
        """Whether a device of the same specifications is among them."""
        return self.place(device) is not None

    def place(self, device: DeviceSpec) -> int | None:
        """Which of them has the same specifications."""
        distance = np.abs(self.specifications - np.array(specification(device))).max(axis=1, initial=0.0)
        for i, (near, vendor) in enumerate(zip(distance, self.vendors, strict=True)):
            if near < SAME_DEVICE and vendor == device.vendor:
                return i
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "specifications": self.specifications.tolist(),
            "vendors": list(self.vendors),
            "architectures": list(self.architectures),
            "consumer": self.consumer,
            "log_clocks": list(self.log_clocks),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceKernel:
        """Inverse of `to_json`."""
        return cls(
            np.array(data["specifications"], dtype=np.float64).reshape(-1, len(_LENGTHS)),
            tuple(data["vendors"]),
            tuple(data["architectures"]),
            None if data.get("consumer") is None else tuple(map(bool, data["consumer"])),
            tuple(map(float, data.get("log_clocks", ()))),
        )


@dataclass(frozen=True, slots=True)
class Prior:
    """Weights by class and phase.

    Attributes:
        effects: (GROUP_COUNT, all levels of all effects). device: (DEVICE_KINDS, devices).
        slope: (GROUP_COUNT, 2): of 32-bit jobs and of others.
        kernel, inverse: the devices, and the inverse of their likenesses (d, d).
        harness: what each source's way of timing adds.
    """

    effects: FloatArray
    device: FloatArray
    slope: FloatArray
    kernel: DeviceKernel
    inverse: FloatArray
    harness: Harness

    def device_effect(self, device: DeviceSpec) -> FloatArray:
        """(GROUP_COUNT,) effects of any device."""
        if not len(self.inverse):
            return np.zeros(GROUP_COUNT)
        by_kind = self.device @ (self.inverse @ self.kernel.likeness(device))
        return np.asarray(by_kind[DEVICE_KIND], dtype=np.float64)

    def holds(self, device: DeviceSpec) -> bool:
        """Whether iterations on such a device were trained on."""
        return self.kernel.holds(device)

    def log_multiplier(self, ops: PricedOps, job: JobContext, device: DeviceSpec) -> FloatArray:
        """(n,) of ops of one job."""
        columns = effect_columns(np.array([levels(job)]))[0]
        level = self.effects[:, columns].sum(axis=1) + self.device_effect(device)
        slope = self.slope[:, slope_column(job)]
        found = level[ops.group] + slope[ops.group] * ops.log_learned
        return np.asarray(np.clip(found, LOG_LOWEST, LOG_HIGHEST), dtype=np.float64)

    def to_json(self) -> dict[str, Any]:
        """Plain values, rounded: a multiplier needs no more than four digits."""
        return {
            "kind": KIND,
            "effects": np.round(self.effects, 5).tolist(),
            "device": np.round(self.device, 5).tolist(),
            "slope": np.round(self.slope, 5).tolist(),
            "kernel": self.kernel.to_json(),
            "inverse": self.inverse.tolist(),
            "harness": self.harness.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prior:
        """Inverse of `to_json`."""
        kernel = DeviceKernel.from_json(data["kernel"])
        count = len(kernel.vendors)
        return cls(
            np.array(data["effects"], dtype=np.float64),
            np.array(data["device"], dtype=np.float64).reshape(len(DEVICE_KINDS), count),
            np.array(data["slope"], dtype=np.float64),
            kernel,
            np.array(data["inverse"], dtype=np.float64).reshape(count, count),
            Harness.from_json(data.get("harness", {})),
        )


def groups(class_code: Levels, phase: NDArray[Any]) -> Levels:
    """(n,) class and phase as one number."""
    return np.asarray(class_code * PHASE_COUNT + phase.astype(np.intp), dtype=np.intp)


def effect_columns(level: Levels) -> Levels:
    """(r, effects) columns of `Prior.effects` for levels (r, effects)."""
    starts = np.cumsum([0, *(count for count, _ in EFFECTS.values())])[:-1]
    return np.asarray(level + starts, dtype=np.intp)


def slope_column(job: JobContext) -> int:
    """Which slope a job takes: that of 32-bit arithmetic, or of less."""
    return 0 if job.precision in (Precision.FP32, Precision.FP64) else 1
