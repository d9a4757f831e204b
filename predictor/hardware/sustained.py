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


_SINGLE = "fp32"
_PLAIN = frozenset({_SINGLE, "fp64"})
_MAX_Q = "max-q"
"""Laptop boards whose rated clock is the one that their power limit sustains: Lambda's steps on four of them
take 0.5 to 0.8 of what the rule would allow at least."""


# Operands that no unit of a device multiplies are widened on their way into the product; TF32 is FP32 there.
_WIDENED: Mapping[str, tuple[str, ...]] = {
    "tf32": (_SINGLE,),
    "fp8": ("fp16", "bf16"),
    "fp4": ("fp8", "fp16", "bf16"),
}


def matrix_peak(device: DeviceSpec, compute: str) -> float:
    """Rated FLOP/s of matrix products in `compute`.

    A type the device lacks runs on its FP32 pipelines, and so does FP32 where they are the faster ones; TF32,
    FP8 and FP4 run in the next wider type that it has.
    """
    rates = device.matrix_flops_per_s
    found = next((kind for kind in (compute, *_WIDENED.get(compute, ())) if kind in rates), None)
    if found is None:
        return device.vector_flops_per_s
    return max(rates[found], device.vector_flops_per_s) if found == _SINGLE else rates[found]


def has_tensor_cores(device: DeviceSpec) -> bool:
    """Whether 16-bit products run on matrix units that NVIDIA's libraries know (Volta and later)."""
    is_gpu = device.kind is not DeviceKind.CPU and device.vendor.lower() == "nvidia"
    early = device.architecture.lower() in _WITHOUT_TENSOR_CORES
    return is_gpu and not early and "fp16" in device.matrix_flops_per_s


def knows_tf32(device: DeviceSpec) -> bool:
    """Whether units round products of 32 bits to TF32: NVIDIA's that know BF16 do, its rate stated or not."""
    rates = device.matrix_flops_per_s
    return "tf32" in rates or ("bf16" in rates and has_tensor_cores(device))


_WITHOUT_TENSOR_CORES = frozenset({"kepler", "maxwell", "pascal"})


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
        # A FLOP of 64 bits takes the energy of two of 32; boards with few such units never reach their limit.
        rated = 2 * matrix_peak(device, compute) if compute == "fp64" else device.vector_flops_per_s
        yield_per_w = _VECTOR_YIELD.get(architecture)
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
_BEST_LOW, _BEST_HIGH = 0.3, 0.95

# Watts that 1 TFLOP/s of FP16 takes at 1 GHz, by process, on units that do 2048 FLOP a core and cycle. Power
# grows with the cube of the clock (voltage follows it), so clocks fall until rated watts * share^3 fit the
# limit. Each number makes the best product of that generation above come out: A100 SXM, H100 SXM, B200; V100
# .86 of its rating.
_WATTS: Mapping[str, float] = {
    "volta": 1.26,
    "turing": 1.26,
    "ampere": 0.98,
    "ada": 0.431,
    "ada lovelace": 0.431,
    "hopper": 0.431,
    "blackwell": 0.397,
}
# Narrow units move more operands per FLOP: the A40 (1024 a core and cycle) holds .81 of its rating in the
# layers of vidur_frontier, which asks for 1.27 times the A100's energy.
_WIDTH, _WIDTH_POWER = 2048.0, 0.345
# GeForce boards halve the rate of products summed in FP32, not the width of the unit.
_LEAST_WIDTH = 1024.0
# The rated FP8 product of the H200 reaches .734 where FP16 reaches .803: twice the rate takes 1.3 times the
# power.
_TYPE_POWER = 0.38
# Boards whose watts hold a fraction of the rating (T4, H100 PCIe) reach no more than this of that fraction.
_BEST_OF_SUSTAINED = 0.9


def reached_matrix_rate(device: DeviceSpec, compute: str) -> float:
    """FLOP/s of the best matrix product of a device: what the power limit leaves of the rated peak.

    By the cube of the clock on NVIDIA's generations with tensor cores, else by a rule through published best
    products: fewer watts per rated FLOP/s, less of it reached.
    """
    peak = matrix_peak(device, compute)
    watts = _rated_watts(device, compute)
    if watts is None:
        share = _BEST_AT_1_W + _BEST_PER_LOG_W * log(device.tdp_w / (peak * 1e-12))
        return sustained_matrix_rate(device, compute) * min(_BEST_HIGH, max(_BEST_LOW, share))
    share = max(_BEST_LOW, float((device.tdp_w / watts) ** (1 / 3)))
    return peak * min(_BEST_HIGH, share, _BEST_OF_SUSTAINED * sustained_fraction(device, compute))


def _rated_watts(device: DeviceSpec, compute: str) -> float | None:
    """Watts that products in `compute` would take at the rated clock; None: of no known process."""
    per_tflops = _WATTS.get(device.architecture.lower().replace("_", " "))
    rated = device.matrix_flops_per_s.get("fp16")
    if per_tflops is None or rated is None:
        return None
    width = max(_LEAST_WIDTH, rated / (device.core_count * device.clock_hz))
    energy = per_tflops * float((width / _WIDTH) ** -_WIDTH_POWER)
    faster = float((matrix_peak(device, compute) / rated) ** _TYPE_POWER)
    return energy * (device.clock_hz * 1e-9) ** 2 * rated * 1e-12 * faster


# Best products of CDNA boards reach this share of what NVIDIA's do: .514 of an MI300X's rating, .803 of an
# H100's (the same tables, which hold no other board of AMD's).
_CDNA, _CDNA_SHARE = "cdna", 0.64


def sustained_matrix_rate(device: DeviceSpec, compute: str) -> float:
    """FLOP/s of products in `compute` that a device holds at its power limit, in its maker's libraries."""
    rate = matrix_peak(device, compute) * sustained_fraction(device, compute)
    return rate * _CDNA_SHARE if device.architecture.lower().startswith(_CDNA) else rate


# Share of the rated bandwidth that reading takes (Azure AI benchmarking guide, HBM bandwidth, Dot): A100 SXM
# 80 GB .86, H100 SXM .95, H200 SXM .93. Boards that no such table knows are taken for an A100.
_READ_SHARE: Mapping[str, float] = {"hopper": 0.94}
_USUAL_READ_SHARE = 0.86


def reached_read_rate(device: DeviceSpec) -> float:
    """Bytes/s that a long read from a device's memory reaches."""
    return device.memory_bytes_per_s * _READ_SHARE.get(device.architecture.lower(), _USUAL_READ_SHARE)
