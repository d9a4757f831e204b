"""ONNX element types against our own. Reading keeps ONNX's numbers: inference tells uint8 from int8."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from predictor.features.dtype import DType

# TensorProto.DataType numbers; written out so that this table needs no onnx import.
FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, STRING, BOOL = range(1, 10)
FLOAT16, DOUBLE, UINT32, UINT64, COMPLEX64, COMPLEX128, BFLOAT16 = range(10, 17)

FROM_ONNX: Mapping[int, DType] = MappingProxyType(
    {
        FLOAT: DType.FLOAT32,
        # Same storage as the signed type, which is all that a cost depends on.
        UINT8: DType.INT8,
        INT8: DType.INT8,
        UINT16: DType.INT16,
        INT16: DType.INT16,
        INT32: DType.INT32,
        INT64: DType.INT64,
        STRING: DType.STRING,
        BOOL: DType.BOOL,
        FLOAT16: DType.FLOAT16,
        DOUBLE: DType.FLOAT64,
        UINT32: DType.INT32,
        UINT64: DType.INT64,
        COMPLEX64: DType.COMPLEX64,
        COMPLEX128: DType.COMPLEX128,
        BFLOAT16: DType.BFLOAT16,
        # FLOAT8E4M3FN, FLOAT8E4M3FNUZ, FLOAT8E5M2, FLOAT8E5M2FNUZ
        17: DType.FLOAT8,
        18: DType.FLOAT8,
        19: DType.FLOAT8,
        20: DType.FLOAT8,
        # UINT4, INT4, FLOAT4E2M1, FLOAT8E8M0
        21: DType.INT4,
        22: DType.INT4,
        23: DType.FLOAT4,
        24: DType.FLOAT8,
        # UINT2, INT2, FLOAT6E2M3, FLOAT6E3M2
        25: DType.INT2,
        26: DType.INT2,
        27: DType.FLOAT6,
        28: DType.FLOAT6,
    }
)

TO_ONNX: Mapping[DType, int] = MappingProxyType(
    {
        DType.FLOAT64: DOUBLE,
        DType.FLOAT32: FLOAT,
        DType.FLOAT16: FLOAT16,
        DType.BFLOAT16: BFLOAT16,
        DType.FLOAT8: 17,
        DType.FLOAT4: 23,
        DType.INT64: INT64,
        DType.INT32: INT32,
        DType.INT16: INT16,
        DType.INT8: INT8,
        DType.INT4: 22,
        DType.INT2: 26,
        DType.FLOAT6: 27,
        DType.BOOL: BOOL,
        DType.COMPLEX64: COMPLEX64,
        DType.COMPLEX128: COMPLEX128,
        DType.STRING: STRING,
    }
)
