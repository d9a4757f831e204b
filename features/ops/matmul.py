"""Matrix products: MatMul, Gemm, Linear and their integer forms.

FLOPs 2*m*n*k. A product with a 2-D right operand is one large product over all rows (that is how frameworks
run it); two operands of higher rank are a batch of products. Gradients: dA = dY B^T, dB = A^T dY.
"""

from __future__ import annotations

from predictor.features.dtype import Compute
from predictor.features.graph import Value
from predictor.features.ops.parts import size_of, unbroadcast, weight_bytes, work
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Elements, Family, OpWork, Phase


def contract(
    op: OpView,
    kind: str,
    shape: Contraction,
    *,
    reads: tuple[Value, ...],
    writes: tuple[Value, ...],
    compute: Compute,
    phase: Phase = Phase.FORWARD,
    bias_elements: int = 0,
) -> OpWork:
    """The OpWork of one product; a bias costs one addition per output element and no kernel of its own."""
    single = shape.batch == 1 and kind != "bmm"
    return OpWork(
        family=Family.MATMUL if single else Family.BATCHED_MATMUL,
        kind=kind,
        phase=phase,
        compute=compute,
        shape=shape,
        element_bits=element_bits([*reads, *writes]),
        matrix_flops=2 * shape.batch * shape.m * shape.n * shape.k,
        vector_flops=bias_elements,
        read_bytes=size_of(reads),
        write_bytes=size_of(writes),
        parameter_bytes=weight_bytes(op, reads),
    )


def _linear(op: OpView, m: int, n: int, k: int, bias: Value | None) -> tuple[OpWork, ...]:
    out = op.output()
    reads = tuple(value for value in (op.input(0), op.input(1), bias) if value is not None)
    return (
        contract(
            op,
            "linear",
            Contraction(1, m, n, k),
            reads=reads,
            writes=(out,),
            compute=op.matrix_compute(0, 1),
            bias_elements=out.elements if bias is not None else 0,
        ),
    )


def _linear_backward(op: OpView, m: int, n: int, k: int, bias_index: int | None) -> Backward:
    data, weight, out = op.input(0), op.input(1), op.output()
    compute = op.matrix_compute(0, 1)
    works: list[OpWork] = []
    saves: list[str] = []
    passes: tuple[str, ...] = ()
    if op.wants_gradient(0):
        shape = Contraction(1, m, k, n)
        works.append(
            contract(
                op,
                "linear_data_gradient",
                shape,
                reads=(out, weight),
                writes=(data,),
                compute=compute,
                phase=Phase.BACKWARD,
            )
        )
        saves.append(weight.name)
    if op.wants_gradient(1):
        shape = Contraction(1, n, k, m)
        works.append(
            contract(
                op,
                "linear_weight_gradient",
                shape,
                reads=(out, data),
                writes=(weight,),
                compute=compute,
                phase=Phase.BACKWARD,
            )
        )
        saves.append(data.name)
    if bias_index is not None and op.wants_gradient(bias_index):
        bias = op.input(bias_index)
        if bias.elements == out.elements:
            passes = (bias.name,)
        works.extend(unbroadcast(op, out, bias))
    return Backward(tuple(works), tuple(saves), passes=passes)


def _batched(op: OpView) -> Contraction:
    a, b, out = op.input(0), op.input(1), op.output()
    m = a.shape[-2] if len(a.shape) > 1 else 1
    n = b.shape[-1] if len(b.shape) > 1 else 1
    return Contraction(out.elements // max(1, m * n), m, n, a.shape[-1])


def _is_linear(op: OpView) -> bool:
    return len(op.input(1).shape) <= 2


def _rows(op: OpView) -> tuple[int, int, int]:
    """(m, n, k) of a product whose right operand is a matrix or vector."""
    a, b = op.input(0), op.input(1)
    k = a.shape[-1] if a.shape else 1
    return a.elements // max(1, k), b.elements // max(1, b.shape[0] if b.shape else 1), k


@WORK_RULES.register("", "MatMul", "MatMulInteger", "QLinearMatMul")
def matmul(op: OpView) -> tuple[OpWork, ...]:
    """Any ranks; the quantised forms carry scales and zero points that cost nothing worth counting."""
    if op.op_type == "QLinearMatMul":
        a, b, out = op.input(0), op.input(3), op.output()
        k = a.shape[-1]
        m = a.elements // max(1, k)
        n = out.elements // max(1, m) if len(b.shape) <= 2 else b.shape[-1]
        batch = 1 if len(b.shape) <= 2 else out.elements // max(1, a.shape[-2] * n)
        shape = Contraction(batch, m if batch == 1 else a.shape[-2], n, k)
        kind = "linear" if len(b.shape) <= 2 else "bmm"
        return (contract(op, kind, shape, reads=(a, b), writes=(out,), compute=Compute.INT8),)
    compute = Compute.INT8 if op.op_type == "MatMulInteger" else op.matrix_compute(0, 1)
    if not _is_linear(op):
        # Behind the matrices: scales and zeros of a weight in few bits.
        reads = op.present_inputs
        return (contract(op, "bmm", _batched(op), reads=reads, writes=(op.output(),), compute=compute),)
    m, n, k = _rows(op)
    reads = (op.input(0), op.input(1))
    return (
        contract(op, "linear", Contraction(1, m, n, k), reads=reads, writes=(op.output(),), compute=compute),
    )


@BACKWARD_RULES.register("", "MatMul")
def matmul_backward(op: OpView) -> Backward:
    """Two products; an operand that was broadcast over the batch needs a sum as well."""
    if _is_linear(op):
        return _linear_backward(op, *_rows(op), bias_index=None)
    a, b, out, shape = op.input(0), op.input(1), op.output(), _batched(op)
    compute = op.matrix_compute(0, 1)
    works: list[OpWork] = []
    saves: list[str] = []
    plans = (
        (0, a, b, Contraction(shape.batch, shape.m, shape.k, shape.n)),
        (1, b, a, Contraction(shape.batch, shape.k, shape.n, shape.m)),
    )
    for index, target, other, contraction in plans:
        if not op.wants_gradient(index):
            continue
        full = Value("gradient", (contraction.batch, contraction.m, contraction.n), target.dtype)
        works.append(
            contract(
                op,
                "bmm",
                contraction,
                reads=(out, other),
                writes=(full,),
                compute=compute,
                phase=Phase.BACKWARD,
            )
        )
        works.extend(unbroadcast(op, full, target))
        saves.append(other.name)
    return Backward(tuple(works), tuple(saves))


def _gemm(op: OpView) -> tuple[int, int, int]:
    a, out = op.input(0), op.output()
    return out.shape[0], out.shape[1], a.shape[0] if op.integer("transA") else a.shape[1]


@WORK_RULES.register("", "Gemm")
def gemm(op: OpView) -> tuple[OpWork, ...]:
    """alpha * A' B' + beta * C."""
    return _linear(op, *_gemm(op), op.optional(2))


@BACKWARD_RULES.register("", "Gemm")
def gemm_backward(op: OpView) -> Backward:
    """dA, dB, and the column sum for the bias."""
    return _linear_backward(op, *_gemm(op), bias_index=2)


def _linear_sizes(op: OpView) -> tuple[int, int, int]:
    data, weight = op.input(0), op.input(1)
    n = weight.shape[0 if op.integer("transposed_weight") else 1]
    k = data.shape[-1]
    return data.elements // max(1, k), n, k


@WORK_RULES.register("perfcast", "Linear")
def linear(op: OpView) -> tuple[OpWork, ...]:
    """x W + b with the bias in the product's epilogue."""
    return _linear(op, *_linear_sizes(op), op.optional(2))


@BACKWARD_RULES.register("perfcast", "Linear")
def linear_backward(op: OpView) -> Backward:
    """dX, dW, and the column sum for the bias."""
    return _linear_backward(op, *_linear_sizes(op), bias_index=2)


def _widened(op: OpView) -> Value:
    weight = op.input(1)
    return Value("widened", weight.shape, op.input(0).dtype)


def _widening(op: OpView, phase: Phase) -> OpWork:
    """Blocks of few bits to a matrix of the activations' type."""
    weight, wide = op.input(1), _widened(op)
    scales = op.optional(3)
    reads = (weight,) if scales is None else (weight, scales)
    return work(
        op,
        Family.ELEMENTWISE,
        "dequantize",
        Elements(weight.elements),
        reads=reads,
        writes=(wide,),
        flops=2 * weight.elements,
        phase=phase,
    )


@WORK_RULES.register("perfcast", "BlockLinear")
def block_linear(op: OpView) -> tuple[OpWork, ...]:
    """x W + b with W stored in blocks (input 1, scales input 3): widened for every use, then multiplied."""
    m, n, k = _linear_sizes(op)
    reads = tuple(value for value in (op.input(0), _widened(op), op.optional(2)) if value is not None)
    product = contract(
        op,
        "linear",
        Contraction(1, m, n, k),
        reads=reads,
        writes=(op.output(),),
        compute=op.matrix_compute(0),
        bias_elements=op.output().elements if op.optional(2) is not None else 0,
    )
    return _widening(op, Phase.FORWARD), product


@BACKWARD_RULES.register("perfcast", "BlockLinear")
def block_linear_backward(op: OpView) -> Backward:
    """Widened once more for the data's gradient, unless the widened weight was kept; the blocks have none.

    `keeps_input`: the data is kept, though nothing reads it. `keeps_weight`: the widened weight is.
    """
    if not op.wants_gradient(0):
        return Backward()
    m, n, k = _linear_sizes(op)
    product = contract(
        op,
        "linear_data_gradient",
        Contraction(1, m, k, n),
        reads=(op.output(), _widened(op)),
        writes=(op.input(0),),
        compute=op.matrix_compute(0),
        phase=Phase.BACKWARD,
    )
    kept = (op.input(1).name, *([op.input(0).name] if op.integer("keeps_input") else ()))
    if op.integer("keeps_weight"):
        return Backward((product,), kept, _widened(op).size_bytes)
    return Backward((_widening(op, Phase.BACKWARD), product), kept)
