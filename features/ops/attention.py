"""Scaled dot-product attention in one kernel, and what surrounds it.

FLOPs of the two products: 2 * B * H * pairs * (D + Dv), where `pairs` counts the scores that are computed: Lq
* Lk, or the lower triangle when causal, or the band of it that a window leaves (fused kernels skip the
rest). The gradient recomputes the scores: 2 * B * H * pairs * (3 D + 2 Dv). Traffic is q, k, v and the
result; scores stay on the chip, one FP32 number per row is kept.
"""

from __future__ import annotations

from predictor.errors import InvalidGraph
from predictor.features.graph import Value
from predictor.features.ops.parts import STATISTIC_BYTES, gradient_of, pointwise, size_of
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import AttentionShape, Family, OpWork, Phase

FUSED = frozenset(
    {
        ("perfcast", "Attention"),
        ("", "Attention"),
        ("com.microsoft", "MultiHeadAttention"),
        ("com.microsoft", "GroupQueryAttention"),
    }
)
"""(domain, op type) of attention in one kernel on (query, key, value)."""

# Per score: scale, maximum, subtract, exp, sum, divide; backward: exp again, two products, a sum, a
# difference.
_FORWARD_FLOPS = 6
_BACKWARD_FLOPS = 8


def fused_attention(
    op: OpView, shape: AttentionShape, reads: tuple[Value, ...], writes: tuple[Value, ...]
) -> OpWork:
    """Forward work of one fused kernel."""
    return attention_work(op, shape, reads, writes, Phase.FORWARD)


def attention_work(
    op: OpView, shape: AttentionShape, reads: tuple[Value, ...], writes: tuple[Value, ...], phase: Phase
) -> OpWork:
    """One fused kernel forward, or the two of its gradient."""
    backward = phase is Phase.BACKWARD
    scores = shape.batch * shape.heads * shape.pairs
    widths = (3, 2) if backward else (1, 1)
    statistics = shape.batch * shape.heads * shape.q_length * STATISTIC_BYTES
    return OpWork(
        family=Family.ATTENTION,
        kind="attention",
        phase=phase,
        compute=op.matrix_compute(0),
        shape=shape,
        element_bits=element_bits(reads),
        matrix_flops=2 * scores * (widths[0] * shape.head_dim + widths[1] * shape.value_dim),
        vector_flops=scores * (_BACKWARD_FLOPS if backward else _FORWARD_FLOPS),
        read_bytes=size_of(reads) + (statistics if backward else 0),
        write_bytes=size_of(writes) + (statistics if op.training and not backward else 0),
        # Backward: one pass for the row sums of output times gradient, one for dQ, dK, dV.
        launch_count=2 if backward else 1,
    )


def attention_shape(op: OpView) -> AttentionShape:
    """From (q, k, v) with heads as an axis [B, H, L, D], or folded [B, L, H*D] and given as attributes.

    Keys that an ONNX Attention carries along (input 4) come before the new ones. `window` is how many keys up
    to its own a query sees.
    """
    q, k, v = op.input(0), op.input(1), op.input(2)
    past = op.optional(4) if op.domain == "" else None
    carried = past.shape[2] if past is not None and len(past.shape) == 4 else 0
    causal = bool(op.integer("causal") or op.integer("is_causal") or op.integer("unidirectional"))
    heads = op.integer("heads") or op.integer("q_num_heads") or op.integer("num_heads")
    kv_heads = op.integer("kv_heads") or op.integer("kv_num_heads") or heads
    if len(q.shape) == 4 and len(k.shape) == 4 and len(v.shape) == 4:
        return AttentionShape(
            q.shape[0],
            q.shape[1],
            k.shape[1],
            q.shape[2],
            k.shape[2] + carried,
            q.shape[3],
            v.shape[3],
            causal,
            op.integer("window"),
        )
    if len(q.shape) != 3 or len(k.shape) != 3 or len(v.shape) != 3 or not heads:
        raise InvalidGraph(
            f"{op.op_type}: query, key and value have shapes {q.shape}, {k.shape}, {v.shape}; expected "
            "[batch, heads, length, width] or [batch, length, heads * width] with a head count attribute"
        )
    return AttentionShape(
        q.shape[0],
        heads,
        kv_heads,
        q.shape[1],
        k.shape[1] + carried,
        q.shape[2] // heads,
        v.shape[2] // kv_heads,
        causal,
        op.integer("window"),
    )


def attention_operands(op: OpView, *indices: int) -> tuple[Value, ...]:
    """Query, key, value and those of the inputs `indices` that are given, each once."""
    values = [op.input(index) for index in (0, 1, 2)]
    values += [value for index in indices if (value := op.optional(index)) is not None]
    return tuple({value.name: value for value in values}.values())


@WORK_RULES.register("perfcast", "Attention")
@WORK_RULES.register("", "Attention", since=23)
def attention(op: OpView) -> tuple[OpWork, ...]:
    """(q, k, v[, mask, past keys, past values]); old and new keys and values are written where asked for."""
    return (fused_attention(op, attention_shape(op), attention_operands(op, 3, 4, 5), op.present_outputs),)


@BACKWARD_RULES.register("perfcast", "Attention")
@BACKWARD_RULES.register("", "Attention", since=23)
def attention_backward(op: OpView) -> Backward:
    """Keeps q, k, v, the result and one number per row."""
    shape, out = attention_shape(op), op.output()
    operands = attention_operands(op, 3)
    writes = tuple(gradient_of(op.input(index)) for index in (0, 1, 2))
    work = attention_work(op, shape, (gradient_of(out), out, *operands), writes, Phase.BACKWARD)
    rows = shape.batch * shape.heads * shape.q_length * STATISTIC_BYTES
    return Backward((work,), (*(value.name for value in operands), out.name), rows)


def _latent_shape(op: OpView) -> AttentionShape:
    """All heads share one key per row, whose first `value_width` elements are the value too."""
    query, rows = op.input(0), op.input(1)
    batch, heads, length, width = query.shape
    causal = bool(op.integer("is_causal"))
    value_width = op.integer("value_width", width)
    return AttentionShape(batch, heads, 1, length, rows.shape[2], width, value_width, causal)


@WORK_RULES.register("perfcast", "LatentAttention")
def latent_attention(op: OpView) -> tuple[OpWork, ...]:
    """(query [B, H, L, D], rows [B, 1, N, D]): the rows are read once, as keys and as values."""
    return (fused_attention(op, _latent_shape(op), op.present_inputs, op.present_outputs),)


@BACKWARD_RULES.register("perfcast", "LatentAttention")
def latent_attention_backward(op: OpView) -> Backward:
    """As attention's; a row's gradient is the sum of both of its parts."""
    shape, out, operands = _latent_shape(op), op.output(), op.present_inputs
    writes = tuple(gradient_of(value) for value in operands)
    work = attention_work(op, shape, (gradient_of(out), out, *operands), writes, Phase.BACKWARD)
    statistics = shape.batch * shape.heads * shape.q_length * STATISTIC_BYTES
    return Backward((work,), (*(value.name for value in operands), out.name), statistics)


@WORK_RULES.register("", "RotaryEmbedding", since=23)
@WORK_RULES.register("com.microsoft", "RotaryEmbedding")
def rotary(op: OpView) -> tuple[OpWork, ...]:
    """Pairs rotated by an angle: two products and a sum per element."""
    return (pointwise(op, "rotary", 3),)


@BACKWARD_RULES.register("", "RotaryEmbedding", since=23)
@BACKWARD_RULES.register("com.microsoft", "RotaryEmbedding")
def rotary_backward(op: OpView) -> Backward:
    """The inverse rotation; keeps the tables only."""
    tables = op.present_inputs[1:]
    reads = (gradient_of(op.output()), *tables)
    work = pointwise(op, "rotary", 3, reads=reads, writes=(op.input(0),), phase=Phase.BACKWARD)
    return Backward((work,), tuple(value.name for value in tables))
