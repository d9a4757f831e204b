"""com.microsoft ops around the matrices: norms with residuals, biases with activations, moves, transforms."""

from __future__ import annotations

from dataclasses import replace
from math import log2, prod

from predictor.features.dtype import DType
from predictor.features.graph import Value
from predictor.features.ops.parts import STATISTIC_BYTES, copy, gradient_of, pointwise, row_work, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase, Rows

_MS = "com.microsoft"
_NORM_FLOPS = 8

# FLOPs per output element.
_POINTWISE = {
    "BiasAdd": ("add", 2),
    # The bias on both halves (2), a Gelu of one (5), their product (1).
    "BiasSplitGelu": ("gelu", 8),
    # The bias, the mask, the scale, the residual.
    "BiasDropout": ("dropout", 4),
    "Silu": ("silu", 5),
    "ComplexMul": ("complex_mul", 3),
    "ComplexMulConj": ("complex_mul", 3),
    "MulInteger": ("mul", 3),
}


@WORK_RULES.register(_MS, *_POINTWISE)
def simple(op: OpView) -> tuple[OpWork, ...]:
    """One kernel. A complex product is 6 FLOPs for two numbers; an integer one subtracts two zero points."""
    kind, flops = _POINTWISE[op.op_type]
    return (pointwise(op, kind, flops),)


@WORK_RULES.register(_MS, "BiasSoftmax")
def bias_softmax(op: OpView) -> tuple[OpWork, ...]:
    """Softmax over the axes from `axis` on, the bias added on the way in."""
    data = op.input(0)
    axis = op.integer("axis", 1) % max(1, len(data.shape))
    rows = Rows(prod(data.shape[:axis]), prod(data.shape[axis:]))
    reads = (data, op.input(1))
    return (row_work(op, Family.SOFTMAX, "softmax", rows, 6, reads=reads, writes=(op.output(),)),)


@WORK_RULES.register(_MS, "EmbedLayerNormalization", "QEmbedLayerNormalization")
def embed_norm(op: OpView) -> tuple[OpWork, ...]:
    """(words, segments, word table, position table, segment table, scale, shift, ...) in one kernel.

    Reads one row of each table per token, adds them, normalises. Quantised tables cost 2 FLOPs more each.
    """
    words, out = op.input(0), op.output()
    hidden = out.shape[-1]
    tables = [value for index in (2, 3, 4) if (value := op.optional(index)) is not None]
    picked = [Value(f"rows{index}", out.shape, table.dtype) for index, table in enumerate(tables)]
    vectors = [value for index in (5, 6) if (value := op.optional(index)) is not None]
    ids = [words, *(value for index in (1, 8) if (value := op.optional(index)) is not None)]
    ids = [value for value in ids if value.dtype in (DType.INT32, DType.INT64)]
    quantised = 2 * len(tables) if op.op_type.startswith("Q") else 0
    flops = len(tables) - 1 + _NORM_FLOPS + quantised
    rows = Rows(words.elements, hidden)
    made = row_work(
        op,
        Family.NORMALIZATION,
        "layer_norm",
        rows,
        flops,
        reads=[*ids, *picked, *vectors],
        writes=op.present_outputs,
    )
    weights = sum(value.size_bytes for value in (*picked, *vectors))
    return (replace(made, parameter_bytes=weights),)


@WORK_RULES.register(_MS, "LayerNormalization")
def layer_norm(op: OpView) -> tuple[OpWork, ...]:
    """As the standard one."""
    rule = WORK_RULES.get("", "LayerNormalization", 17)
    assert rule is not None
    return rule(op)


@BACKWARD_RULES.register(_MS, "LayerNormalization")
def layer_norm_backward(op: OpView) -> Backward:
    """As the standard one."""
    rule = BACKWARD_RULES.get("", "LayerNormalization", 17)
    assert rule is not None
    return rule(op)


@BACKWARD_RULES.register(_MS, "SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_norm_backward(op: OpView) -> Backward:
    """Sums for scale and shift, then one gradient that both the input and the skip take."""
    data, scale, out = op.input(0), op.input(2), op.output()
    simplified = op.op_type == "SkipSimplifiedLayerNormalization"
    rows = Rows(prod(data.shape[:-1]), data.shape[-1])
    statistics = rows.rows * (1 if simplified else 2)
    gradient = gradient_of(out)
    kind = "rms_norm" if simplified else "layer_norm"
    trained = [op.input(index) for index in (2, 3, 4) if op.wants_gradient(index)]
    works: list[OpWork] = []
    if trained:
        works.append(
            row_work(
                op,
                Family.NORMALIZATION,
                f"{kind}_sums",
                rows,
                5,
                reads=(gradient, data),
                writes=trained,
                phase=Phase.BACKWARD,
                statistics=statistics,
            )
        )
    works.append(
        row_work(
            op,
            Family.NORMALIZATION,
            kind,
            rows,
            8,
            reads=(gradient, data, scale),
            writes=(data,),
            phase=Phase.BACKWARD,
            statistics=statistics,
        )
    )
    # The sum of input and skip is what is normalised, and what is kept.
    kept = data.size_bytes + statistics * STATISTIC_BYTES
    return Backward(tuple(works), (scale.name,), kept)


@WORK_RULES.register(_MS, "SkipGroupNorm")
def skip_group_norm(op: OpView) -> tuple[OpWork, ...]:
    """(x, scale, shift, skip, bias): the additions with the statistics, then normalise, scale and shift."""
    data, out = op.input(0), op.output()
    groups = max(1, op.integer("groups", 1))
    rows = Rows(data.shape[0] * groups, data.elements // max(1, data.shape[0] * groups))
    added = [value for index in (0, 3, 4) if (value := op.optional(index)) is not None]
    total = op.output(1) if op.has_output(1) else Value("total", data.shape, data.dtype)
    silu = 5 if op.integer("activation") else 0
    first = row_work(
        op,
        Family.NORMALIZATION,
        "group_norm_statistics",
        rows,
        4 + len(added) - 1,
        reads=added,
        writes=(total,),
        statistics=2 * rows.rows,
    )
    reads = (total, op.input(1), op.input(2))
    return first, row_work(op, Family.NORMALIZATION, "group_norm", rows, 4 + silu, reads=reads, writes=(out,))


_MOVES = {"Trilu": "tril", "Pad": "pad", "RemovePadding": "gather", "RestorePadding": "scatter"}


@WORK_RULES.register(_MS, *_MOVES)
def move(op: OpView) -> tuple[OpWork, ...]:
    """Reads what it writes, and writes it."""
    out = op.output()
    data = op.input(0)
    taken = Value("taken", (min(data.elements, out.elements),), data.dtype)
    return (copy(op, _MOVES[op.op_type], reads=(taken,), writes=(out,)),)


@WORK_RULES.register(_MS, "UnfoldTensor")
def unfold(op: OpView) -> tuple[OpWork, ...]:
    """Windows that overlap are written out."""
    return (copy(op, "unfold", reads=(op.input(0),), writes=(op.output(),)),)


@WORK_RULES.register(_MS, "ExpandDims")
def view(op: OpView) -> tuple[OpWork, ...]:
    """Nothing runs."""
    return ()


@WORK_RULES.register(_MS, "Range")
def fill(op: OpView) -> tuple[OpWork, ...]:
    """Writes its output."""
    return (copy(op, "fill", reads=(), writes=(op.output(),)),)


@WORK_RULES.register(_MS, "TorchEmbedding")
def embedding(op: OpView) -> tuple[OpWork, ...]:
    """One row of the table per index."""
    out = op.output()
    rows = Value("rows", out.shape, out.dtype)
    made = work(
        op, Family.GATHER, "embedding", Elements(out.elements), reads=(rows, op.input(1)), writes=(out,)
    )
    return (replace(made, parameter_bytes=rows.size_bytes if op.is_weight(0) else 0),)


@WORK_RULES.register(_MS, "Rfft", "Irfft")
def fourier(op: OpView) -> tuple[OpWork, ...]:
    """2.5 n log2 n per transform over the last `signal_ndim` axes: half of a complex one."""
    data, out = op.input(0), op.output()
    real = data if op.op_type == "Rfft" else out
    axes = max(1, op.integer("signal_ndim", 1))
    length = prod(real.shape[-axes:])
    rows = Rows(real.elements // max(1, length), length)
    flops = round(rows.rows * 2.5 * length * log2(length)) if length > 1 else 0
    return (work(op, Family.REDUCTION, "fft", rows, reads=(data,), writes=(out,), flops=flops),)


@WORK_RULES.register(_MS, "Inverse")
def inverse(op: OpView) -> tuple[OpWork, ...]:
    """2 n^3 per matrix: factorise and solve for every unit vector."""
    data = op.input(0)
    n = data.shape[-1]
    rows = Rows(data.elements // max(1, n * n), n * n)
    return (row_work(op, Family.REDUCTION, "lu", rows, 2 * n, reads=(data,), writes=(op.output(),)),)


@WORK_RULES.register(_MS, "CDist")
def distances(op: OpView) -> tuple[OpWork, ...]:
    """A difference, a square and a sum per pair and coordinate; a root per pair where Euclidean."""
    a, b, out = op.input(0), op.input(1), op.output()
    root = 1 if op.text("metric", "sqeuclidean") == "euclidean" else 0
    flops = out.elements * (3 * a.shape[-1] + root)
    return (
        work(
            op,
            Family.ELEMENTWISE,
            "cdist",
            Elements(out.elements),
            reads=(a, b),
            writes=(out,),
            flops=flops,
        ),
    )


@WORK_RULES.register(_MS, "GridSample", "CropAndResize")
def sample(op: OpView) -> tuple[OpWork, ...]:
    """Four taps an element, two FLOPs each; reads at most the whole input."""
    data, out = op.input(0), op.output()
    touched = Value("touched", (min(data.elements, 4 * out.elements),), data.dtype)
    return (
        work(
            op,
            Family.GATHER,
            "grid_sample",
            Elements(out.elements),
            reads=(touched, op.input(1)),
            writes=(out,),
            flops=8 * out.elements,
        ),
    )


@WORK_RULES.register(_MS, "Unique")
def unique(op: OpView) -> tuple[OpWork, ...]:
    """A scan over the input."""
    data = op.input(0)
    rows = Rows(1, data.elements)
    return (
        row_work(op, Family.REDUCTION, "scan", rows, 1, reads=(data,), writes=op.present_outputs, launches=3),
    )
