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
from math import log

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


_PLAIN = frozenset({"fp32", "fp64"})
_MAX_Q = "max-q"
"""Laptop boards whose rated clock is the one that their power limit sustains: Lambda's steps on four of them
take 0.5 to 0.8 of what the rule would allow at least."""


def matrix_peak(device: DeviceSpec, compute: str) -> float:
    """Rated FLOP/s of matrix products in `compute`; a type the device lacks runs on its FP32 pipelines."""
    return device.matrix_flops_per_s.get(compute, device.vector_flops_per_s)


def sustained_fraction(device: DeviceSpec, compute: str) -> float:
    """Share of the rated matrix peak that the power limit allows, in (0, 1]; 1 where no yield is known."""
    if device.kind is not DeviceKind.GPU:
        return 1.0
    if _MAX_Q in device.id:
        return 1.0
    architecture = device.architecture.lower().replace("_", " ")
    # GeForce cards hold TF32 to the rate of their FP32 pipelines; it runs on tensor cores all the same.
    is_tensor = compute in device.matrix_flops_per_s and compute not in _PLAIN
    if not is_tensor and matrix_peak(device, compute) <= device.vector_flops_per_s:
        yield_per_w, rated = _VECTOR_YIELD.get(architecture), device.vector_flops_per_s
    else:
        # All tensor types share the FP16 fraction: their rates and their energy per FLOP scale together.
        yield_per_w, rated = _TENSOR_YIELD.get(architecture), matrix_peak(device, "fp16")
    if yield_per_w is None:
        return 1.0
    return min(1.0, device.tdp_w * yield_per_w / rated)


# Best matrix product ever timed on a board over its rating, against the watts it has per rated TFLOP/s:
# A100 SXM .869 and PCIe .811, H100 SXM .803, GH200 .838, B200 .776 in BF16, H200 .734 in FP8 (stas00/
# ml-engineering, tables of achievable matmul FLOPS). share = a + b ln(W per TFLOP/s), least squares.
_BEST_AT_1_W, _BEST_PER_LOG_W = 0.840, 0.091
_BEST_LOW, _BEST_HIGH = 0.4, 0.95


def reached_matrix_rate(device: DeviceSpec, compute: str) -> float:
    """FLOP/s of the best matrix product of a device: what the power limit leaves of the rated peak.

    A rule through published best products: fewer watts per rated FLOP/s, less of it reached.
    """
    peak = matrix_peak(device, compute)
    share = _BEST_AT_1_W + _BEST_PER_LOG_W * log(device.tdp_w / (peak * 1e-12))
    return sustained_matrix_rate(device, compute) * min(_BEST_HIGH, max(_BEST_LOW, share))


def sustained_matrix_rate(device: DeviceSpec, compute: str) -> float:
    """FLOP/s of matrix products in `compute` that the device can hold at its power limit."""
    return matrix_peak(device, compute) * sustained_fraction(device, compute)
