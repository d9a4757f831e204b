"""com.microsoft matrix ops: fused products, quantised weights, mixtures of experts, fused convolutions."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from predictor.features.dtype import Compute, DType
from predictor.features.graph import Value
from predictor.features.ops.conv import conv_flops, conversions, convolve, geometry
from predictor.features.ops.experts import touched_groups
from predictor.features.ops.matmul import contract
from predictor.features.ops.parts import pointwise, row_work, size_of
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Family, OpWork, Phase, Rows

_MS = "com.microsoft"
# Dequantising a number: subtract the zero point, multiply by the scale.
_DEQUANTISE_FLOPS = 2
_ACTIVATIONS = {"Relu": 1, "LeakyRelu": 2, "Tanh": 1, "Sigmoid": 4, "Clip": 2, "HardSigmoid": 4, "Gelu": 5}
# FLOPs per element of a mixture's activation; of a gated one, on half of the width.
_EXPERT_ACTIVATIONS = {"relu": 1, "gelu": 5, "silu": 5, "identity": 0, "swiglu": 6}


def _activation(op: OpView, name: str = "activation") -> int:
    return _ACTIVATIONS.get(op.text(name).removesuffix("Grad"), 0)


def _product(op: OpView) -> Contraction:
    """A product with optional transpositions of either operand."""
    a, b, out = op.input(0), op.input(1), op.output()
    k = a.shape[-2] if op.integer("transA") and len(a.shape) > 1 else a.shape[-1]
    n = b.shape[-2] if op.integer("transB") and len(b.shape) > 1 else (b.shape[-1] if len(b.shape) > 1 else 1)
    if len(b.shape) <= 2:
        return Contraction(1, out.elements // max(1, n), n, k)
    m = out.shape[-2] if len(out.shape) > 1 else 1
    return Contraction(out.elements // max(1, m * n), m, n, k)


@WORK_RULES.register(_MS, "FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")
def fused_matmul(op: OpView) -> tuple[OpWork, ...]:
    """alpha * A' B' and an activation, in the product's epilogue."""
    shape, out = _product(op), op.output()
    kind = "linear" if shape.batch == 1 else "bmm"
    return (
        contract(
            op,
            kind,
            shape,
            reads=(op.input(0), op.input(1)),
            writes=(out,),
            compute=op.matrix_compute(0, 1),
            bias_elements=_activation(op) * out.elements,
        ),
    )


@BACKWARD_RULES.register(_MS, "FusedMatMul", "TransposeMatMul")
def fused_matmul_backward(op: OpView) -> Backward:
    """The two products of any matrix product."""
    shape, a, b, out = _product(op), op.input(0), op.input(1), op.output()
    kind = "linear" if shape.batch == 1 else "bmm"
    plans = (
        (0, a, b, Contraction(shape.batch, shape.m, shape.k, shape.n)),
        (1, b, a, Contraction(shape.batch, shape.k, shape.n, shape.m)),
    )
    works: list[OpWork] = []
    saves: list[str] = []
    for index, target, other, contraction in plans:
        if op.wants_gradient(index):
            works.append(
                contract(
                    op,
                    kind,
                    contraction,
                    reads=(out, other),
                    writes=(target,),
                    compute=op.matrix_compute(0, 1),
                    phase=Phase.BACKWARD,
                )
            )
            saves.append(other.name)
    return Backward(tuple(works), tuple(saves))


@WORK_RULES.register(_MS, "FusedGemm", "GemmFloat8")
def fused_gemm(op: OpView) -> tuple[OpWork, ...]:
    """alpha * A' B' + beta * C, then an activation."""
    a, bias, out = op.input(0), op.optional(2), op.output()
    k = a.shape[0] if op.integer("transA") else a.shape[-1]
    n = out.shape[-1]
    reads = tuple(value for value in (a, op.input(1), bias) if value is not None)
    extra = (1 if bias is not None else 0) + _activation(op)
    return (
        contract(
            op,
            "linear",
            Contraction(1, out.elements // max(1, n), n, k),
            reads=reads,
            writes=(out,),
            compute=op.matrix_compute(0, 1),
            bias_elements=extra * out.elements,
        ),
    )


@WORK_RULES.register(_MS, "MatMulNBits", "MatMulBnb4", "MatMulFpQ4")
def weight_only(op: OpView) -> tuple[OpWork, ...]:
    """Weights of a few bits, dequantised on the way into a product in the activations' type."""
    data, out = op.input(0), op.output()
    k, n = op.integer("K", data.shape[-1]), op.integer("N", out.shape[-1])
    m = data.elements // max(1, k)
    bias = op.optional(5) if op.op_type == "MatMulNBits" else None
    made = contract(
        op,
        "linear_weight_only",
        Contraction(1, m, n, k),
        reads=op.present_inputs,
        writes=(out,),
        compute=op.matrix_compute(0),
        bias_elements=_DEQUANTISE_FLOPS * n * k + (out.elements if bias is not None else 0),
    )
    return (made,)


def _integer_product(op: OpView, a: int, b: int, flops: int) -> OpWork:
    left, right, out = op.input(a), op.input(b), op.output()
    k = left.shape[-1]
    n = out.shape[-1]
    batch = 1 if len(right.shape) <= 2 else prod(out.shape[:-2])
    m = out.elements // max(1, n * batch)
    return contract(
        op,
        "linear" if batch == 1 else "bmm",
        Contraction(batch, m, n, k),
        reads=(left, right),
        writes=(out,),
        compute=Compute.INT8,
        bias_elements=flops * out.elements,
    )


@WORK_RULES.register(_MS, "MatMulIntegerToFloat", "MatMulInteger16")
def integer_to_float(op: OpView) -> tuple[OpWork, ...]:
    """(A, B, scale A, scale B, zero A, zero B, bias): an integer product, scaled and shifted."""
    scaled = op.op_type == "MatMulIntegerToFloat"
    return (_integer_product(op, 0, 1, (2 + (op.optional(6) is not None)) if scaled else 0),)


@WORK_RULES.register(_MS, "DynamicQuantizeMatMul")
def dynamic_product(op: OpView) -> tuple[OpWork, ...]:
    """(A, B int8, scale B, zero B, bias): A's range, A quantised, an integer product, the result scaled."""
    data, out = op.input(0), op.output()
    quantised = Value("quantised", data.shape, DType.INT8)
    extremes = row_work(op, Family.REDUCTION, "max", Rows(1, data.elements), 2, reads=(data,), writes=())
    quantise = pointwise(op, "quantize", 4, reads=(data,), writes=(quantised,))
    made = _integer_product(op, 0, 1, 2 + (op.optional(4) is not None))
    reads = (quantised, op.input(1))
    return extremes, quantise, replace(made, read_bytes=size_of(reads), write_bytes=out.size_bytes)


@WORK_RULES.register(_MS, "QGemm")
def quantised_gemm(op: OpView) -> tuple[OpWork, ...]:
    """(A, scale, zero, B, scale, zero, C, scale, zero): an integer product, bias and requantisation."""
    a, b, out = op.input(0), op.input(3), op.output()
    k = a.shape[0] if op.integer("transA") else a.shape[1]
    bias = op.optional(6)
    reads = tuple(value for value in (a, b, bias) if value is not None)
    return (
        contract(
            op,
            "linear",
            Contraction(1, out.shape[0], out.shape[1], k),
            reads=reads,
            writes=(out,),
            compute=Compute.INT8,
            bias_elements=(2 + (bias is not None)) * out.elements,
        ),
    )


def _experts(op: OpView, places: tuple[tuple[int, ...], ...]) -> tuple[OpWork, ...]:
    """Tokens times their `k` experts, chosen by chance; a gate of all experts is outside the node.

    `places`: of each matrix (up, down, gate) the inputs that hold it, its scales, biases and zeros.
    """
    data, router, out = op.input(0), op.input(1), op.output()
    hidden = data.shape[-1]
    tokens = data.elements // max(1, hidden)
    experts, chosen = router.shape[-1], max(1, op.integer("k", 1))
    packed = 8 // op.integer("expert_weight_bits", 8) if op.op_type == "QMoE" else 1
    up, down = (op.input(place[0]) for place in places[:2])
    # The first matrix is [E, hidden, inter] or [E, inter, hidden]; its size tells what is beside `hidden`.
    width = up.elements * packed // max(1, experts * hidden)
    inter = down.elements * packed // max(1, experts * hidden)
    active = touched_groups(experts, tokens * chosen)
    rows = -(-tokens * chosen // max(1, active))
    activation = _EXPERT_ACTIVATIONS.get(op.text("activation_type", "relu"), 5)
    unpack = _DEQUANTISE_FLOPS if op.op_type == "QMoE" else 0
    works: list[OpWork] = []

    def product(place: tuple[int, ...], n: int, k: int, reads: Value, writes: Value) -> OpWork:
        shares = tuple(
            replace(value, shape=(value.elements * active // experts,))
            for value in filter(None, map(op.optional, place))
        )
        made = contract(
            op,
            "grouped_matmul",
            Contraction(active, rows, n, k),
            reads=(reads, *shares),
            writes=(writes,),
            compute=op.matrix_compute(0),
            bias_elements=unpack * active * n * k,
        )
        return replace(made, matrix_flops=2 * tokens * chosen * n * k)

    middle = Value("middle", (tokens * chosen, width), data.dtype)
    narrowed = Value("narrowed", (tokens * chosen, inter), data.dtype)
    spread = Value("spread", (tokens * chosen, hidden), data.dtype)
    works.append(product(places[0], width, hidden, data, middle))
    if op.optional(places[2][0]) is not None:
        works.append(product(places[2], inter, hidden, data, narrowed))
    works.append(pointwise(op, "experts", activation, reads=(middle,), writes=(narrowed,)))
    works.append(product(places[1], hidden, inter, narrowed, spread))
    # The weighted sum over a token's experts.
    works.append(
        row_work(
            op, Family.REDUCTION, "sum", Rows(out.elements, chosen), 2, reads=(spread, router), writes=(out,)
        )
    )
    return tuple(works)


@WORK_RULES.register(_MS, "MoE")
def mixture(op: OpView) -> tuple[OpWork, ...]:
    """(x, router, first weights, bias, second weights, bias, third weights, bias)."""
    return _experts(op, ((2, 3), (4, 5), (6, 7)))


@WORK_RULES.register(_MS, "QMoE")
def quantised_mixture(op: OpView) -> tuple[OpWork, ...]:
    """(x, router, first weights, scales, bias, second weights, scales, bias, third weights, ..., zeros)."""
    return _experts(op, ((2, 3, 4, 11), (5, 6, 7, 12), (8, 9, 10, 13)))


@WORK_RULES.register(_MS, "FusedConv", "ConvTransposeWithDynamicPads")
def fused_conv(op: OpView) -> tuple[OpWork, ...]:
    """(x, w, bias, residual): the convolution with everything after it in the epilogue."""
    data, weight, out = op.input(0), op.input(1), op.output()
    shape = geometry(op, data, weight, out)
    if op.op_type == "ConvTransposeWithDynamicPads":
        shape = replace(shape, transposed=True)
        # Its third input is the padding.
        after = [value for value in (op.optional(3),) if value is not None]
    else:
        after = [value for value in (op.optional(2), op.optional(3)) if value is not None]
    compute = op.matrix_compute(0, 1)
    plain = convolve(op, shape, compute, (data, weight), out)
    made = convolve(op, shape, compute, (data, weight, *after), out)
    made = replace(made, vector_flops=(len(after) + _activation(op)) * out.elements)
    return *conversions(op, shape, plain), made


def _channels_first(value: Value) -> Value:
    return replace(value, shape=(value.shape[0], value.shape[-1], *value.shape[1:-1]))


@WORK_RULES.register(_MS, "NhwcConv", "NhwcFusedConv")
def channels_last_conv(op: OpView) -> tuple[OpWork, ...]:
    """As FusedConv on [N, H, W, C]; weights are [M, kH, kW, C] where the kernel's size says so."""
    data, weight, out = op.input(0), op.input(1), op.output()
    kernel = op.integers("kernel_shape", weight.shape[2:])
    last = weight.shape[1:-1] == kernel and weight.shape[2:] != kernel
    shape = geometry(
        op, _channels_first(data), _channels_first(weight) if last else weight, _channels_first(out)
    )
    after = [value for value in (op.optional(2), op.optional(3)) if value is not None]
    made = convolve(op, replace(shape, kernel=kernel), op.matrix_compute(0, 1), (data, weight, *after), out)
    assert made.matrix_flops == conv_flops(replace(shape, kernel=kernel))
    return (replace(made, vector_flops=(len(after) + _activation(op)) * out.elements),)


@WORK_RULES.register(_MS, "QLinearConv")
def quantised_conv(op: OpView) -> tuple[OpWork, ...]:
    """As the standard one; may be channels last."""
    data, weight, out = op.input(0), op.input(3), op.output()
    if op.integer("channels_last"):
        data, out = _channels_first(data), _channels_first(out)
    shape = geometry(op, data, weight, out)
    return (convolve(op, shape, Compute.INT8, (data, weight), out),)
