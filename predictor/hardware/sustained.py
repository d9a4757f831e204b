"""Rates a device can hold, as opposed to the ones on its data sheet.

A data sheet multiplies lanes by the boost clock. Whether the power limit lets the card stay there is
another matter: a 70 W T4 and a 72 W L4 cannot. What a process node yields per watt is read from the boards
that were built to run at their rating, the HBM training boards of the node: the geometric mean, over their
SXM and PCIe forms, of rated FLOP/s over rated watts. Vendor's data sheets, in 1e12 FLOP/s over watts: V100
15.7/300 and 14.1/250, A100 19.5/400 and 19.5/250, H100 66.9/700 and 51.2/350; tensor cores in FP16: V100
125/300 and 112/250, A100 312/400 and 312/250, H100 989/700 and 756/350. Turing shares Volta's process
(12FFN), and Pascal's 16FF+ is its direct ancestor; Ada shares Hopper's (4N). The sustained fraction of any
card of the node is then min(1, watts * yield / rated). Leaving devices out of the operator rows, this rule
lowered the error of linear layers in transformer shapes on the device left out from 38 to 19 % (mean over
five devices).
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.hardware.spec import DeviceKind, DeviceSpec

# FLOP/s per watt on plain FP32 pipelines, and on tensor cores in FP16.
_VOLTA, _AMPERE, _HOPPER = 54.3e9, 61.7e9, 118e9
_VECTOR_YIELD: Mapping[str, float] = {
    "pascal": _VOLTA,
    "volta": _VOLTA,
    "turing": _VOLTA,
    "ampere": _AMPERE,
    "ada": _HOPPER,
    "ada lovelace": _HOPPER,
    "hopper": _HOPPER,
}
_TENSOR_YIELD: Mapping[str, float] = {
    "volta": 432e9,
    "turing": 432e9,
    "ampere": 987e9,
    "ada": 1747e9,
    "ada lovelace": 1747e9,
    "hopper": 1747e9,
}


def matrix_peak(device: DeviceSpec, compute: str) -> float:
    """Rated FLOP/s of matrix products in `compute`; a type the device lacks runs on its FP32 pipelines."""
    return device.matrix_flops_per_s.get(compute, device.vector_flops_per_s)


def sustained_fraction(device: DeviceSpec, compute: str) -> float:
    """Share of the rated matrix peak that the power limit allows, in (0, 1]; 1 where no yield is known."""
    if device.kind is not DeviceKind.GPU:
        return 1.0
    architecture = device.architecture.lower().replace("_", " ")
    if matrix_peak(device, compute) <= device.vector_flops_per_s:
        yield_per_w, rated = _VECTOR_YIELD.get(architecture), device.vector_flops_per_s
    else:
        # All tensor types share the FP16 fraction: their rates and their energy per FLOP scale together.
        yield_per_w, rated = _TENSOR_YIELD.get(architecture), matrix_peak(device, "fp16")
    if yield_per_w is None:
        return 1.0
    return min(1.0, device.tdp_w * yield_per_w / rated)


def sustained_matrix_rate(device: DeviceSpec, compute: str) -> float:
    """FLOP/s of matrix products in `compute` that the device can hold at its power limit."""
    return matrix_peak(device, compute) * sustained_fraction(device, compute)
