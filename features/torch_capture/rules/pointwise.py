"""Pointwise kernels in either direction: FLOPs per element from the table of ONNX operators."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.features.ops.elementwise import NARY, UNARY
from predictor.features.programs.work import OpWork
from predictor.features.torch_capture.call_view import ATEN_RULES, CallView, elementwise


@dataclass(frozen=True, slots=True)
class Kernel:
    """Name of the work and FLOPs per element of the result."""

    kind: str
    flops: int


_ONNX_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "exp2": "Exp",
    "expm1": "Exp",
    "sqrt": "Sqrt",
    "rsqrt": "Reciprocal",
    "reciprocal": "Reciprocal",
    "leaky_relu": "LeakyRelu",
    "rrelu_with_noise": "LeakyRelu",
    "threshold": "ThresholdedRelu",
    "elu": "Elu",
    "celu": "Celu",
    "selu": "Selu",
    "gelu": "Gelu",
    "silu": "Silu",
    "mish": "Mish",
    "hardswish": "HardSwish",
    "hardsigmoid": "HardSigmoid",
    "hardtanh": "Clip",
    "clamp": "Clip",
    "clamp_min": "Clip",
    "clamp_max": "Clip",
    "softplus": "Softplus",
    "log_sigmoid_forward": "Softplus",
    "softshrink": "Shrink",
    "hardshrink": "Shrink",
    "erf": "Erf",
    "erfc": "Erf",
    "erfinv": "Erf",
    "log": "Log",
    "log2": "Log",
    "log10": "Log",
    "log1p": "Log",
    "abs": "Abs",
    "neg": "Neg",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "atan2": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "trunc": "Floor",
    "frac": "Floor",
    "sign": "Sign",
    "sgn": "Sign",
    "logical_not": "Not",
    "bitwise_not": "BitwiseNot",
    "isnan": "IsNaN",
    "isinf": "IsInf",
    "isfinite": "IsInf",
    "nan_to_num": "IsNaN",
    "digamma": "Erf",
    "lgamma": "Erf",
    "sinc": "Sin",
}

_ONNX_NARY = {
    "add": "Add",
    "sub": "Sub",
    "rsub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "true_divide": "Div",
    "floor_divide": "Div",
    "pow": "Pow",
    "remainder": "Mod",
    "fmod": "Mod",
    "maximum": "Max",
    "minimum": "Min",
    "fmax": "Max",
    "fmin": "Min",
    "_prelu_kernel": "PRelu",
    "where": "Where",
    "masked_fill": "Where",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "eq": "Equal",
    "ne": "Equal",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "lt": "Less",
    "le": "LessOrEqual",
    "isclose": "Equal",
    "__lshift__": "BitShift",
    "__rshift__": "BitShift",
    "bitwise_left_shift": "BitShift",
    "bitwise_right_shift": "BitShift",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "__and__": "BitwiseAnd",
    "__or__": "BitwiseOr",
    "__xor__": "BitwiseXor",
}

# Gradients of activations: one kernel from the output's gradient and what was kept.
_ONNX_BACKWARD = {
    "threshold_backward": "Relu",
    "sigmoid_backward": "Sigmoid",
    "tanh_backward": "Tanh",
    "leaky_relu_backward": "LeakyRelu",
    "rrelu_with_noise_backward": "LeakyRelu",
    "elu_backward": "Elu",
    "gelu_backward": "Gelu",
    "silu_backward": "Silu",
    "mish_backward": "Mish",
    "hardswish_backward": "HardSwish",
    "hardsigmoid_backward": "HardSigmoid",
    "hardtanh_backward": "Clip",
    "softplus_backward": "Softplus",
    "log_sigmoid_backward": "Softplus",
    "softshrink_backward": "Shrink",
    "hardshrink_backward": "Shrink",
}

_OTHER = {
    "addcmul": Kernel("mul", 3),
    "addcdiv": Kernel("div", 3),
    "lerp": Kernel("lerp", 3),
    "native_dropout": Kernel("dropout", 2),
    "native_dropout_backward": Kernel("dropout", 2),
    "_masked_scale": Kernel("dropout", 2),
    "bernoulli": Kernel("random", 2),
    "uniform": Kernel("random", 2),
    "normal": Kernel("random", 4),
    "exponential": Kernel("random", 3),
    "random": Kernel("random", 1),
    "rand": Kernel("random", 2),
    "rand_like": Kernel("random", 2),
    "randn": Kernel("random", 4),
    "randn_like": Kernel("random", 4),
    "randint": Kernel("random", 1),
    "glu": Kernel("glu", 5),
    "glu_backward": Kernel("glu", 8),
    "_prelu_kernel_backward": Kernel("prelu", 4),
    "conj_physical": Kernel("neg", 1),
    "polar": Kernel("polar", 4),
    "complex": Kernel("complex", 0),
    "angle": Kernel("angle", 3),
    "hypot": Kernel("hypot", 4),
    "xlogy": Kernel("xlogy", 2),
    "logaddexp": Kernel("logaddexp", 4),
    "bucketize": Kernel("bucketize", 8),
    "searchsorted": Kernel("bucketize", 8),
}

KERNELS: dict[str, Kernel] = {
    **{name: Kernel(UNARY[entry].kind, UNARY[entry].flops) for name, entry in _ONNX_UNARY.items()},
    **{name: Kernel(NARY[entry].kind, NARY[entry].flops) for name, entry in _ONNX_NARY.items()},
    **{
        name: Kernel(UNARY[entry].kind, UNARY[entry].backward_flops or 1)
        for name, entry in _ONNX_BACKWARD.items()
    },
    **_OTHER,
}
"""Kernels by operator name."""


@ATEN_RULES.register("aten", *KERNELS)
def pointwise(view: CallView) -> tuple[OpWork, ...]:
    """Every operand read once, every result written once."""
    kernel = KERNELS[view.call.op]
    return (elementwise(view, kernel.kind, kernel.flops),)
