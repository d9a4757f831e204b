"""com.microsoft QLinear ops: arithmetic on quantised numbers: dequantised (2), quantised again (4)."""

from __future__ import annotations

from math import prod

from predictor.features.dtype import Compute
from predictor.features.graph import Value
from predictor.features.ops.parts import pointwise, row_work, size_of, weight_bytes, work
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import Contraction, Elements, Family, OpWork, Phase, Rows

_MS = "com.microsoft"
_IN, _OUT = 2, 4


@WORK_RULES.register(_MS, "QLinearAdd", "QLinearMul")
def binary(op: OpView) -> tuple[OpWork, ...]:
    """(A, scale, zero, B, scale, zero, scale, zero)."""
    kind = "add" if op.op_type == "QLinearAdd" else "mul"
    return (pointwise(op, kind, 2 * _IN + 1 + _OUT, reads=(op.input(0), op.input(3)), writes=(op.output(),)),)


@WORK_RULES.register(_MS, "QLinearWhere")
def select(op: OpView) -> tuple[OpWork, ...]:
    """(condition, X, scale, zero, Y, scale, zero, scale, zero)."""
    reads = (op.input(0), op.input(1), op.input(4))
    return (pointwise(op, "where", _IN + _OUT, reads=reads, writes=(op.output(),)),)


@WORK_RULES.register(_MS, "QLinearSigmoid", "QLinearLeakyRelu")
def by_table(op: OpView) -> tuple[OpWork, ...]:
    """One look-up an element in a table of all 256 results."""
    out = op.output()
    return (
        work(
            op,
            Family.ELEMENTWISE,
            "look_up",
            Elements(out.elements),
            reads=(op.input(0),),
            writes=(out,),
            flops=out.elements,
            extra_read_bytes=256,
        ),
    )


@WORK_RULES.register(_MS, "QLinearSoftmax")
def softmax(op: OpView) -> tuple[OpWork, ...]:
    """Exponentials from a table; a maximum, a difference, a sum, a quotient, a rounding."""
    data = op.input(0)
    axis = op.integer("axis", -1) % max(1, len(data.shape))
    columns = data.shape[axis] if op.integer("opset", 13) >= 13 else prod(data.shape[axis:])
    rows = Rows(data.elements // max(1, columns), columns)
    return (row_work(op, Family.SOFTMAX, "softmax", rows, 5, reads=(data,), writes=(op.output(),)),)


@WORK_RULES.register(_MS, "QLinearAveragePool", "QLinearGlobalAveragePool")
def pool(op: OpView) -> tuple[OpWork, ...]:
    """A sum over the window, requantised."""
    data, out = op.input(0), op.output()
    window = prod(op.integers("kernel_shape")) if op.op_type == "QLinearAveragePool" else 0
    window = window or data.elements // max(1, out.elements)
    return (
        work(
            op,
            Family.POOLING,
            "average_pool",
            Elements(out.elements),
            reads=(data,),
            writes=(out,),
            flops=out.elements * (window + _IN + _OUT),
        ),
    )


@WORK_RULES.register(_MS, "QLinearReduceMean", "ReduceSumInteger")
def reduce(op: OpView) -> tuple[OpWork, ...]:
    """A sum over the axes; the mean is requantised."""
    data, out = op.input(0), op.output()
    columns = max(1, data.elements // max(1, out.elements))
    flops = data.elements + (out.elements * (_IN + _OUT) if op.op_type == "QLinearReduceMean" else 0)
    rows = Rows(out.elements, columns)
    return (work(op, Family.REDUCTION, "sum", rows, reads=(data,), writes=(out,), flops=flops),)


@WORK_RULES.register(_MS, "QLinearConcat")
def concat(op: OpView) -> tuple[OpWork, ...]:
    """(scale, zero, then X, scale, zero each): every element requantised."""
    parts = [value for value in op.inputs[2::3] if value is not None]
    return (pointwise(op, "concat", _IN + _OUT, reads=parts, writes=(op.output(),)),)


@WORK_RULES.register(_MS, "GatherBlockQuantized")
def gather(op: OpView) -> tuple[OpWork, ...]:
    """(table, indices, scales, zeros): picked rows, dequantised."""
    table, indices, out = op.input(0), op.input(1), op.output()
    picked = Value("picked", out.shape, table.dtype)
    return (
        work(
            op,
            Family.GATHER,
            "gather",
            Elements(out.elements),
            reads=(picked, indices),
            writes=(out,),
            flops=_IN * out.elements,
        ),
    )


@WORK_RULES.register(_MS, "DynamicQuantizeLSTM")
def recurrent(op: OpView) -> tuple[OpWork, ...]:
    """(x, W int8 [dirs, in, 4 H], R int8 [dirs, H, 4 H], ...): an LSTM that quantises what it multiplies."""
    data, weight = op.input(0), op.input(1)
    steps, batch, width = data.shape
    directions, hidden = weight.shape[0], op.integer("hidden_size", weight.shape[2] // 4)
    shape = Contraction(steps * directions, batch, 4 * hidden, width + hidden)
    quantise = (_OUT + 2) * shape.batch * batch * shape.k
    return (
        OpWork(
            family=Family.RECURRENT,
            kind="lstm",
            phase=Phase.FORWARD,
            compute=Compute.INT8,
            shape=shape,
            element_bits=element_bits(list(op.present_inputs)),
            matrix_flops=2 * shape.batch * shape.m * shape.n * shape.k,
            vector_flops=24 * shape.batch * batch * hidden + quantise,
            read_bytes=size_of(op.present_inputs),
            write_bytes=size_of(op.present_outputs),
            parameter_bytes=weight_bytes(op, op.present_inputs),
            launch_count=shape.batch,
        ),
    )
