"""Device time of ops: a learned, dimensionless correction over the physical floor.

    time = floor * exp(booster(features))

Products on tensor cores and fused attention are priced by models/ops/kernel_time.py. Other families with
measurements (products in FP32, convolutions, elementwise, layer norm, softmax) have a booster each.
The others are analytic: their compute floor, or their bytes at the rate that the elementwise model gives
the same traffic on this device, whichever is longer. Devices that run no GPU kernels are priced by physics
alone (predictor.models.ops.roofline). Nothing names a device: equal specifications give equal answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidBundle
from predictor.features.dtype import Compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase
from predictor.features.tables.kernel_rows import KernelModel, kernel_model
from predictor.features.tables.rows import (
    FeatureMatrix,
    device_signature,
    feature_matrix,
    matrix_compute,
    schema_hash,
)
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.booster import load_booster
from predictor.models.bundle import Bundle, Json, TrainedModel
from predictor.models.calibration import Spread
from predictor.models.ops.floor import BOUNDS, floors, is_vector_product, runs_on
from predictor.models.ops.kernel_time import KernelTimeModel
from predictor.models.ops.roofline import roofline_times, runs_gpu_kernels
from predictor.models.ops.windows import has_window, window_times_s

MODEL_NAME = "op_time"

LEARNED, ANALYTIC, FALLBACK = "learned", "analytic", "fallback"
_FAMILIES = tuple(Family)

# Kinds the measurements cover, in families of which they cover only some.
_LEARNED_KINDS: Mapping[Family, frozenset[str]] = {
    Family.NORMALIZATION: frozenset({"layer_norm"}),
    Family.SOFTMAX: frozenset({"softmax"}),
    Family.CONVOLUTION: frozenset({"conv"}),
}
_FORWARD_ONLY = frozenset({Family.NORMALIZATION, Family.SOFTMAX})


@dataclass(frozen=True, slots=True)
class OpCosts:
    """Costs of n works, in their order; arrays are (n,).

    Attributes:
        time_s: device time. floor_s: physical floor.
        log_spread: log half-width of the 90 % interval of `time_s`.
        bound: compute, memory or launch: what sets the floor.
        source: learned, analytic or fallback.
        out_of_range: features outside what training saw, this device's ratios included.
        unmeasured: those of them that were measured on no such device in such a type.
        family_code: index of the family in `tuple(Family)`: ops of one family share their error.
    """

    time_s: FloatArray
    floor_s: FloatArray
    log_spread: FloatArray
    bound: tuple[str, ...]
    source: tuple[str, ...]
    out_of_range: NDArray[np.bool_]
    unmeasured: NDArray[np.bool_]
    family_code: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class FamilyModel:
    """One family's booster name, training range per feature, and spread."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    spread: Spread

    def to_json(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        return {
            "low": [float(value) for value in self.low],
            "high": [float(value) for value in self.high],
            "spread": self.spread.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FamilyModel:
        """Inverse of `to_json`."""
        return cls(
            np.array(data["low"], dtype=np.float32),
            np.array(data["high"], dtype=np.float32),
            Spread.from_json(data["spread"]),
        )

    def outside(self, features: FeatureMatrix) -> NDArray[np.bool_]:
        """(n,) whether any feature leaves the training range."""
        # Half a percent of the width forgives rounding and the last row of a sweep.
        slack = np.float32(0.005) * (self.high - self.low) + np.float32(1e-4)
        beyond = (features < self.low - slack) | (features > self.high + slack)
        return np.asarray(beyond.any(axis=1), dtype=np.bool_)


class OpTimeModel:
    """Prices works on a device. Immutable after loading; safe to share between threads."""

    def __init__(
        self,
        boosters: Mapping[Family, Any],
        families: Mapping[Family, FamilyModel],
        known_devices: NDArray[np.float64],
        kernels: KernelTimeModel | None = None,
    ) -> None:
        """Boosters and ranges by family; `known_devices` is (d, 5): signatures of the training devices.

        `kernels` prices products on tensor cores and fused attention; without it they fall to the families.
        """
        self._kernels = kernels or KernelTimeModel({}, {})
        self._boosters = boosters
        self._families = families
        self._known_devices = known_devices

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> OpTimeModel:
        """Raises InvalidBundle: no such model inside, or it was trained on other feature columns."""
        params = bundle.params(MODEL_NAME)
        if params.get("feature_schema") != schema_hash():
            raise InvalidBundle(
                f"{bundle.path}: op_time was trained on feature schema {params.get('feature_schema')}, "
                f"this version builds {schema_hash()}; run `perfcast train`"
            )
        names = {Family(name): model for name, model in params["families"].items()}
        return cls(
            {family: bundle.booster(MODEL_NAME, family.value) for family in names},
            {family: FamilyModel.from_json(model) for family, model in names.items()},
            np.array(params["known_devices"], dtype=np.float64),
            KernelTimeModel.from_params(
                params.get("kernels", {}),
                {name: bundle.booster(MODEL_NAME, name) for name in bundle.boosters(MODEL_NAME)},
            ),
        )

    @classmethod
    def from_trained(cls, trained: TrainedModel) -> OpTimeModel:
        """A model straight from training, without a bundle on disk."""
        families = {Family(name): model for name, model in _mapping(trained.params["families"]).items()}
        return cls(
            {family: load_booster(trained.boosters[family.value]) for family in families},
            {family: FamilyModel.from_json(_mapping(model)) for family, model in families.items()},
            np.array(trained.params["known_devices"], dtype=np.float64),
            KernelTimeModel.from_params(
                _mapping(trained.params.get("kernels", {})),
                {name: load_booster(stored) for name, stored in trained.boosters.items()},
            ),
        )

    def costs(self, works: Sequence[OpWork], device: DeviceSpec) -> OpCosts:
        """Costs of all works, one matrix per family. Equal works are priced each: deduplicate first.

        A TF32 product is never dearer than the same in FP32: a library may take either. Attention with a
        wider window is never cheaper (predictor.models.ops.windows).
        """
        costs = self._costs(works, device)
        rounded = [i for i, work in enumerate(works) if work.compute is Compute.TF32]
        windowed = [i for i, work in enumerate(works) if has_window(work)]
        if not rounded and not windowed:
            return costs
        time_s = costs.time_s.copy()
        if rounded:
            exact = self._costs([replace(works[i], compute=Compute.FP32) for i in rounded], device)
            time_s[rounded] = np.minimum(time_s[rounded], exact.time_s)
        if windowed:
            time_s[windowed] = window_times_s(
                [works[i] for i in windowed], lambda asked: self._costs(asked, device).time_s
            )
        return replace(costs, time_s=time_s)

    def _costs(self, works: Sequence[OpWork], device: DeviceSpec) -> OpCosts:
        floor = floors(works, device)
        source = [FALLBACK if work.family is Family.UNKNOWN else ANALYTIC for work in works]
        outside = np.zeros(len(works), dtype=np.bool_)
        unmeasured = np.zeros(len(works), dtype=np.bool_)
        if runs_gpu_kernels(device):
            time_s, spread = floor.total_s.copy(), np.zeros(len(works))
            for family, index in self._by_model(works, device).items():
                selected = [works[i] for i in index]
                if isinstance(family, KernelModel):
                    kernels = self._kernels.costs(family, selected, device)
                    result = kernels.time_s, kernels.log_spread, kernels.outside, kernels.unmeasured
                    for i in index:
                        source[i] = LEARNED
                elif family is None:
                    result = self._analytic(selected, floor.compute_s[index], floor.launch_s[index], device)
                else:
                    result = self._learned(family, selected, floor.total_s[index], device)
                    for i in index:
                        source[i] = LEARNED
                time_s[index], spread[index], outside[index], unmeasured[index] = result
        else:
            time_s, spread = roofline_times(floor, device)
            outside[:] = unmeasured[:] = True
        return OpCosts(
            time_s=time_s,
            floor_s=floor.total_s,
            log_spread=spread,
            bound=tuple(BOUNDS[code] for code in floor.bound),
            source=tuple(source),
            out_of_range=outside,
            unmeasured=unmeasured,
            family_code=np.array([_FAMILIES.index(work.family) for work in works], dtype=np.intp),
        )

    def _by_model(
        self, works: Sequence[OpWork], device: DeviceSpec
    ) -> Mapping[Family | KernelModel | None, list[int]]:
        """Indices of the works that cost anything, by the booster that prices them; None: none does."""
        groups: dict[Family | KernelModel | None, list[int]] = {}
        for i, work in enumerate(works):
            if work.launch_count > 0 and runs_on(work, device):
                kernel = kernel_model(work, device) if self._kernels.models else None
                if kernel is KernelModel.EXPERTS and kernel not in self._kernels.models:
                    # A bundle that saw no experts knows products.
                    kernel = KernelModel.PRODUCT
                if kernel in self._kernels.models:
                    groups.setdefault(kernel, []).append(i)
                else:
                    groups.setdefault(work.family if self._is_learned(work) else None, []).append(i)
        return groups

    def _is_learned(self, work: OpWork) -> bool:
        if work.family not in self._boosters or (
            work.family in _FORWARD_ONLY and work.phase is not Phase.FORWARD
        ):
            return False
        kinds = _LEARNED_KINDS.get(work.family)
        return kinds is None or work.kind in kinds

    def _learned(
        self, family: Family, works: Sequence[OpWork], floor_s: FloatArray, device: DeviceSpec
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
        features = feature_matrix(family, works, device)
        correction = np.asarray(self._boosters[family].inplace_predict(features), dtype=np.float64)
        # No matrix times a vector was timed; what is known of tiles cannot make it read faster than memory.
        vectors = np.array([is_vector_product(work) for work in works], dtype=np.bool_)
        correction = np.where(vectors, np.maximum(correction, 0.0), correction)
        model = self._families[family]
        known = np.array(
            [self._knows(device, matrix_compute(family, work)) for work in works], dtype=np.bool_
        )
        outside = model.outside(features) | ~known
        spread = np.where(outside, model.spread.new, model.spread.known)
        return floor_s * np.exp(correction), spread, outside, ~known

    def _analytic(
        self, works: Sequence[OpWork], compute_s: FloatArray, launch_s: FloatArray, device: DeviceSpec
    ) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
        traffic = [_as_traffic(work) for work in works]
        floor_s = floors(traffic, device).total_s
        memory_s, _, outside, unmeasured = self._learned(Family.ELEMENTWISE, traffic, floor_s, device)
        compute_bound = compute_s + launch_s > memory_s
        # Kinds without residuals borrow: traffic that of elementwise, compute the widest of all families.
        widest = max(model.spread.new for model in self._families.values())
        new = self._families[Family.ELEMENTWISE].spread.new
        unknown = np.array([work.family is Family.UNKNOWN for work in works], dtype=np.bool_)
        spread = np.where(compute_bound | unknown, widest, new)
        return np.maximum(memory_s, compute_s + launch_s), spread, outside, unmeasured

    def _knows(self, device: DeviceSpec, compute: str) -> bool:
        distance = np.abs(self._known_devices - device_signature(device, compute)).max(axis=1)
        return bool(distance.min(initial=np.inf) < _SAME_DEVICE)


# Two specifications whose rates and sizes agree within a percent are one device.
_SAME_DEVICE = 0.01


def _mapping(value: Json) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a mapping, got {type(value).__name__}")
    return value


def _as_traffic(work: OpWork) -> OpWork:
    """The elementwise kernel that moves the same bytes."""
    element_bytes = max(1, work.element_bits // 8)
    return OpWork(
        family=Family.ELEMENTWISE,
        kind="traffic",
        phase=work.phase,
        compute=work.compute,
        shape=Elements(max(1, work.moved_bytes // (2 * element_bytes))),
        element_bits=work.element_bits,
        matrix_flops=0,
        vector_flops=0,
        read_bytes=work.read_bytes,
        write_bytes=work.write_bytes,
        launch_count=work.launch_count,
    )
