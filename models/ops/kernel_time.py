"""Device time of kernels measured without a host: products on tensor cores, attention, experts, states.

    time = base * exp(booster(features))

Base and features are those of predictor.features.tables.kernel_rows. Two boosters: one for devices that were
measured, which is told the device's own numbers, and one for all others, which is not: few chips teach what a
chip is only as a name. Attention was measured forward; its gradient is priced as the forward kernel, by
FLOPs, at the share of the forward's speed that FlashAttention-2 reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.errors import InvalidBundle
from predictor.features.programs.work import AttentionShape, OpWork, Phase
from predictor.features.tables.kernel_facts import Run
from predictor.features.tables.kernel_rows import (
    NAMES,
    KernelModel,
    kernel_rows,
    schema_hash,
    usual_run,
)
from predictor.features.tables.rows import FeatureMatrix, cache_bytes, device_signature
from predictor.features.tables.tiles import FloatArray
from predictor.hardware.spec import DeviceSpec
from predictor.models.calibration import Spread

# Two specifications whose rates and sizes agree within a percent are one device.
_SAME_DEVICE = 0.01
# Dao 2023 (FlashAttention-2, A100): forward at 50 to 73 % of the peak, backward at 40 to 63 %.
_BACKWARD_SPEED = 0.84


_LONG_STARTS = 20.0
_WIDE = ("fp16", "bf16", "tf32")
SITUATIONS = ("wide and long", "wide and short", "narrow and long", "narrow and short")
"""What decides how far off a kernel is, whatever its chip: types below 16 bits have kernels of many makers,
and those that last few times their start are made of what no roofline holds."""


def situations(model: KernelModel, features: FeatureMatrix, compute: NDArray[np.str_]) -> NDArray[np.intp]:
    """(n,) index into SITUATIONS of rows in `compute` (names of arithmetic)."""
    short = features[:, NAMES[model].index("log_base")] < np.log(_LONG_STARTS)
    return np.asarray(2 * ~np.isin(compute, _WIDE) + short, dtype=np.intp)


GENERAL, MEASURED = "general", "measured"
"""The boosters of a model: for devices nobody measured, and for those in the training tables."""


@dataclass(frozen=True, slots=True)
class KernelFit:
    """What belongs to the boosters of one model.

    Attributes:
        low, high: (columns that say nothing of the run,) range of each feature in training.
        told, untold: log half-widths by situation, where the library that runs is known, and where it is not.
        known: (d, 5) signatures of the measured devices, one for each arithmetic measured on it.
        libraries: codes of the columns of the run that training saw.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    told: tuple[Spread, ...]
    untold: tuple[Spread, ...]
    known: NDArray[np.float64]
    libraries: tuple[tuple[float, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for a bundle."""
        return {
            "low": [float(value) for value in self.low],
            "high": [float(value) for value in self.high],
            "told": [spread.to_json() for spread in self.told],
            "untold": [spread.to_json() for spread in self.untold],
            "known": [[float(value) for value in row] for row in self.known],
            "libraries": [list(codes) for codes in self.libraries],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelFit:
        """Inverse of `to_json`."""
        return cls(
            np.array(data["low"], dtype=np.float32),
            np.array(data["high"], dtype=np.float32),
            tuple(map(Spread.from_json, data["told"])),
            tuple(map(Spread.from_json, data["untold"])),
            np.array(data["known"], dtype=np.float64).reshape(-1, 5),
            tuple(tuple(codes) for codes in data["libraries"]),
        )

    def outside(self, features: FeatureMatrix) -> NDArray[np.bool_]:
        """(n,) whether a feature leaves the range that training saw."""
        shape = features[:, : len(self.low)]
        slack = np.float32(0.005) * (self.high - self.low) + np.float32(1e-4)
        beyond = (shape < self.low - slack) | (shape > self.high + slack)
        return np.asarray(beyond.any(axis=1), dtype=np.bool_)


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """Costs of n kernels, each (n,): seconds, base, log half-width, out of range, never measured."""

    time_s: FloatArray
    base_s: FloatArray
    log_spread: FloatArray
    outside: NDArray[np.bool_]
    unmeasured: NDArray[np.bool_]


class KernelTimeModel:
    """Prices kernels. Immutable after loading; safe to share between threads."""

    def __init__(self, fits: Mapping[KernelModel, KernelFit], boosters: Mapping[str, Any]) -> None:
        """Fits by model, boosters by `stored_name`; a model without a fit prices nothing."""
        self._fits = fits
        self._boosters = boosters

    @classmethod
    def from_params(cls, params: Mapping[str, Any], boosters: Mapping[str, Any]) -> KernelTimeModel:
        """From what `to_params` gave. Raises InvalidBundle for other feature columns than this version's."""
        if not params:
            return cls({}, {})
        schema = schema_hash([model for model in KernelModel if model in params.get("fits", {})])
        if params.get("feature_schema") != schema:
            raise InvalidBundle(
                f"kernel times were trained on feature schema {params.get('feature_schema')}, this version "
                f"builds {schema}; run `perfcast train`"
            )
        fits = {KernelModel(name): KernelFit.from_json(data) for name, data in params["fits"].items()}
        return cls(fits, boosters)

    @property
    def models(self) -> frozenset[KernelModel]:
        """What it prices."""
        return frozenset(self._fits)

    def costs(
        self,
        model: KernelModel,
        works: Sequence[OpWork],
        device: DeviceSpec,
        runs: Sequence[Run] | None = None,
    ) -> KernelCosts:
        """Costs of works of one model, in order.

        `runs` says how each was run; None: in a network, by the library usual there.
        """
        fit = self._fits[model]
        forward = [_forward(work) for work in works]
        told = runs is not None
        chosen = runs or [usual_run(model, work) for work in works]
        rows = kernel_rows(model, forward, device, chosen)
        known = _known(fit, works, device)
        correction = self._correction(model, hide_unseen(rows.features, fit.libraries), device, known)
        spreads = fit.told if told else fit.untold
        known_width, new_width = (
            np.array([getattr(one, kind) for one in spreads]) for kind in ("known", "new")
        )
        place = situations(model, rows.features, np.array([work.compute.value for work in works]))
        again = np.array([_slower_than_forward(work) for work in works])
        # A gradient was never timed.
        outside = fit.outside(rows.features) | ~known | (again != 1.0)
        return KernelCosts(
            time_s=rows.base_s * np.exp(correction) * again,
            base_s=rows.base_s * again,
            log_spread=np.where(outside, new_width[place], known_width[place]),
            outside=outside,
            unmeasured=~known,
        )

    def _correction(
        self, model: KernelModel, features: FeatureMatrix, device: DeviceSpec, known: NDArray[np.bool_]
    ) -> FloatArray:
        found = np.zeros(len(features))
        for which, chosen in ((MEASURED, known), (GENERAL, ~known)):
            if not chosen.any():
                continue
            matrix = features[chosen]
            if which == MEASURED:
                own = np.tile(device_columns(device), (len(matrix), 1))
                matrix = np.concatenate([own, matrix], axis=1)
            found[chosen] = self._boosters[stored_name(model, which)].inplace_predict(matrix)
        return found


def _known(fit: KernelFit, works: Sequence[OpWork], device: DeviceSpec) -> NDArray[np.bool_]:
    near = {
        compute: bool(
            np.abs(fit.known - device_signature(device, compute)).max(axis=1).min(initial=np.inf)
            < _SAME_DEVICE
        )
        for compute in {work.compute for work in works}
    }
    return np.array([near[work.compute] for work in works], dtype=np.bool_)


def to_params(fits: Mapping[KernelModel, KernelFit]) -> dict[str, Any]:
    """Plain values for a bundle; the boosters go beside them under their stored names."""
    if not fits:
        return {}
    return {
        "feature_schema": schema_hash(fits),
        "fits": {model.value: fit.to_json() for model, fit in fits.items()},
    }


def stored_name(model: KernelModel, which: str) -> str:
    """Name of a booster in a bundle."""
    return f"kernel_{model.value}_{which}"


def device_columns(device: DeviceSpec) -> FeatureMatrix:
    """(5,) logs of a device's own numbers, which the booster of measured devices is told."""
    numbers = (
        device.clock_hz,
        device.core_count,
        device.memory_bytes_per_s,
        device.vector_flops_per_s,
        cache_bytes(device),
    )
    return np.log(np.array(numbers, dtype=np.float64)).astype(np.float32)


def hide_unseen(features: FeatureMatrix, libraries: Sequence[Sequence[float]]) -> FeatureMatrix:
    """`features` with libraries that training never saw as if nobody had named them."""
    found = features.copy()
    for offset, codes in enumerate(libraries):
        column = found[:, offset - len(libraries)]
        column[~np.isin(column, codes)] = np.nan
    return found


def _forward(work: OpWork) -> OpWork:
    """The forward kernel of an attention's gradient; any other work is itself."""
    shape = work.shape
    if work.phase is not Phase.BACKWARD or not isinstance(shape, AttentionShape):
        return work
    return replace(
        work,
        phase=Phase.FORWARD,
        matrix_flops=_forward_flops(shape),
        read_bytes=work.read_bytes // 2,
        write_bytes=work.write_bytes // 3,
        launch_count=1,
    )


def _slower_than_forward(work: OpWork) -> float:
    shape = work.shape
    if work.phase is not Phase.BACKWARD or not isinstance(shape, AttentionShape):
        return 1.0
    return work.matrix_flops / max(1, _forward_flops(shape)) / _BACKWARD_SPEED


def _forward_flops(shape: AttentionShape) -> int:
    return 2 * shape.batch * shape.heads * shape.pairs * (shape.head_dim + shape.value_dim)
