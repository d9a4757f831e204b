"""What single ops of a processor take: the sum of arithmetic, weights read, activations moved, and a call.

    seconds(op) = scale(device) * sum over parts of coefficient[class, part] * part

Processors overlap these far less than GPUs do, and at batch 1 weights come from memory while activations stay
in the cache, so each has its own price. Coefficients are non-negative least squares on relative errors of
iteration times, pulled to those of an average class (ridge), with outliers weighted down; the scale of a
device and its harness is fitted in turns with them. A device that nobody timed has scale 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.steps.features import CLASSES, JobContext
from predictor.models.steps.harness import REFERENCES, Harness
from predictor.models.steps.prior import PHASE_COUNT, DeviceKernel, PricedOps
from predictor.models.steps.prior_fit import PriorRows

KIND = "additive"
_TYPICAL = (1.3, 4.0, 1.9, 6e-6)
"""Where coefficients start: slow-down of arithmetic, of weights, of other traffic; seconds of a call."""
_PULL = 0.15
_ROUNDS = 5
_OUTLIER = 0.2
_LEAST_RATIO = 0.05
_SCALE_ROWS = 3.0
"""A scale is believed as a mean of n residuals against this many of zero."""


@dataclass(frozen=True, slots=True)
class HostPrior:
    """Coefficients (classes, 4), and log scales by known device."""

    coefficients: FloatArray
    scales: FloatArray
    kernel: DeviceKernel
    sources: Mapping[str, float]

    @property
    def harness(self) -> Harness:
        """What each source's way of timing adds."""
        return Harness({**Harness.none().effects, "source": self.sources})

    def holds(self, device: DeviceSpec) -> bool:
        """Whether iterations on such a device were trained on."""
        return self.kernel.holds(device)

    def log_multiplier(self, ops: PricedOps, job: JobContext, device: DeviceSpec) -> FloatArray:
        """(n,) log of the seconds over the floor."""
        seconds = (self.coefficients[ops.group // PHASE_COUNT] * ops.parts).sum(axis=1)
        ratio = np.maximum(seconds / ops.floor_s, _LEAST_RATIO)
        return np.asarray(np.log(ratio) + self._scale(device), dtype=np.float64)

    def _scale(self, device: DeviceSpec) -> float:
        place = self.kernel.place(device)
        return float(self.scales[place]) if place is not None else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kind": KIND,
            "coefficients": [[float(f"{value:.5g}") for value in row] for row in self.coefficients],
            "scales": np.round(self.scales, 5).tolist(),
            "kernel": self.kernel.to_json(),
            "sources": {name: round(value, 5) for name, value in self.sources.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HostPrior:
        """Inverse of `to_json`."""
        return cls(
            np.array(data["coefficients"], dtype=np.float64),
            np.array(data["scales"], dtype=np.float64),
            DeviceKernel.from_json(data["kernel"]),
            {name: float(value) for name, value in data["sources"].items()},
        )


def fit_host_prior(rows: PriorRows, parts: FloatArray, rest_s: FloatArray) -> HostPrior:
    """Fits coefficients and scales. `parts` (n, 4), `rest_s` (r,): as in an AggregateTable."""
    count, classes = len(rows.log_time), len(CLASSES)
    flat = rows.row * classes + rows.group // PHASE_COUNT
    sums = [
        np.bincount(flat, weights=parts[:, j], minlength=count * classes).reshape(count, classes)
        for j in range(len(_TYPICAL))
    ]
    design = np.concatenate(sums, axis=1)
    typical = np.repeat(_TYPICAL, classes)
    measured = np.maximum(np.exp(rows.log_time) - rest_s, _LEAST_RATIO * np.exp(rows.log_time))
    devices, sources = np.zeros(len(rows.devices)), np.zeros(len(rows.sources))
    robust, found = np.ones(count), typical
    for _ in range(_ROUNDS):
        scale = np.exp(devices[rows.device] + sources[rows.source])
        weight = np.sqrt(rows.weight * robust)
        found = _non_negative(design * (weight * scale / measured)[:, None], weight, typical)
        predicted = np.maximum(design @ found, _LEAST_RATIO * measured)
        residual = np.log(measured) - np.log(predicted) - np.log(scale)
        robust = 1 / np.sqrt(1 + (residual / _OUTLIER) ** 2)
        devices += _shrunk_means(residual, rows.device, robust * rows.weight, len(devices))
        residual -= (devices[rows.device] + sources[rows.source]) - np.log(scale)
        sources += _shrunk_means(residual, rows.source, robust * rows.weight, len(sources))
        sources[[name in REFERENCES for name in rows.sources]] = 0.0
    return HostPrior(
        found.reshape(len(_TYPICAL), classes).T,
        devices,
        DeviceKernel.of(rows.devices),
        dict(zip(rows.sources, map(float, sources), strict=True)),
    )


def _shrunk_means(residual: FloatArray, index: Any, weight: FloatArray, count: int) -> FloatArray:
    total = np.bincount(index, weights=weight * residual, minlength=count)
    return np.asarray(total / (np.bincount(index, weights=weight, minlength=count) + _SCALE_ROWS))


def _non_negative(design: FloatArray, target: FloatArray, typical: FloatArray) -> FloatArray:
    """argmin |design x - target|^2 + pull^2 |size * (x - typical)|^2 over x >= 0, by coordinate descent.

    `size` is each column's length, so that a column is pulled the less, relatively, the more it decides.
    """
    size = np.sqrt(np.square(design).sum(axis=0)) + 1e-12
    scaled = design / size
    normal = scaled.T @ scaled + _PULL**2 * np.eye(len(typical))
    start = typical * size
    right = scaled.T @ target + _PULL**2 * start
    x = start.copy()
    for _ in range(_SWEEPS):
        before = x.copy()
        for j in range(len(x)):
            x[j] = max(0.0, x[j] + (right[j] - normal[j] @ x) / normal[j, j])
        if np.abs(x - before).max(initial=0.0) < _CONVERGED * (np.abs(x).max(initial=0.0) + 1e-12):
            break
    return np.asarray(x / size, dtype=np.float64)


_SWEEPS, _CONVERGED = 500, 1e-6
