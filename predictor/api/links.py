"""What measurements know of a cluster: times of its collectives, and links as calibrated jobs found them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from predictor.hardware.spec import ClusterSpec
from predictor.models.bundle import Bundle
from predictor.models.plans.exchange_curves import ExchangeModel
from predictor.models.plans.network_calibration import NetworkCalibration, stored_networks
from predictor.types import Runtime


class Links:
    """Learned times and calibrations of a bundle. Safe to share between threads."""

    def __init__(self, bundle: Bundle, networks: Sequence[NetworkCalibration] | None = None) -> None:
        """`networks` take the place of those that the bundle holds."""
        self._networks = stored_networks(bundle) if networks is None else list(networks)
        self._exchanges = ExchangeModel.from_bundle(bundle)
        self._own = self._exchanges and self._exchanges.with_own_kernels()

    def measured(self, cluster: ClusterSpec, runtime: Runtime = Runtime.EAGER) -> ClusterSpec:
        """`cluster` as a job in `runtime` finds it: TensorRT's engines reduce in a node by own kernels."""
        exchanges = self._own if runtime is Runtime.TENSORRT else self._exchanges
        for network in self._networks:
            if network.is_of(cluster):
                cluster = network.applied(cluster)
                break
        return replace(cluster, exchanges=exchanges)
