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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak
from predictor.models.aggregate_features import CLASSES, JobContext
from predictor.models.aggregate_total import Total
from predictor.types import Layout, Mode, Precision, Runtime

KIND = "log_linear"
PHASE_COUNT = 3
GROUP_COUNT = len(CLASSES) * PHASE_COUNT
"""Classes of work by phase."""

_VERSION_STEPS = (1.115, 1.5, 2.035)
EFFECTS: Mapping[str, tuple[int, float]] = {
    "base": (1, 0.2),
    "precision": (3, 2.0),
    "compiled": (2, 2.0),
    "training": (2, 2.0),
    "layout": (2 * (len(_VERSION_STEPS) + 1), 3.0),
}
"""Effect -> (levels, strength of the pull to zero, in iterations whose time is all of one class)."""
_BASE_LOG = 0.2
_DEVICE_PULL, _SLOPE_PULL, _SOURCE_PULL, _PINNED = 6.0, 5.0, 20.0, 1e9
REFERENCES = frozenset({"timm_benchmarks", "neusight-cells", "neusight", "aiconfigurator-ops", "profiles"})
"""Sources that time nothing but the device's work, by its own clock: they have no harness effect."""
LOG_LOWEST, LOG_HIGHEST = -1.5, 2.5
"""Bounds of the log multiplier that the booster starts from."""

Levels = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PricedOps:
    """n ops as a prior sees them.

    Attributes:
        group: (n,) class and phase, as `groups`. floor_s: (n,) floor of all runs.
        log_learned: (n,) log of the op-level prediction over the floor.
        parts: (n, 4) of all runs, as aggregate_features.parts.
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
    layout = int(job.layout is Layout.NHWC) * (len(_VERSION_STEPS) + 1) + version
    return 0, precision, int(job.runtime is not Runtime.EAGER), int(job.mode is Mode.TRAIN), layout


_KIND_OF_CLASS: Mapping[str, str] = {
    **{name: "product" for name in CLASSES if name.startswith(("linear", "bmm"))},
    **{name: "convolution" for name in CLASSES if name.endswith("conv") or "conv_" in name},
    **{name: "grouped" for name in CLASSES if name.startswith(("grouped", "depthwise"))},
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


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """Known devices, as specifications (d, 5), vendors and architectures."""

    specifications: FloatArray
    vendors: tuple[str, ...]
    architectures: tuple[str, ...]

    @classmethod
    def of(cls, devices: Sequence[DeviceSpec]) -> DeviceKernel:
        """The kernel over training devices."""
        return cls(
            np.array([specification(device) for device in devices]).reshape(len(devices), len(_LENGTHS)),
            tuple(device.vendor for device in devices),
            tuple(device.architecture for device in devices),
        )

    def likeness(self, device: DeviceSpec) -> FloatArray:
        """(d,) correlation of a device's effects with those of each known device, 1 for itself."""
        squares = np.square(self.specifications - np.array(specification(device))).sum(axis=1)
        vendor = np.array([name == device.vendor for name in self.vendors], dtype=np.float64)
        kin = np.array([name == device.architecture for name in self.architectures])
        factor = np.where(kin, _SAME_ARCHITECTURE, _OTHER_ARCHITECTURE)
        return np.asarray(vendor * factor * np.exp(-0.5 * squares), dtype=np.float64)

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
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceKernel:
        """Inverse of `to_json`."""
        return cls(
            np.array(data["specifications"], dtype=np.float64).reshape(-1, len(_LENGTHS)),
            tuple(data["vendors"]),
            tuple(data["architectures"]),
        )


@dataclass(frozen=True, slots=True)
class Prior:
    """Weights by class and phase.

    Attributes:
        effects: (GROUP_COUNT, all levels of all effects). device: (DEVICE_KINDS, devices).
        slope: (GROUP_COUNT, 2): of 32-bit jobs and of others.
        kernel, inverse: the devices, and the inverse of their likenesses (d, d).
        sources: log factor of each source's harness.
    """

    effects: FloatArray
    device: FloatArray
    slope: FloatArray
    kernel: DeviceKernel
    inverse: FloatArray
    sources: Mapping[str, float]

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
            "sources": {name: round(value, 5) for name, value in self.sources.items()},
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
            {name: float(value) for name, value in data["sources"].items()},
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


@dataclass(frozen=True, slots=True)
class PriorRows:
    """What a fit needs: r iterations, n ops.

    Attributes:
        row: (n,) iteration of each op. group: (n,). floor_s, log_learned: (n,).
        log_time, weight: (r,). level: (r, effects). slope: (r,) column.
        device, source: (r,) index into `devices` and `sources`.
    """

    row: Levels
    group: Levels
    floor_s: FloatArray
    log_learned: FloatArray
    log_time: FloatArray
    weight: FloatArray
    level: Levels
    slope: Levels
    device: Levels
    devices: tuple[DeviceSpec, ...]
    source: Levels
    sources: tuple[str, ...]


_ROUNDS = 8
_HUBER = 0.3


def fit_prior(rows: PriorRows, total: Total) -> Prior:
    """Fits all weights; `total` composes op times into that of an iteration."""
    design = _Design(rows)
    weights = design.start()
    for _ in range(_ROUNDS):
        log_m = design.log_multiplier(weights)
        shares, log_total = total.shares(rows.floor_s * np.exp(log_m))
        residual = rows.log_time - log_total
        robust = rows.weight / np.sqrt(1 + (residual / _HUBER) ** 2)
        weights = design.step(weights, shares, residual, robust)
    return design.prior(weights)


@dataclass(frozen=True, slots=True)
class _Block:
    """Weights of one effect: (classes, levels), from `start` on in the vector of all."""

    start: int
    classes: int
    levels: int
    of_op: Levels
    level: Levels
    sloped: bool = False

    @property
    def place(self) -> slice:
        return slice(self.start, self.start + self.classes * self.levels)


class _Design:
    """Where each weight sits in one vector, and the normal equations of a step.

    Blocks in order: each effect's (class, level), devices (kind, device), sources (1, source), slopes
    (class, 2). Only classes that occur have columns.
    """

    def __init__(self, rows: PriorRows) -> None:
        self._rows = rows
        self._present = np.unique(rows.group)
        position = np.full(GROUP_COUNT, -1, dtype=np.intp)
        position[self._present] = np.arange(len(self._present))
        by_class = position[rows.group]
        self._kernel = DeviceKernel.of(rows.devices)
        count = len(rows.devices)
        likeness = np.array([self._kernel.likeness(device) for device in rows.devices]).reshape(count, count)
        self._inverse = np.asarray(np.linalg.inv(likeness + 1e-6 * np.eye(count)), dtype=np.float64)
        self._blocks: list[_Block] = []
        for (size, _), level in zip(EFFECTS.values(), rows.level.T, strict=True):
            self._add(len(self._present), size, by_class, level)
        self._add(len(DEVICE_KINDS), count, DEVICE_KIND[rows.group], rows.device)
        self._add(1, len(rows.sources), np.zeros_like(rows.group), rows.source)
        self._add(len(self._present), 2, by_class, rows.slope, sloped=True)
        self._target = self.start()
        self._penalty = self._pulls()

    def _add(self, classes: int, size: int, of_op: Levels, level: Levels, *, sloped: bool = False) -> None:
        start = self._blocks[-1].place.stop if self._blocks else 0
        self._blocks.append(_Block(start, classes, size, of_op, level, sloped))

    def start(self) -> FloatArray:
        """Base at the usual loss, slopes at 1, all else 0."""
        weights = np.zeros(self._blocks[-1].place.stop)
        weights[self._blocks[0].place] = _BASE_LOG
        weights[self._blocks[-1].place] = 1.0
        return weights

    def log_multiplier(self, weights: FloatArray) -> FloatArray:
        """(n,) of every op."""
        rows = self._rows
        found = np.zeros(len(rows.row))
        for block in self._blocks:
            value = weights[block.start + block.of_op * block.levels + block.level[rows.row]]
            found += value * rows.log_learned if block.sloped else value
        return np.asarray(np.clip(found, LOG_LOWEST, LOG_HIGHEST), dtype=np.float64)

    def step(
        self, weights: FloatArray, shares: FloatArray, residual: FloatArray, robust: FloatArray
    ) -> FloatArray:
        """One Gauss-Newton step on the penalised, weighted squares."""
        jacobian = self._jacobian(shares)
        used = np.asarray(np.abs(jacobian).sum(axis=0) > 0)
        narrow = jacobian[:, used]
        normal = ((narrow * robust[:, None].astype(np.float32)).T @ narrow).astype(np.float64)
        pull = self._penalty @ (weights - self._target)
        right = narrow.T @ (robust * residual) - pull[used]
        moved = weights.copy()
        moved[used] += np.linalg.solve(normal + self._penalty[np.ix_(used, used)], right)
        return moved

    def prior(self, weights: FloatArray) -> Prior:
        """The weights by class; classes that never occurred keep the starting point."""
        *effect_blocks, device_block, source_block, slope_block = self._blocks
        columns = [weights[block.place].reshape(-1, block.levels) for block in effect_blocks]
        effects = np.zeros((GROUP_COUNT, sum(block.levels for block in effect_blocks)))
        effects[:, 0] = _BASE_LOG
        effects[self._present] = np.concatenate(columns, axis=1)
        slope = np.ones((GROUP_COUNT, slope_block.levels))
        slope[self._present] = weights[slope_block.place].reshape(-1, slope_block.levels)
        device = weights[device_block.place].reshape(len(DEVICE_KINDS), -1)
        sources = dict(zip(self._rows.sources, map(float, weights[source_block.place]), strict=True))
        return Prior(effects, device, slope, self._kernel, self._inverse, sources)

    def _jacobian(self, shares: FloatArray) -> NDArray[np.float32]:
        rows, count = self._rows, len(self._rows.log_time)
        jacobian = np.zeros((count, self._blocks[-1].place.stop), dtype=np.float32)
        lines = np.arange(count)[:, None]
        for block in self._blocks:
            values = np.bincount(
                rows.row * block.classes + block.of_op,
                weights=shares * rows.log_learned if block.sloped else shares,
                minlength=count * block.classes,
            ).reshape(count, block.classes)
            columns = block.start + np.arange(block.classes)[None] * block.levels + block.level[:, None]
            jacobian[lines, columns] = values
        return jacobian

    def _pulls(self) -> FloatArray:
        """(weights, weights) strength of the pull to the target: diagonal, but between devices."""
        penalty = np.zeros((len(self._target), len(self._target)))
        *effect_blocks, device_block, source_block, slope_block = self._blocks
        for block, (_, pull) in zip(effect_blocks, EFFECTS.values(), strict=True):
            penalty[block.place, block.place] = pull * np.eye(block.classes * block.levels)
        of_devices = np.kron(np.eye(device_block.classes), _DEVICE_PULL * self._inverse)
        penalty[device_block.place, device_block.place] = of_devices
        pulls = [_PINNED if name in REFERENCES else _SOURCE_PULL for name in self._rows.sources]
        penalty[source_block.place, source_block.place] = np.diag(pulls)
        penalty[slope_block.place, slope_block.place] = _SLOPE_PULL * np.eye(slope_block.classes * 2)
        return penalty
