"""Output types of norms, activations and products that optimisers fuse, and of our own ops."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.reading.tensor_type import TensorType
from predictor.features.reading.type_rules.operands import TYPES_AFTER_ONNX, Operands

_MS = "com.microsoft"
# Said aloud: the builder would take the first input's type for an answer that is missing.
_UNKNOWN = TensorType(0, None)
_Types = tuple[TensorType, ...]


@TYPES_AFTER_ONNX.register("", "GroupNormalization", "MeanVarianceNormalization")
@TYPES_AFTER_ONNX.register("", "SimplifiedLayerNormalization", "LayerNormalization")
@TYPES_AFTER_ONNX.register(
    _MS, "Gelu", "FastGelu", "BiasGelu", "QuickGelu", "Silu", "BiasAdd", "RotaryEmbedding"
)
@TYPES_AFTER_ONNX.register(_MS, "LayerNormalization", "SimplifiedLayerNormalization", "GroupNorm")
def _like_first(op: Operands) -> _Types:
    known = op.type(0)
    return () if known is None or known.dims is None else (known,)


@TYPES_AFTER_ONNX.register(_MS, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip_norm(op: Operands) -> _Types:
    """(normalised, mean, deviation, sum of the operands)."""
    known = op.type(0)
    if known is None or known.dims is None:
        return ()
    statistics = replace(known, dims=(*known.dims[:-1], 1))
    return known, statistics, statistics, known


@TYPES_AFTER_ONNX.register(_MS, "FusedMatMul", "MatMulNBits")
def _product(op: Operands) -> _Types:
    a, b = op.dims(0), op.dims(1)
    if a is None:
        return ()
    if "N" in op.attributes:
        return (TensorType(op.elem_type(0), (*a[:-1], op.integer("N"))),)
    if b is None or len(a) < 2 or len(b) < 2:
        return (_UNKNOWN,)
    rows = a[-1] if op.integer("transA") else a[-2]
    columns = b[-2] if op.integer("transB") else b[-1]
    stack = a[:-2] if len(a) >= len(b) else b[:-2]
    return (TensorType(op.elem_type(0), (*stack, rows, columns)),)


@TYPES_AFTER_ONNX.register("perfcast", "GroupedMatMul")
def _grouped_product(op: Operands) -> _Types:
    rows, weights = op.dims(0), op.dims(1)
    if not rows or weights is None or len(weights) != 3:
        return (_UNKNOWN,)
    return (TensorType(op.integer("to") or op.elem_type(0), (rows[0], weights[2])),)


@TYPES_AFTER_ONNX.register("perfcast", "LatentAttention")
def _latent_attention(op: Operands) -> _Types:
    query = op.dims(0)
    if query is None or len(query) != 4:
        return (_UNKNOWN,)
    return (TensorType(op.elem_type(0), (*query[:3], op.integer("value_width"))),)


@TYPES_AFTER_ONNX.register("perfcast", "Attention")
def _attention(op: Operands) -> _Types:
    query, value = op.dims(0), op.dims(2)
    if query is None or value is None or len(query) != 4 or len(value) != 4:
        return (_UNKNOWN,)
    return (TensorType(op.elem_type(0), (*query[:3], value[3])),)
