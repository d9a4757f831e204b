"""Rows of the aggregate model: one per distinct work of a program on a device in a job, dimensionless.

Everything is a column operation on a WorkTable. What grows with the batch enters as a logarithm only:
alignments and fill factors of such sizes jump from one batch to the next (docs/adr/0008).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import Family
from predictor.features.programs.work_table import (
    BITS,
    COMPUTES,
    FAMILIES,
    LAUNCHES,
    MATRIX_FLOPS,
    PARAMETER_BYTES,
    PASSES,
    READ_BYTES,
    VECTOR_FLOPS,
    WRITE_BYTES,
    WorkTable,
)
from predictor.features.tables.rows import cache_bytes
from predictor.features.tables.table_facts import (
    ConvolutionFacts,
    convolution_facts,
    rows_and_columns,
    table_products,
)
from predictor.features.tables.tiles import FloatArray, tile_efficiencies
from predictor.hardware.spec import DeviceSpec
from predictor.hardware.sustained import matrix_peak, sustained_fraction
from predictor.types import Layout, Mode, Precision, Runtime

LATEST_VERSION = 2.09
"""Framework version assumed where the caller names none: the newest that training rows used."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What decides how a job's kernels run, beside the kernels: framework version as major + minor / 100."""

    mode: Mode
    precision: Precision
    runtime: Runtime
    layout: Layout = Layout.NCHW
    framework_version: float = LATEST_VERSION


CLASSES = (
    "linear", "bmm", "attention", "pointwise_conv", "conv", "grouped_conv", "few_groups_conv",
    "depthwise_conv", "transposed_conv", "pointwise_conv_data_gradient", "conv_data_gradient",
    "grouped_conv_data_gradient", "few_groups_conv_data_gradient", "depthwise_conv_data_gradient",
    "transposed_conv_data_gradient", "pointwise_conv_weight_gradient", "conv_weight_gradient",
    "grouped_conv_weight_gradient", "few_groups_conv_weight_gradient", "depthwise_conv_weight_gradient",
    "transposed_conv_weight_gradient",
    "image_conversion", "batch_norm", "layer_norm", "group_norm", "norm_sums", "softmax",
    "add", "mul", "activation", "smooth_activation", "bias", "fused", "power", "elementwise", "reduction",
    "pooling", "gather", "cast", "transpose", "concat", "copy", "recurrent", "optimizer", "unknown",
)  # fmt: skip
"""Kinds of work that share an efficiency, whatever their size."""
_CLASS_CODE = {name: code for code, name in enumerate(CLASSES)}

_BY_FAMILY: Mapping[Family, str] = {
    Family.MATMUL: "linear",
    Family.BATCHED_MATMUL: "bmm",
    Family.ATTENTION: "attention",
    Family.CONVOLUTION: "conv",
    Family.NORMALIZATION: "layer_norm",
    Family.SOFTMAX: "softmax",
    Family.ELEMENTWISE: "elementwise",
    Family.REDUCTION: "reduction",
    Family.POOLING: "pooling",
    Family.GATHER: "gather",
    Family.COPY: "copy",
    Family.RECURRENT: "recurrent",
    Family.OPTIMIZER: "optimizer",
}
_BY_KIND: Mapping[str, str] = {
    "batch_norm": "batch_norm",
    "batch_norm_inference": "batch_norm",
    "batch_norm_statistics": "norm_sums",
    "group_norm": "group_norm",
    "instance_norm": "group_norm",
    "group_norm_statistics": "norm_sums",
    "instance_norm_statistics": "norm_sums",
    "layer_norm_sums": "norm_sums",
    "batch_norm_sums": "norm_sums",
    "group_norm_sums": "norm_sums",
    "instance_norm_sums": "norm_sums",
    "rms_norm_sums": "norm_sums",
    "add": "add",
    "sub": "add",
    "mul": "mul",
    "div": "mul",
    "relu": "activation",
    "clip": "activation",
    "leaky_relu": "activation",
    "gelu": "smooth_activation",
    "silu": "smooth_activation",
    "sigmoid": "smooth_activation",
    "hard_swish": "smooth_activation",
    "hard_sigmoid": "smooth_activation",
    "mish": "smooth_activation",
    "tanh": "smooth_activation",
    "erf": "smooth_activation",
    "exp": "smooth_activation",
    "softplus": "smooth_activation",
    "bias": "bias",
    "fused": "fused",
    "pow": "power",
    "sqrt": "power",
    "cast": "cast",
    "transpose": "transpose",
    "mixed_order": "transpose",
    "image_conversion": "image_conversion",
    "concat": "concat",
}
_DENSE, _POINTWISE, _GROUPED, _FEW_GROUPS, _DEPTHWISE, _TRANSPOSED = (
    "conv", "pointwise_conv", "grouped_conv", "few_groups_conv", "depthwise_conv", "transposed_conv",
)  # fmt: skip
_PASS_SUFFIX = ("", "_data_gradient", "_weight_gradient")

_SIZE = (
    "log_flops_per_core", "log_bytes", "log_bytes_over_cache", "log_memory_over_compute",
    "log_start_over_work", "weight_share",
)  # fmt: skip
_PRODUCT = (
    "log2_product_batch", "log2_n", "log2_k", "align_n", "align_k", "log_best_tile",
)  # fmt: skip
_CONVOLUTION = (
    "log2_in_channels", "log2_out_channels", "log2_group_width", "taps", "stride", "dilation",
    "log2_out_points", "images_last",
)  # fmt: skip
_VECTOR = (
    "log2_rows_per_core", "log2_columns", "align_columns", "log2_bytes_per_element",
    "log2_flops_per_element",
)  # fmt: skip
_JOB = ("log_share", "training", "compiled", "channels_last", "version", "precision")
_DEVICE = ("log_sustained", "log_lanes", "log_cache_per_core", "log_ridge")
FEATURES = (
    "class", "phase", "compute", "element_bits", *_SIZE, *_PRODUCT, *_CONVOLUTION, *_VECTOR, *_JOB, *_DEVICE,
    "log_learned",
)  # fmt: skip
"""Columns of `aggregate_features`."""
DEVICE_COLUMNS = _DEVICE
"""Columns by which trees could tell one chip from another."""
RATIO_COLUMNS = (
    "log_flops_per_core", "log_bytes_over_cache", "log_memory_over_compute", "log_start_over_work",
    "log_best_tile", "log_learned",
)  # fmt: skip
"""Columns that set an op against its device: of one shape they, too, tell which chip it is."""

# Fixed numbers: a new precision must not move the others.
_PRECISION_CODE: Mapping[Precision, int] = {
    Precision.FP32: 0,
    Precision.TF32: 1,
    Precision.AMP: 2,
    Precision.FP16: 3,
    Precision.BF16: 4,
}
# Bits that one factor of a product has: what separates the rates of the types.
_COMPUTE_BITS: Mapping[Compute, float] = {
    Compute.FP64: 64,
    Compute.FP32: 32,
    Compute.TF32: 19,
    Compute.FP16: 16,
    Compute.BF16: 15,
    Compute.FP8: 8,
    Compute.INT8: 8,
    Compute.FP4: 4,
}
# An optimizer runs alike whatever the passes before it, and no iteration with 16-bit states was timed: what
# trees know of narrow kernels would take it for one.
_PLAIN_OPTIMIZER: Mapping[str, float] = {
    "compute": 32.0, "element_bits": 32.0, "precision": 0.0, "compiled": 0.0, "channels_last": 0.0,
}  # fmt: skip
_LARGEST_WINDOW = 49
_PADDING = 8 * 32
"""Channels and columns of the product that one group of a padded depthwise convolution becomes."""
_WEIGHT_GRADIENT = PASSES.index("weight_gradient")
_ALIGNMENT_CAP = 64
_VERSION = 5


def schema_hash() -> str:
    """Changes with the columns: a model trained under another one is refused."""
    return hashlib.sha256(f"{_VERSION}|{FEATURES}|{CLASSES}".encode()).hexdigest()


def classes(table: WorkTable) -> NDArray[np.intp]:
    """(n,) index into CLASSES."""
    pairs, inverse = np.unique(
        np.array([f"{family}|{kind}" for family, kind in zip(table.family, table.kind, strict=True)]),
        return_inverse=True,
    )
    codes = np.array([_class_code(str(pair)) for pair in pairs], dtype=np.intp)[inverse]
    convolution = table.family == FAMILIES.index(Family.CONVOLUTION)
    if convolution.any():
        codes[convolution] = _convolution_classes(table.take(convolution))
    return codes


def forward_class(name: str) -> str:
    """The class of the kernel whose gradient a class is; itself for another."""
    return name.removesuffix(_PASS_SUFFIX[1]).removesuffix(_PASS_SUFFIX[2])


def _class_code(pair: str) -> int:
    family, kind = pair.split("|", 1)
    by_family = _BY_FAMILY.get(FAMILIES[int(family)], "unknown")
    return _CLASS_CODE[_BY_KIND.get(kind, by_family) if by_family != "optimizer" else by_family]


def runs_padded(table: WorkTable, facts: ConvolutionFacts) -> NDArray[np.bool_]:
    """(n,) depthwise convolutions that cuDNN runs as products, each group padded to a tile of its own.

    Its depthwise kernels for images channels-last end at 7 x 7. Beyond, timm's ConvMixers of 9 x 9 take what
    a product of 32 columns and 8 channels a group takes at the peak of the tensor units (RTX 4090: 8.16 s
    measured, 8.09 so; RTX 3090: 18.0, 18.8; before cuDNN 8.3, with 128 columns, 75.8, 75.3), and compiled
    MixNets what their 9 x 9 add (72 ms and 72, 116 and 110). Weight gradients do not run so.
    """
    narrow = table.compute != COMPUTES.index(Compute.FP32)
    large = facts.is_depthwise & (facts.taps > _LARGEST_WINDOW) & (facts.channels_last > 0)
    return np.asarray(large & narrow & (facts.pass_code != _WEIGHT_GRADIENT), dtype=np.bool_)


_MANY_GROUPS = 32
"""From here on cuDNN's kernels for images channels-last fill a block with groups. With fewer, training in AMP
took 20 to 60 times its floor before torch 2.0 (RegNets, NFNets); with 32 and more (ResNeXts) twice."""


def _convolution_classes(table: WorkTable) -> NDArray[np.intp]:
    facts = convolution_facts(table)
    base = np.select(
        [
            facts.transposed > 0,
            runs_padded(table, facts),
            facts.is_depthwise,
            facts.groups >= _MANY_GROUPS,
            facts.groups > 1,
            facts.taps == 1,
        ],
        [_TRANSPOSED, _DENSE, _DEPTHWISE, _GROUPED, _FEW_GROUPS, _POINTWISE],
        _DENSE,
    )
    suffix = np.array(_PASS_SUFFIX)[facts.pass_code.astype(np.intp)]
    names = np.char.add(base.astype(str), suffix)
    return np.array([_CLASS_CODE[str(name)] for name in names], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """Numbers of a device that rows read; rates, peaks and shares by index of COMPUTES."""

    rates: FloatArray
    peaks: FloatArray
    sustained: FloatArray
    lanes: float
    vector_rate: float
    bandwidth: float
    cache: float
    cache_bytes_per_s: float
    cores: int


# Bytes that a core takes from the shared cache per cycle: 20 on P100, V100 and T4 (Jia et al. 2019,
# microbenchmarks of the T4), and fewer a core on chips of more cores.
_CACHE_BYTES_PER_CYCLE = 16.0


def device_facts(device: DeviceSpec) -> DeviceFacts:
    """Facts of one device."""
    peaks = np.array([matrix_peak(device, compute) for compute in COMPUTES])
    sustained = np.array([sustained_fraction(device, compute) for compute in COMPUTES])
    return DeviceFacts(
        rates=peaks * sustained,
        peaks=peaks,
        sustained=sustained,
        lanes=device.vector_flops_per_s / (2 * device.core_count * device.clock_hz),
        vector_rate=device.vector_flops_per_s,
        bandwidth=device.memory_bytes_per_s,
        cache=cache_bytes(device),
        cache_bytes_per_s=_cache_rate(device),
        cores=device.core_count,
    )


def _cache_rate(device: DeviceSpec) -> float:
    """Bytes per second from the cache that all cores share; memory's own where nothing is known of one."""
    if device.kind.is_host:
        return device.memory_bytes_per_s
    rate = _CACHE_BYTES_PER_CYCLE * device.core_count * device.clock_hz
    return max(device.memory_bytes_per_s, rate)


COMPUTE, WEIGHTS, ACTIVATIONS, CALLS = range(4)
"""Columns of `parts`."""


def parts(table: WorkTable, facts: DeviceFacts) -> FloatArray:
    """(n, 4): seconds at the rated peak, to read the weights, to move all else, and kernels launched."""
    n = table.numbers
    convolutions = convolution_facts(table)
    padded = runs_padded(table, convolutions)
    is_vector = convolutions.is_depthwise & ~padded
    rate = np.where(is_vector, facts.vector_rate, facts.peaks[table.compute])
    compute = np.maximum(
        n[:, MATRIX_FLOPS] * np.where(padded, _PADDING, 1) / rate, n[:, VECTOR_FLOPS] / facts.vector_rate
    )
    moved = np.maximum(n[:, READ_BYTES] + n[:, WRITE_BYTES], 1.0)
    weights = np.minimum(n[:, PARAMETER_BYTES], moved)
    traffic = weights / facts.bandwidth, (moved - weights) / facts.bandwidth
    return np.stack([compute, *traffic, n[:, LAUNCHES]], axis=1)


def aggregate_features(
    table: WorkTable,
    log_share: FloatArray,
    log_learned: FloatArray,
    facts: DeviceFacts,
    job: JobContext,
    classes_: NDArray[np.intp] | None = None,
) -> NDArray[np.float32]:
    """(n, len(FEATURES)) rows.

    Args:
        table: distinct works. log_share: (n,) of each, all its runs, in the floor of its iteration.
        log_learned: (n,) what the op level says (predictor.models.steps.op_base).
        facts: of the device. job: how it runs.
        classes_: `classes(table)`, where the caller has it.
    """
    n = table.numbers
    conv = convolution_facts(table)
    products = table_products(table)
    rows, columns = rows_and_columns(table)
    moved = np.maximum(n[:, READ_BYTES] + n[:, WRITE_BYTES], 1.0)
    compute_s, memory_s = parts(table, facts)[:, COMPUTE], moved / facts.bandwidth
    tiny = 1e-12
    is_product = n[:, MATRIX_FLOPS] > 0
    best = np.where(is_product, tile_efficiencies(products, facts.cores).max(axis=1), 1.0)
    bits = np.array([_COMPUTE_BITS.get(compute, 32.0) for compute in COMPUTES])
    groups = np.maximum(conv.groups, 1.0)
    values: dict[str, NDArray[Any]] = {
        "class": classes(table) if classes_ is None else classes_,
        "phase": table.phase,
        "compute": bits[table.compute],
        "element_bits": n[:, BITS],
        "log_flops_per_core": np.log(n[:, MATRIX_FLOPS] / facts.cores + 1.0),
        "log_bytes": np.log(moved),
        "log_bytes_over_cache": np.log(moved / facts.cache),
        "log_memory_over_compute": np.log((memory_s + tiny) / (compute_s + tiny)),
        "log_start_over_work": np.log(n[:, LAUNCHES] * 1e-6 / (np.maximum(compute_s, memory_s) + tiny)),
        "weight_share": n[:, PARAMETER_BYTES] / moved,
        "log2_product_batch": np.log2(products.batch),
        "log2_n": np.log2(products.n),
        "log2_k": np.log2(products.k),
        "align_n": _alignment(products.n),
        "align_k": _alignment(products.k),
        "log_best_tile": np.log(best),
        "log2_in_channels": np.log2(np.maximum(conv.in_channels, 1.0)),
        "log2_out_channels": np.log2(np.maximum(conv.out_channels, 1.0)),
        "log2_group_width": np.log2(np.maximum(conv.in_channels / groups, 1.0)),
        "taps": conv.taps,
        "stride": conv.stride,
        "dilation": conv.dilation,
        "log2_out_points": np.log2(np.maximum(conv.out_points, 1.0)),
        "images_last": conv.channels_last,
        "log2_rows_per_core": np.log2(rows / facts.cores),
        "log2_columns": np.log2(columns),
        "align_columns": _alignment(columns),
        "log2_bytes_per_element": np.where(is_product, 0.0, np.log2(moved / (rows * columns))),
        "log2_flops_per_element": np.log2(n[:, VECTOR_FLOPS] / (rows * columns) + 1.0),
        "log_share": log_share,
        "training": np.full(len(table), float(job.mode is Mode.TRAIN)),
        "compiled": np.full(len(table), float(job.runtime is not Runtime.EAGER)),
        "channels_last": np.full(len(table), float(job.layout is Layout.NHWC)),
        "version": np.full(len(table), job.framework_version),
        "precision": np.full(len(table), float(_PRECISION_CODE.get(job.precision, 0))),
        "log_sustained": np.log(facts.sustained[table.compute]),
        "log_lanes": np.full(len(table), np.log(facts.lanes)),
        "log_cache_per_core": np.full(len(table), np.log(facts.cache / facts.cores)),
        "log_ridge": np.log(facts.rates[table.compute] / facts.bandwidth),
        "log_learned": log_learned,
    }
    found = np.stack([values[name] for name in FEATURES], axis=1).astype(np.float32)
    optimizer = values["class"] == _CLASS_CODE["optimizer"]
    for name, plain in _PLAIN_OPTIMIZER.items():
        found[optimizer, FEATURES.index(name)] = plain
    return found


def hidden(features: NDArray[np.float32], names: Sequence[str]) -> NDArray[np.float32]:
    """(n, len(FEATURES)) rows in which columns say nothing: all zeros."""
    if not names:
        return features
    shown = features.copy()
    shown[:, [FEATURES.index(name) for name in names]] = 0.0
    return shown


def _alignment(sizes: FloatArray) -> FloatArray:
    whole = np.maximum(sizes, 1).astype(np.int64)
    return np.asarray(np.log2(np.minimum(whole & -whole, _ALIGNMENT_CAP).astype(np.float64)))
