"""Output types of ops that ONNX's inference does not know: two standard functions and common contrib ops.

A rule takes the node's input types (None for an omitted one) and its integer attributes, and returns output
types in order. A new op is one decorated function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from predictor.features.node_types import TensorType
from predictor.registry import Registry

InputTypes: TypeAlias = Sequence[TensorType | None]
TypeRule: TypeAlias = Callable[[InputTypes, Mapping[str, int]], tuple[TensorType, ...]]

OUTPUT_TYPES: Registry[TypeRule] = Registry("type rule")
_MS = "com.microsoft"
_UNKNOWN = TensorType(0, None)


def own_types(
    domain: str, op_type: str, version: int, inputs: InputTypes, integers: Mapping[str, int]
) -> tuple[TensorType, ...]:
    """Output types by our rule; empty when there is none or the inputs are not known well enough."""
    rule = OUTPUT_TYPES.get(domain, op_type, version)
    if rule is None or not inputs or inputs[0] is None or inputs[0].dims is None:
        return ()
    return rule(inputs, integers)


@OUTPUT_TYPES.register("", "GroupNormalization", "MeanVarianceNormalization")
@OUTPUT_TYPES.register(
    _MS,
    *(
        "Gelu",
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "GroupNorm",
    ),
    *("BiasAdd", "Silu", "LayerNormalization"),
)
@OUTPUT_TYPES.register("", "SimplifiedLayerNormalization", "LayerNormalization")
def _like_first(inputs: InputTypes, integers: Mapping[str, int]) -> tuple[TensorType, ...]:
    return (_first(inputs),)


@OUTPUT_TYPES.register(_MS, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_norm(inputs: InputTypes, integers: Mapping[str, int]) -> tuple[TensorType, ...]:
    first = _first(inputs)
    assert first.dims is not None
    statistics = replace(first, dims=(*first.dims[:-1], 1))
    return first, statistics, statistics, first


@OUTPUT_TYPES.register(_MS, "FusedMatMul", "MatMulNBits")
def _fused_matmul(inputs: InputTypes, integers: Mapping[str, int]) -> tuple[TensorType, ...]:
    a = _first(inputs)
    assert a.dims is not None
    if "N" in integers:
        return (replace(a, dims=(*a.dims[:-1], integers["N"])),)
    b = inputs[1] if len(inputs) > 1 else None
    if b is None or b.dims is None or len(a.dims) < 2 or len(b.dims) < 2:
        return (_UNKNOWN,)
    rows = a.dims[-1] if integers.get("transA") else a.dims[-2]
    columns = b.dims[-2] if integers.get("transB") else b.dims[-1]
    stack = a.dims[:-2] if len(a.dims) >= len(b.dims) else b.dims[:-2]
    return (replace(a, dims=(*stack, rows, columns)),)


@OUTPUT_TYPES.register("perfcast", "GroupedMatMul")
def _grouped_matmul(inputs: InputTypes, integers: Mapping[str, int]) -> tuple[TensorType, ...]:
    data, weights = _first(inputs), inputs[1] if len(inputs) > 1 else None
    if not data.dims or weights is None or weights.dims is None or len(weights.dims) != 3:
        return (_UNKNOWN,)
    return (replace(data, dims=(data.dims[0], weights.dims[2])),)


def _first(inputs: InputTypes) -> TensorType:
    first = inputs[0]
    assert first is not None
    return first
