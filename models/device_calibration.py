"""A few measured jobs of one device turned into factors on what is predicted for it.

Logs describe how a device differs from its prediction: everything its kernels do, each kind of kernel, the
backward pass, and the host that launches kernels. Each is a draw from a normal distribution whose width was
learned on devices held out (benchmarks/calibration_prior.py); the measured jobs move the draws as far as they
can tell them apart, and leave a covariance that is the new uncertainty.

    kernels = sum over classes of seconds * exp(its factors),  T = softmax(kernels, host * exp(factor))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidBundle, InvalidData
from predictor.hardware.spec import DeviceSpec
from predictor.models.bundle import Bundle
from predictor.models.device_identity import device_numbers, is_known
from predictor.models.steps.features import CLASSES as STEP_CLASSES
from predictor.models.steps.features import forward_class
from predictor.models.steps.total import SMOOTHNESS, iteration_s

FloatArray = NDArray[np.float64]

MODEL_NAME = "device_calibration"
KINDS = (
    "product", "attention", "pointwise_conv", "conv", "grouped_conv", "depthwise_conv", "batch_norm", "rows",
    "fused", "activation", "copy", "elementwise",
)  # fmt: skip
"""Kinds of kernels in which devices were seen to differ from what is predicted for them."""
_KIND_OF_CLASS: Mapping[str, str] = {
    **dict.fromkeys(("linear", "bmm", "recurrent"), "product"),
    **dict.fromkeys(("layer_norm", "group_norm", "norm_sums", "softmax", "reduction", "pooling"), "rows"),
    **dict.fromkeys(("activation", "smooth_activation"), "activation"),
    **dict.fromkeys(("cast", "transpose", "concat", "copy", "gather", "image_conversion"), "copy"),
    "few_groups_conv": "grouped_conv",
    **{name: name for name in ("attention", "batch_norm", "fused")},
}
FACTORS = ("device", *KINDS, "backward", "host")
CLASSES = tuple(f"{phase} {kind}" for phase in ("forward", "backward") for kind in KINDS)
_HOST = FACTORS.index("host")
_STEPS, _LARGEST_STEP = 30, 1.0


def _kind(step_class: str) -> str:
    """The kind of a class of the step model; gradients of a convolution are of its kind."""
    name = forward_class(step_class)
    return name if name in KINDS else _KIND_OF_CLASS.get(name, "elementwise")


_KIND_CODE = np.array([KINDS.index(_kind(name)) for name in STEP_CLASSES])


def kernel_classes(step_class: NDArray[np.intp], phase: NDArray[Any]) -> NDArray[np.intp]:
    """(n,) index into CLASSES of kernels: their index into the step model's CLASSES, and 0 where forward."""
    return np.asarray(_KIND_CODE[step_class] + len(KINDS) * (phase > 0), dtype=np.intp)


def _moves() -> FloatArray:
    """(classes, factors) which factors move a class of kernels; the host is no class."""
    moves = np.zeros((len(CLASSES), len(FACTORS)))
    moves[:, FACTORS.index("device")] = 1.0
    moves[len(KINDS) :, FACTORS.index("backward")] = 1.0
    kinds = FACTORS.index(KINDS[0])
    moves[:, kinds : kinds + len(KINDS)] = np.tile(np.eye(len(KINDS)), (2, 1))
    return moves


_MOVES = _moves()
NORMAL_90 = 1.6448536269514722
"""90 % half-width of a normal distribution, in standard deviations."""
_FAR = 1.5
_TYPICAL_WIDTH, _TYPICAL_DEVICES = 0.15, 30
"""Chosen on Lambda's, torchvision's and NeuSight's machines, each by a prior of other chips."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured job: predicted kernel seconds by class, predicted host seconds, measured seconds."""

    kernel_s: FloatArray
    host_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Prior:
    """Standard deviations of the factors' logs between devices, and of jobs around their device's."""

    widths: tuple[float, ...]
    noise: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"widths": dict(zip(FACTORS, self.widths, strict=True)), "noise": self.noise}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prior:
        """Inverse of `to_json`."""
        return cls(tuple(float(data["widths"][name]) for name in FACTORS), float(data["noise"]))


@dataclass(frozen=True, slots=True)
class DeviceCalibration:
    """What measured jobs say about one device.

    Attributes:
        numbers: `device_numbers` of the device: a name changes nothing.
        mean: (factors,) logs. covariance: (factors, factors) what is left unknown of them.
        noise: standard deviation of the log of a job's time around its device's. rows: jobs it rests on.
    """

    numbers: tuple[float, ...]
    mean: FloatArray
    covariance: FloatArray
    noise: float
    rows: int

    def is_of(self, device: DeviceSpec) -> bool:
        """Whether it is about this device."""
        return is_known(device, np.array([self.numbers]))

    @property
    def class_factor(self) -> FloatArray:
        """(classes,) factor on the time of each class of kernels."""
        return np.asarray(np.exp(_MOVES @ self.mean))

    @property
    def host_factor(self) -> float:
        """Factor on the host's time per launch."""
        return float(np.exp(self.mean[_HOST]))

    def log_spread(self, kernel_s: FloatArray, host_s: float) -> float:
        """Log half-width of the 90 % interval of a job with these uncalibrated seconds."""
        _, slope = _linearised([Sample(kernel_s, host_s, 1.0)], self.mean)
        variance = float(slope[0] @ self.covariance @ slope[0]) + self.noise**2
        return float(NORMAL_90 * np.sqrt(variance))

    def moved(self, log: float, variance: float | None = None, rows: int = 0) -> DeviceCalibration:
        """All kernels slower by exp(log), whose `variance` is then known; `rows` more jobs."""
        mean, covariance = self.mean.copy(), self.covariance.copy()
        mean[0] += log
        if variance is not None:
            # What is learned of the first factor alone: its correlations shrink with it.
            shrink = np.ones(len(mean))
            shrink[0] = np.sqrt(variance / covariance[0, 0])
            covariance *= np.outer(shrink, shrink)
        return DeviceCalibration(self.numbers, mean, covariance, self.noise, self.rows + rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        return {
            "numbers": list(self.numbers),
            "mean": [float(value) for value in self.mean],
            "covariance": [[float(value) for value in row] for row in self.covariance],
            "noise": self.noise,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceCalibration:
        """Inverse of `to_json`."""
        return cls(
            tuple(float(value) for value in data["numbers"]),
            np.array(data["mean"], dtype=np.float64),
            np.array(data["covariance"], dtype=np.float64),
            float(data["noise"]),
            int(data["rows"]),
        )


def stored_calibrations(bundle: Bundle) -> list[DeviceCalibration]:
    """Those of a bundle, none where it holds none. Raises InvalidBundle: other factors than today's."""
    if MODEL_NAME not in bundle.models:
        return []
    found = [DeviceCalibration.from_json(item) for item in bundle.params(MODEL_NAME)["devices"]]
    if any(len(calibration.mean) != len(FACTORS) for calibration in found):
        raise InvalidBundle(
            f"bundle {bundle.id}: its calibrations have other factors than {', '.join(FACTORS)}; "
            "run `perfcast calibrate` again"
        )
    return found


def prior_calibration(device: DeviceSpec, prior: Prior) -> DeviceCalibration:
    """What is known of a device without a job of it."""
    covariance = np.diag(np.square(prior.widths))
    return DeviceCalibration(
        tuple(device_numbers(device)), np.zeros(len(FACTORS)), covariance, prior.noise, rows=0
    )


def fit_calibration(samples: Sequence[Sample], device: DeviceSpec, prior: Prior) -> DeviceCalibration:
    """The most probable factors given the samples, and their covariance there (Gauss-Newton, Laplace).

    Jobs far off their device count less (pseudo-Huber): one that is not what it says moves little.
    Raises InvalidData without samples.
    """
    if not samples:
        raise InvalidData("calibration: no measured jobs; give at least one row with a time")
    precision = np.diag(1.0 / np.square(prior.widths))
    mean = np.zeros(len(FACTORS))
    for _ in range(_STEPS):
        residual, slope = _linearised(samples, mean)
        weight = trust(residual, prior.noise)
        hessian = precision + slope.T @ (weight[:, None] * slope) / prior.noise**2
        gradient = slope.T @ (weight * residual) / prior.noise**2 - precision @ mean
        step = np.linalg.solve(hessian, gradient)
        mean = mean + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
        if np.abs(step).max() < 1e-6:
            break
    residual, slope = _linearised(samples, mean)
    weighted = trust(residual, prior.noise)[:, None] * slope
    covariance = np.asarray(np.linalg.inv(precision + slope.T @ weighted / prior.noise**2), dtype=np.float64)
    return DeviceCalibration(tuple(device_numbers(device)), mean, covariance, prior.noise, len(samples))


def trust(residual: FloatArray, noise: float) -> FloatArray:
    """(n,) weight of each job: 1 within the noise, falling as its inverse distance beyond."""
    return np.asarray(1.0 / np.sqrt(1.0 + np.square(residual / (_FAR * noise))))


def predicted_s(sample: Sample, calibration: DeviceCalibration | None = None) -> float:
    """Seconds of a job: kernels or the host that launches them, whichever takes longer."""
    kernels, host_s = sample.kernel_s, sample.host_s
    if calibration is not None:
        kernels, host_s = kernels * calibration.class_factor, host_s * calibration.host_factor
    return float(iteration_s(kernels.sum(), np.array(host_s)))


def _linearised(samples: Sequence[Sample], mean: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(n,) log(measured / predicted) and (n, factors) slopes of the log prediction, at these factors."""
    kernel_s = np.stack([sample.kernel_s for sample in samples]) * np.exp(_MOVES @ mean)
    device_s = np.maximum(kernel_s.sum(axis=1), 1e-12)
    host_s = np.maximum(np.array([sample.host_s for sample in samples]) * np.exp(mean[_HOST]), 1e-12)
    total = iteration_s(device_s, host_s)
    on_device = (device_s / total) ** SMOOTHNESS
    slope = on_device[:, None] * (kernel_s / device_s[:, None]) @ _MOVES
    slope[:, _HOST] += 1.0 - on_device
    measured = np.array([sample.measured_s for sample in samples])
    return np.log(measured / total), slope


def learn_prior(groups: Sequence[Sequence[Sample]], *, rounds: int = 60) -> Prior:
    """Widths between devices and noise within one, by expectation maximisation on held-out predictions.

    Jobs tell kinds of kernels apart only in part, and left alone the widths of some run away: each is learned
    as if from further devices of a typical width.

    Args:
        groups: samples of one device each, predicted by a model that saw none of that device.

    Raises InvalidData with fewer than two devices.
    """
    if len(groups) < 2:
        raise InvalidData(f"calibration prior: {len(groups)} devices; expected at least 2")
    parts = [_linearised(samples, np.zeros(len(FACTORS))) for samples in groups]
    widths, noise = np.full(len(FACTORS), _TYPICAL_WIDTH), 0.2
    count = sum(len(residual) for residual, _ in parts)
    for _ in range(rounds):
        second = np.full(len(FACTORS), _TYPICAL_DEVICES * _TYPICAL_WIDTH**2)
        squares = 0.0
        for residual, slope in parts:
            covariance = np.linalg.inv(np.diag(1.0 / widths**2) + slope.T @ slope / noise**2)
            mean = covariance @ slope.T @ residual / noise**2
            second += np.square(mean) + np.diag(covariance)
            left = residual - slope @ mean
            squares += float(left @ left) + float(np.einsum("ij,jk,ik->", slope, covariance, slope))
        widths = np.maximum(np.sqrt(second / (len(parts) + _TYPICAL_DEVICES)), 1e-3)
        noise = max(float(np.sqrt(squares / count)), 1e-3)
    return Prior(tuple(float(width) for width in widths), noise)
