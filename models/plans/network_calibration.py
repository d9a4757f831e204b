"""Measured jobs of several devices turned into factors on the times over a cluster's links.

Three logs: the device beyond what jobs of one device told, and the links within and between nodes. Each is a
draw from a normal distribution; the measured jobs move the draws as far as they can tell them apart. How far
links usually differ from their prediction is no measurement but the interval that every exchange has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.hardware.spec import ClusterSpec, LinkSpec
from predictor.models.bundle import Bundle
from predictor.models.device_calibration import NORMAL_90, Prior, trust

FloatArray = NDArray[np.float64]

MODEL_NAME = "network_calibration"
FACTORS = ("within a node", "between nodes")
LINK_WIDTH = 0.5 / NORMAL_90
"""Standard deviation of a link's log factor: that of the interval on exchanges (compose.time)."""
_STEPS, _LARGEST_STEP, _PROBE = 8, 0.7, 0.05


@dataclass(frozen=True, slots=True)
class NetworkCalibration:
    """What measured jobs say about the links of one cluster.

    Attributes:
        links: latency and bandwidth within a node and between nodes: a name changes nothing.
        mean: (2,) logs of the factors on time. width: (2,) what is left unknown of them.
        rows: jobs it rests on.
    """

    links: tuple[float, ...]
    mean: tuple[float, ...]
    width: tuple[float, ...]
    rows: int

    def is_of(self, cluster: ClusterSpec) -> bool:
        """Whether it is about such links."""
        return self.links == link_numbers(cluster)

    @property
    def factors(self) -> dict[str, float]:
        """Factor on the time over each link."""
        return {name: float(np.exp(value)) for name, value in zip(FACTORS, self.mean, strict=True)}

    def applied(self, cluster: ClusterSpec) -> ClusterSpec:
        """The cluster with links as fast as they were found to be."""
        intra, inter = (
            _scaled(link, mean, width)
            for link, mean, width in zip(
                (cluster.intra_node, cluster.inter_node), self.mean, self.width, strict=True
            )
        )
        return replace(cluster, intra_node=intra, inter_node=inter)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        return {name: getattr(self, name) for name in ("links", "mean", "width", "rows")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkCalibration:
        """Inverse of `to_json`."""
        links, mean, width = (tuple(map(float, data[name])) for name in ("links", "mean", "width"))
        return cls(links, mean, width, int(data["rows"]))


def link_numbers(cluster: ClusterSpec) -> tuple[float, ...]:
    """What identifies a network."""
    links = (cluster.intra_node, cluster.inter_node)
    return tuple(value for link in links for value in (link.latency_s, link.bytes_per_s))


def _scaled(link: LinkSpec, mean: float, width: float) -> LinkSpec:
    factor = float(np.exp(mean))
    return replace(
        link,
        latency_s=link.latency_s * factor,
        bytes_per_s=link.bytes_per_s / factor,
        log_spread=NORMAL_90 * width,
    )


def stored_networks(bundle: Bundle) -> list[NetworkCalibration]:
    """Those of a bundle, none where it holds none."""
    if MODEL_NAME not in bundle.models:
        return []
    return [NetworkCalibration.from_json(item) for item in bundle.params(MODEL_NAME)["clusters"]]


@dataclass(frozen=True, slots=True)
class NetworkFit:
    """(3,) logs of device, links within a node and between nodes, their covariance, and the jobs.

    Attributes:
        log_time: (n,) logs of the predicted times there. left_out: the same from the other jobs alone.
    """

    mean: FloatArray
    covariance: FloatArray
    log_time: FloatArray
    left_out: FloatArray

    def network(self, cluster: ClusterSpec) -> NetworkCalibration:
        """The part about the links."""
        width = np.sqrt(np.diag(self.covariance))
        return NetworkCalibration(
            link_numbers(cluster),
            tuple(map(float, self.mean[1:])),
            tuple(map(float, width[1:])),
            len(self.log_time),
        )


def fit_network(
    log_time: Callable[[FloatArray], FloatArray],
    measured_s: Sequence[float],
    device_width: float,
    prior: Prior,
) -> NetworkFit:
    """The most probable logs (Gauss-Newton with probed slopes).

    Args:
        log_time: (n,) logs of the jobs' predicted times at (3,) logs.
        device_width: standard deviation of what is not known of the device.
        prior: for the scatter of jobs around their device.
    """
    precision = np.diag(1.0 / np.square([device_width, LINK_WIDTH, LINK_WIDTH]))
    wanted = np.log(np.asarray(measured_s, dtype=np.float64))
    mean = np.zeros(3)
    for _ in range(_STEPS):
        found, slope = _probed(log_time, mean)
        step = _solved(wanted - found, slope, mean, precision, prior.noise)
        if np.abs(step).max() < _PROBE / 10:
            break
        mean = mean + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
    found, slope = _probed(log_time, mean)
    weight = trust(wanted - found, prior.noise)
    covariance = np.linalg.inv(precision + slope.T @ (weight[:, None] * slope) / prior.noise**2)
    left_out = found.copy()
    for i in range(len(wanted)):
        rest = np.arange(len(wanted)) != i
        step = _solved((wanted - found)[rest], slope[rest], mean, precision, prior.noise)
        left_out[i] += float(slope[i] @ step)
    return NetworkFit(mean, np.asarray(covariance, dtype=np.float64), found, left_out)


def _probed(log_time: Callable[[FloatArray], FloatArray], mean: FloatArray) -> tuple[FloatArray, FloatArray]:
    found = log_time(mean)
    slopes = [(log_time(mean + _PROBE * axis) - found) / _PROBE for axis in np.eye(len(mean))]
    return found, np.stack(slopes, axis=1)


def _solved(
    residual: FloatArray, slope: FloatArray, mean: FloatArray, precision: FloatArray, noise: float
) -> FloatArray:
    weight = trust(residual, noise)
    hessian = precision + slope.T @ (weight[:, None] * slope) / noise**2
    gradient = slope.T @ (weight * residual) / noise**2 - precision @ mean
    return np.asarray(np.linalg.solve(hessian, gradient), dtype=np.float64)
