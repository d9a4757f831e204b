"""Element types: what a tensor stores (DType) and what the matrix and vector units compute in (Compute)."""

from __future__ import annotations

from enum import Enum, StrEnum


class DType(Enum):
    """Storage type: value = (name, bits).

    Attributes:
        bits: of one element.
        is_float: true for the types that carry activations and weights.
    """

    FLOAT64 = ("float64", 64)
    FLOAT32 = ("float32", 32)
    FLOAT16 = ("float16", 16)
    BFLOAT16 = ("bfloat16", 16)
    FLOAT8 = ("float8", 8)
    FLOAT6 = ("float6", 6)
    FLOAT4 = ("float4", 4)
    INT64 = ("int64", 64)
    INT32 = ("int32", 32)
    INT16 = ("int16", 16)
    INT8 = ("int8", 8)
    INT4 = ("int4", 4)
    INT2 = ("int2", 2)
    BOOL = ("bool", 8)
    COMPLEX64 = ("complex64", 64)
    COMPLEX128 = ("complex128", 128)
    # Variable-length; sized as a pointer.
    STRING = ("string", 64)

    def __init__(self, label: str, bits: int) -> None:
        # Plain attributes: rules ask for them millions of times.
        self.bits = bits
        self.is_float = label.startswith(("float", "bfloat", "complex"))


class Compute(StrEnum):
    """Arithmetic of an op: selects the device's peak rate."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"
    INT8 = "int8"
