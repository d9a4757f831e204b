"""Pointwise ops, one row of a table each: FLOPs per element, and what the gradient reads.

An activation of torch runs as one kernel in either direction; the table follows torch's choice of what is
saved (derivatives.yaml): ReLU, sigmoid and tanh keep their output, GELU, SiLU and most others their input.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from predictor.features.dtype import DType
from predictor.features.graph import Shape, Value
from predictor.features.ops.parts import gradient_of, pointwise, unbroadcast
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import OpWork, Phase


class Keeps(Enum):
    """What a pointwise op keeps for its gradient."""

    NOTHING = 0
    INPUT = 1
    OUTPUT = 2


@dataclass(frozen=True, slots=True)
class Pointwise:
    """FLOPs per output element in each direction. `backward_flops` None: the gradient is zero everywhere."""

    kind: str
    flops: int
    backward_flops: int | None = None
    keeps: Keeps = Keeps.INPUT


MIXED_ORDER = "mixed_order"

UNARY: dict[str, Pointwise] = {
    "Relu": Pointwise("relu", 1, 1, Keeps.OUTPUT),
    "Sigmoid": Pointwise("sigmoid", 4, 3, Keeps.OUTPUT),
    "Tanh": Pointwise("tanh", 1, 3, Keeps.OUTPUT),
    "Exp": Pointwise("exp", 1, 1, Keeps.OUTPUT),
    "Sqrt": Pointwise("sqrt", 1, 2, Keeps.OUTPUT),
    "Reciprocal": Pointwise("reciprocal", 1, 3, Keeps.OUTPUT),
    # In place wherever it is used (darknets, discriminators): the result is kept, not the input.
    "LeakyRelu": Pointwise("leaky_relu", 2, 2, Keeps.OUTPUT),
    "ThresholdedRelu": Pointwise("thresholded_relu", 1, 1),
    "Elu": Pointwise("elu", 4, 4, Keeps.OUTPUT),
    "Selu": Pointwise("selu", 5, 5, Keeps.OUTPUT),
    "Celu": Pointwise("celu", 5, 5, Keeps.OUTPUT),
    "Gelu": Pointwise("gelu", 5, 10),
    "Silu": Pointwise("silu", 5, 8),
    "Swish": Pointwise("silu", 5, 8),
    "Mish": Pointwise("mish", 5, 10),
    "HardSwish": Pointwise("hard_swish", 5, 5),
    "HardSigmoid": Pointwise("hard_sigmoid", 4, 2),
    "Softplus": Pointwise("softplus", 3, 4),
    "Softsign": Pointwise("softsign", 3, 5),
    "Shrink": Pointwise("shrink", 2, 1),
    "Erf": Pointwise("erf", 1, 5),
    "Log": Pointwise("log", 1, 1),
    "Abs": Pointwise("abs", 1, 2),
    "Neg": Pointwise("neg", 1, 1, Keeps.NOTHING),
    "Sin": Pointwise("sin", 1, 2),
    "Cos": Pointwise("cos", 1, 3),
    "Tan": Pointwise("tan", 1, 3, Keeps.OUTPUT),
    "Asin": Pointwise("asin", 1, 4),
    "Acos": Pointwise("acos", 1, 5),
    "Atan": Pointwise("atan", 1, 3),
    "Sinh": Pointwise("sinh", 1, 2),
    "Cosh": Pointwise("cosh", 1, 2),
    "Asinh": Pointwise("asinh", 1, 4),
    "Acosh": Pointwise("acosh", 1, 4),
    "Atanh": Pointwise("atanh", 1, 3),
    "Clip": Pointwise("clip", 2, 2),
    "Floor": Pointwise("floor", 1),
    "Ceil": Pointwise("ceil", 1),
    "Round": Pointwise("round", 1),
    "Sign": Pointwise("sign", 1),
    "Not": Pointwise("not", 1),
    "BitwiseNot": Pointwise("bitwise_not", 1),
    "IsNaN": Pointwise("is_nan", 1),
    "IsInf": Pointwise("is_inf", 1),
}

# Their gradients differ per operand: see the functions below.
NARY: dict[str, Pointwise] = {
    "Add": Pointwise("add", 1),
    "Sub": Pointwise("sub", 1),
    "Mul": Pointwise("mul", 1),
    "Div": Pointwise("div", 1),
    "Pow": Pointwise("pow", 1),
    "Mod": Pointwise("mod", 3),
    "Max": Pointwise("max", 1),
    "Min": Pointwise("min", 1),
    "Sum": Pointwise("add", 1),
    "Mean": Pointwise("mean", 1),
    "PRelu": Pointwise("prelu", 2),
    "Where": Pointwise("where", 0),
    "And": Pointwise("and", 1),
    "Or": Pointwise("or", 1),
    "Xor": Pointwise("xor", 1),
    "Equal": Pointwise("equal", 1),
    "Greater": Pointwise("greater", 1),
    "GreaterOrEqual": Pointwise("greater_or_equal", 1),
    "Less": Pointwise("less", 1),
    "LessOrEqual": Pointwise("less_or_equal", 1),
    "BitShift": Pointwise("bit_shift", 1),
    "BitwiseAnd": Pointwise("bitwise_and", 1),
    "BitwiseOr": Pointwise("bitwise_or", 1),
    "BitwiseXor": Pointwise("bitwise_xor", 1),
    # A product after a Swish.
    "SwiGLU": Pointwise("swiglu", 6),
}
# Results of these are sums or selections of n operands: n - 1 operations per element, and as many kernels in
# torch.
_CHAINED = frozenset({"Sum", "Mean", "Max", "Min"})


@WORK_RULES.register("", *UNARY)
@WORK_RULES.register("perfcast", "Gelu", "Silu", "Mish")
@WORK_RULES.register("com.microsoft", "Gelu", "FastGelu", "QuickGelu", "BiasGelu")
def unary(op: OpView) -> tuple[OpWork, ...]:
    """One kernel from the input to an output of the same shape; bounds and the like are scalars."""
    entry = _entry(op)
    return (pointwise(op, entry.kind, entry.flops),)


@BACKWARD_RULES.register("", *UNARY)
@BACKWARD_RULES.register("perfcast", "Gelu", "Silu", "Mish")
@BACKWARD_RULES.register("com.microsoft", "Gelu", "FastGelu", "QuickGelu", "BiasGelu")
def unary_backward(op: OpView) -> Backward:
    """One kernel from the gradient and what was kept; a fill with zeros for step functions."""
    entry, data, out = _entry(op), op.input(0), op.output()
    if not op.wants_gradient(0):
        return Backward()
    if entry.backward_flops is None:
        return Backward((pointwise(op, "fill", 0, reads=(), writes=(data,), phase=Phase.BACKWARD),))
    kept = {Keeps.NOTHING: (), Keeps.INPUT: (data,), Keeps.OUTPUT: (out,)}[entry.keeps]
    work = pointwise(
        op,
        entry.kind,
        entry.backward_flops,
        reads=(gradient_of(out), *kept),
        writes=(data,),
        phase=Phase.BACKWARD,
    )
    return Backward((work,), tuple(value.name for value in kept))


def _entry(op: OpView) -> Pointwise:
    return UNARY["Gelu"] if op.op_type.endswith("Gelu") else UNARY[op.op_type]


def _kind(op: OpView, kind: str) -> str:
    """`kind`, or that of a kernel which reads an operand across memory, as transpositions do."""
    return MIXED_ORDER if op.integer("perfcast_mixed_order") else kind


@WORK_RULES.register("", *NARY)
def nary(op: OpView) -> tuple[OpWork, ...]:
    """One kernel for two operands (three for Where); one per further operand of the variadic ops."""
    entry = NARY[op.op_type]
    operands, out = [value for value in op.inputs if value is not None], op.output()
    if op.op_type not in _CHAINED or len(operands) <= 2:
        flops = 0 if len(operands) == 1 else entry.flops
        return (pointwise(op, _kind(op, entry.kind), flops),)
    works = [pointwise(op, entry.kind, entry.flops, reads=operands[:2], writes=(out,))]
    # Operands may be thousands, of few types.
    known: dict[tuple[Shape, DType, bool], OpWork] = {}
    given = [index for index, value in enumerate(op.inputs) if value is not None]
    for index, value in zip(given[2:], operands[2:], strict=True):
        key = value.shape, value.dtype, op.is_weight(index)
        if key not in known:
            known[key] = pointwise(op, entry.kind, entry.flops, reads=(out, value), writes=(out,))
        works.append(known[key])
    return tuple(works)


def _kernel(op: OpView, kind: str, flops: int, index: int, *reads: Value) -> tuple[OpWork, ...]:
    """One kernel of the output's shape, and the sum that follows when operand `index` was broadcast."""
    out, target = op.output(), op.input(index)
    full = Value("full", out.shape, target.dtype)
    work = pointwise(op, kind, flops, reads=(gradient_of(out), *reads), writes=(full,), phase=Phase.BACKWARD)
    return (work, *unbroadcast(op, full, target))


@BACKWARD_RULES.register("", "Add", "Sum", "Sub")
def add_backward(op: OpView) -> Backward:
    """The gradient itself, summed for operands that were broadcast, negated for a subtrahend."""
    works: list[OpWork] = []
    passes: list[str] = []
    for index, value in enumerate(op.inputs):
        if value is None or not op.wants_gradient(index):
            continue
        if op.op_type == "Sub" and index == 1:
            works.extend(_kernel(op, "neg", 1, index))
        elif value.elements == op.output().elements:
            passes.append(value.name)
        else:
            works.extend(unbroadcast(op, op.output(), value))
    return Backward(tuple(works), passes=tuple(passes))


@BACKWARD_RULES.register("", "Mul")
def mul_backward(op: OpView) -> Backward:
    """Per operand the gradient times the other operand."""
    works: list[OpWork] = []
    saves: list[str] = []
    for index, other in ((0, 1), (1, 0)):
        if op.wants_gradient(index):
            works.extend(_kernel(op, "mul", 1, index, op.input(other)))
            saves.append(op.input(other).name)
    return Backward(tuple(works), tuple(saves))


@WORK_RULES.register("perfcast", "Addcmul")
def addcmul(op: OpView) -> tuple[OpWork, ...]:
    """bias + a * b in one kernel."""
    return (pointwise(op, _kind(op, "addcmul"), 2),)


@BACKWARD_RULES.register("perfcast", "Addcmul")
def addcmul_backward(op: OpView) -> Backward:
    """The gradient itself for the bias; times the other one for each factor."""
    bias = op.input(0)
    works = list(unbroadcast(op, op.output(), bias)) if op.wants_gradient(0) else []
    passes = (bias.name,) if op.wants_gradient(0) and bias.elements == op.output().elements else ()
    saves: list[str] = []
    for index, other in ((1, 2), (2, 1)):
        if op.wants_gradient(index):
            works.extend(_kernel(op, "mul", 1, index, op.input(other)))
            saves.append(op.input(other).name)
    return Backward(tuple(works), tuple(saves), passes=passes)


@BACKWARD_RULES.register("", "Div")
def div_backward(op: OpView) -> Backward:
    """g / b, and -g * (a / b) / b in three kernels."""
    a, b = op.input(0), op.input(1)
    works: list[OpWork] = []
    saves: list[str] = []
    if op.wants_gradient(0):
        works.extend(_kernel(op, "div", 1, 0, b))
        saves.append(b.name)
    if op.wants_gradient(1):
        quotient = Value("quotient", op.output().shape, a.dtype)
        works.append(pointwise(op, "div", 1, reads=(a, b), writes=(quotient,), phase=Phase.BACKWARD))
        works.append(pointwise(op, "div", 1, reads=(quotient, b), writes=(quotient,), phase=Phase.BACKWARD))
        works.extend(_kernel(op, "mul", 2, 1, quotient))
        saves += [a.name, b.name]
    return Backward(tuple(works), tuple(dict.fromkeys(saves)))


@BACKWARD_RULES.register("", "Pow")
def pow_backward(op: OpView) -> Backward:
    """g * (c * x^(c-1)) in two kernels; for the exponent g * (y * log x)."""
    base, exponent, out = op.input(0), op.input(1), op.output()
    works: list[OpWork] = []
    saves: list[str] = []
    if op.wants_gradient(0):
        power = Value("power", out.shape, base.dtype)
        works.append(pointwise(op, "pow", 1, reads=(base, exponent), writes=(power,), phase=Phase.BACKWARD))
        works.extend(_kernel(op, "mul", 2, 0, power))
        saves.append(base.name)
    if op.wants_gradient(1):
        scaled = Value("scaled", out.shape, exponent.dtype)
        works.append(pointwise(op, "log", 2, reads=(base, out), writes=(scaled,), phase=Phase.BACKWARD))
        works.extend(_kernel(op, "mul", 1, 1, scaled))
        saves += [base.name, exponent.name, out.name]
    return Backward(tuple(works), tuple(dict.fromkeys(saves)))


@BACKWARD_RULES.register("", "Max", "Min", "Mod", "PRelu")
def select_backward(op: OpView) -> Backward:
    """Per operand the gradient where that operand decided; all operands are kept."""
    works: list[OpWork] = []
    for index, value in enumerate(op.inputs):
        if value is not None and op.wants_gradient(index):
            works.extend(_kernel(op, NARY[op.op_type].kind, 2, index, *op.present_inputs))
    return Backward(tuple(works), tuple(value.name for value in op.present_inputs))


@BACKWARD_RULES.register("", "SwiGLU")
def swiglu_backward(op: OpView) -> Backward:
    """Both gradients in one kernel: the Swish again (5), its derivative (8) and a product each."""
    gate, value = op.input(0), op.input(1)
    reads = (gradient_of(op.output()), gate, value)
    writes = [op.input(index) for index in (0, 1) if op.wants_gradient(index)]
    item = pointwise(op, "swiglu", 15, reads=reads, writes=writes, phase=Phase.BACKWARD)
    return Backward((item,), (gate.name, value.name))


@BACKWARD_RULES.register("", "Mean")
def mean_backward(op: OpView) -> Backward:
    """The gradient over the number of operands."""
    works: list[OpWork] = []
    for index, value in enumerate(op.inputs):
        if value is not None and op.wants_gradient(index):
            works.extend(_kernel(op, "mul", 1, index))
    return Backward(tuple(works))


@BACKWARD_RULES.register("", "Where")
def where_backward(op: OpView) -> Backward:
    """The gradient or zero per branch; the condition is kept."""
    works: list[OpWork] = []
    for index in (1, 2):
        if op.wants_gradient(index):
            works.extend(_kernel(op, "where", 0, index, op.input(0)))
    return Backward(tuple(works), (op.input(0).name,))
