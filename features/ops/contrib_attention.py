"""com.microsoft attention ops: what ONNX Runtime's optimiser and the generative exporters write.

All come down to one fused kernel over (queries, keys, values), some with the projections in front. Keys of
earlier steps stand in a cache [B, Hkv, L, D]; the new ones follow them.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.dtype import Compute, DType
from predictor.features.graph import Value
from predictor.features.ops.attention import fused_attention
from predictor.features.ops.matmul import contract
from predictor.features.ops.parts import pointwise, size_of
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import WORK_RULES
from predictor.features.programs.work import AttentionShape, Contraction, Elements, Family, OpWork, Phase

_MS = "com.microsoft"


def _given(op: OpView, *indices: int) -> tuple[Value, ...]:
    values = [value for index in indices if (value := op.optional(index)) is not None]
    return tuple({value.name: value for value in values}.values())


def _cached(op: OpView, index: int) -> int:
    """Keys in the cache at input `index`: [B, Hkv, L, D], or [2, B, H, L, D] with the values."""
    past = op.optional(index)
    return past.shape[-2] if past is not None and len(past.shape) in (4, 5) else 0


def _causal(op: OpView) -> bool:
    return bool(op.integer("unidirectional"))


def multi_head_shape(op: OpView, cache: int) -> AttentionShape:
    """Queries [B, L, H*D] or packed [B, L, H, 3, D]; keys [B, Lk, H*D], [B, H, Lk, D], [B, Lk, H, 2, D]."""
    query, key, value = op.input(0), op.optional(1), op.optional(2)
    heads = op.integer("num_heads", 1)
    if len(query.shape) == 5:
        samples, length, heads, _, width = query.shape
        return AttentionShape(samples, heads, heads, length, length + cache, width, width, _causal(op))
    samples, length, hidden = query.shape
    width = hidden // heads
    kv_length, value_width = length, width
    if key is not None:
        kv_length = key.shape[2] if len(key.shape) == 4 else key.shape[1]
    if value is not None:
        value_width = value.shape[3] if len(value.shape) == 4 else value.shape[2] // heads
    return AttentionShape(samples, heads, heads, length, kv_length + cache, width, value_width, _causal(op))


@WORK_RULES.register(_MS, "MultiHeadAttention")
def multi_head_attention(op: OpView) -> tuple[OpWork, ...]:
    """(query, key, value, bias, key mask, score bias, past key, past value) after the projections."""
    shape = multi_head_shape(op, _cached(op, 6))
    return (fused_attention(op, shape, _given(op, 0, 1, 2, 3, 5, 6, 7), op.present_outputs),)


@WORK_RULES.register(_MS, "DecoderMaskedMultiHeadAttention")
def decoder_attention(op: OpView) -> tuple[OpWork, ...]:
    """(query, key, value, mask, score bias, past key, past value, ...): one new token against the cache."""
    shape = multi_head_shape(op, _cached(op, 5))
    return (fused_attention(op, shape, _given(op, 0, 1, 2, 4, 5, 6), op.present_outputs),)


@WORK_RULES.register(_MS, "PackedMultiHeadAttention")
def packed_multi_head(op: OpView) -> tuple[OpWork, ...]:
    """(query, key, value, bias, token offsets, cumulative lengths): samples without padding."""
    query, heads = op.input(0), op.integer("num_heads", 1)
    packed = len(query.shape) == 4
    samples = max(1, op.input(5).elements - 1)
    tokens, width = query.shape[0], query.shape[-1] if packed else query.shape[1] // heads
    value = op.optional(2)
    value_width = width if value is None else value.shape[1] // heads
    shape = _even(samples, tokens, heads, width, value_width)
    return (_of_tokens(fused_attention(op, shape, _given(op, 0, 1, 2, 3), (op.output(),)), shape, tokens),)


def _even(samples: int, tokens: int, heads: int, width: int, value_width: int) -> AttentionShape:
    """Samples of equal length: the least work for so many tokens."""
    length = max(1, tokens // samples)
    return AttentionShape(samples, heads, heads, length, length, width, value_width, False)


def _of_tokens(work: OpWork, shape: AttentionShape, tokens: int) -> OpWork:
    """FLOPs for all tokens where they do not divide evenly."""
    counted = shape.batch * shape.q_length
    return replace(
        work,
        matrix_flops=work.matrix_flops * tokens // max(1, counted),
        vector_flops=work.vector_flops * tokens // max(1, counted),
    )


@WORK_RULES.register(_MS, "GroupQueryAttention", "SparseAttention")
def group_query_attention(op: OpView) -> tuple[OpWork, ...]:
    """(query, key, value, past key, past value, ...): causal. Without keys the query holds all three.

    `local_window_size` (-1: none) bounds how many keys up to its own a query sees.
    The rotation of queries and keys, where asked for, runs inside: 3 FLOPs an element. Sparse attention is
    priced as if dense: which blocks are kept is data.
    """
    query, key, value = op.input(0), op.optional(1), op.optional(2)
    heads, kv_heads = op.integer("num_heads", 1), op.integer("kv_num_heads", 1)
    samples, length, hidden = query.shape
    width = hidden // (heads if key is not None else heads + 2 * kv_heads)
    new = key.shape[1] if key is not None and len(key.shape) == 3 else length
    value_width = value.shape[2] // kv_heads if value is not None and len(value.shape) == 3 else width
    kv_length = new + _cached(op, 3)
    window = max(0, op.integer("local_window_size"))
    shape = AttentionShape(samples, heads, kv_heads, length, kv_length, width, value_width, True, window)
    work = fused_attention(op, shape, _given(op, 0, 1, 2, 3, 4), op.present_outputs)
    if op.integer("do_rotary"):
        rotated = samples * width * (length * heads + new * kv_heads)
        work = replace(work, vector_flops=work.vector_flops + 3 * rotated)
    return (work,)


def _projection(
    op: OpView, rows: int, columns: int, compute: Compute, out_type: DType
) -> tuple[OpWork, Value]:
    """The joint projection to queries, keys and values."""
    data, weight, bias = op.input(0), op.input(1), op.optional(2)
    projected = Value("projected", (rows, columns), out_type)
    reads = tuple(value for value in (data, weight, bias) if value is not None)
    product = contract(
        op,
        "linear",
        Contraction(1, rows, columns, data.shape[-1]),
        reads=reads,
        writes=(projected,),
        compute=compute,
        bias_elements=projected.elements if bias is not None else 0,
    )
    return product, projected


def _split_widths(op: OpView, columns: int) -> tuple[int, int]:
    """(query and key width, value width) over all heads."""
    sizes = op.integers("qkv_hidden_sizes")
    return (sizes[0], sizes[2]) if len(sizes) == 3 else (columns // 3, columns // 3)


def _projected(
    op: OpView, compute: Compute, out_type: DType, past: int, more: tuple[int, ...]
) -> tuple[OpWork, ...]:
    samples, length, _ = op.input(0).shape
    columns, heads = op.input(1).shape[1], op.integer("num_heads", 1)
    product, projected = _projection(op, samples * length, columns, compute, out_type)
    width, value_width = _split_widths(op, columns)
    cached = _cached(op, past)
    shape = AttentionShape(
        samples, heads, heads, length, length + cached, width // heads, value_width // heads, _causal(op)
    )
    reads = (projected, *_given(op, *more, past))
    return product, fused_attention(op, shape, reads, op.present_outputs)


@WORK_RULES.register(_MS, "Attention", "DecoderMaskedSelfAttention")
def projected_attention(op: OpView) -> tuple[OpWork, ...]:
    """(x, weight [in, q + k + v], bias, mask, past, score bias): the joint projection, then attention."""
    return _projected(op, op.matrix_compute(0, 1), op.input(0).dtype, 4, (5,))


@WORK_RULES.register(_MS, "QAttention")
def quantised_attention(op: OpView) -> tuple[OpWork, ...]:
    """(x int8, weight int8, bias, scales, mask, zero points, past): an integer projection, then attention."""
    return _projected(op, Compute.INT8, op.output().dtype, 8, ())


@WORK_RULES.register(_MS, "PackedAttention")
def packed_attention(op: OpView) -> tuple[OpWork, ...]:
    """(tokens [T, in], weight, bias, token offsets, cumulative lengths): samples without padding."""
    tokens, columns, heads = op.input(0).shape[0], op.input(1).shape[1], op.integer("num_heads", 1)
    product, projected = _projection(op, tokens, columns, op.matrix_compute(0, 1), op.input(0).dtype)
    width, value_width = _split_widths(op, columns)
    samples = max(1, op.input(4).elements - 1)
    shape = _even(samples, tokens, heads, width // heads, value_width // heads)
    return product, _of_tokens(fused_attention(op, shape, (projected,), (op.output(),)), shape, tokens)


@WORK_RULES.register(_MS, "LongformerAttention")
def windowed_attention(op: OpView) -> tuple[OpWork, ...]:
    """(x, weight, bias, mask, global weight, ...): a second projection for global tokens, then a window.

    Each query meets the keys within `window` on both sides; the few global tokens are not counted.
    """
    samples, length, _ = op.input(0).shape
    columns, heads, window = op.input(1).shape[1], op.integer("num_heads", 1), op.integer("window", 1)
    product, projected = _projection(
        op, samples * length, columns, op.matrix_compute(0, 1), op.input(0).dtype
    )
    width = columns // 3 // heads
    seen = min(length, 2 * window + 1)
    shape = AttentionShape(samples, heads, heads, length, seen, width, width, False)
    return product, product, fused_attention(op, shape, (projected, projected), (op.output(),))


@WORK_RULES.register(_MS, "RelativePositionBias")
def position_bias(op: OpView) -> tuple[OpWork, ...]:
    """(table [buckets, heads], lengths): a logarithm, a product, a bound and a look-up per pair and head."""
    out = op.output()
    return (
        OpWork(
            family=Family.GATHER,
            kind="embedding",
            phase=Phase.FORWARD,
            compute=Compute.FP32,
            shape=Elements(out.elements),
            element_bits=out.dtype.bits,
            matrix_flops=0,
            vector_flops=4 * out.elements,
            read_bytes=size_of((op.input(0),)),
            write_bytes=out.size_bytes,
            parameter_bytes=size_of((op.input(0),)) if op.is_weight(0) else 0,
        ),
    )


@WORK_RULES.register(_MS, "GatedRelativePositionBias")
def gated_position_bias(op: OpView) -> tuple[OpWork, ...]:
    """(query, its bias, bias table, weight [D, 8], bias, eco): two gates of a small product, then a scale."""
    query, weight, out = op.input(0), op.input(3), op.output()
    rows = query.elements // max(1, weight.shape[0])
    gates = Value("gates", (rows, weight.shape[1]), query.dtype)
    product = contract(
        op,
        "linear",
        Contraction(1, rows, weight.shape[1], weight.shape[0]),
        reads=(query, op.input(1), weight, op.input(4)),
        writes=(gates,),
        compute=op.matrix_compute(0, 3),
        bias_elements=gates.elements,
    )
    return product, pointwise(op, "gate", 8, reads=(op.input(2), gates, op.input(5)), writes=(out,))
