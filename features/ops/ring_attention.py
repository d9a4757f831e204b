"""Attention over a sequence that is split among ranks: keys and values go round a ring.

perfcast::RingAttention(q, k, v[, mask]) on one rank's shards of equal length. Each of n steps meets the
queries with one shard of keys and values, while the next shard arrives (Liu et al. 2023, arXiv:2310.01889).
Causal shards are cut in zigzag, rank i holding parts i and 2n - 1 - i of 2n, so that all ranks compute equal
shares: the triangle of the own shard, then n - 1 half squares, together 1/n of the whole triangle.

Backward sends keys and values round once more (n - 1 hops), and their gradients back home (n hops).
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.graph import Value
from predictor.features.ops.attention import attention_operands, attention_shape, attention_work
from predictor.features.ops.collectives import transfer_work
from predictor.features.ops.parts import STATISTIC_BYTES, gradient_of, pointwise, size_of
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import AttentionShape, Collective, OpWork, Phase

# A partial result is rescaled and added to the sum so far.
_MERGE_FLOPS = 3


def _hop(op: OpView, size_bytes: int, phase: Phase) -> OpWork:
    return transfer_work(
        Collective.SEND_RECV,
        group=op.text("group"),
        ranks=op.integer("ranks", 1),
        size_bytes=size_bytes,
        write_bytes=size_bytes,
        element_bits=op.input(1).dtype.bits,
        phase=phase,
    )


def _later_step(op: OpView, shape: AttentionShape) -> tuple[AttentionShape, tuple[Value, ...]]:
    """Scores of a step after the first, and the keys and values that it reads."""
    k, v = op.input(1), op.input(2)
    if not shape.causal:
        return shape, (k, v)
    axis = 2 if len(k.shape) == 4 else 1
    length = max(1, shape.kv_length // 2)

    def half(value: Value) -> Value:
        return replace(value, shape=(*value.shape[:axis], length, *value.shape[axis + 1 :]))

    return replace(shape, kv_length=length, causal=False), (half(k), half(v))


@WORK_RULES.register("perfcast", "RingAttention")
def ring_attention(op: OpView) -> tuple[OpWork, ...]:
    """One kernel per step, a hop before each but the first, and a merge after it."""
    shape, out = attention_shape(op), op.output()
    works = [attention_work(op, shape, attention_operands(op, 3), (out,), Phase.FORWARD)]
    later, keys = _later_step(op, shape)
    partial = Value("partial", out.shape, out.dtype)
    for _ in range(op.integer("ranks", 1) - 1):
        works.append(_hop(op, size_of((op.input(1), op.input(2))), Phase.FORWARD))
        works.append(attention_work(op, later, (op.input(0), *keys), (partial,), Phase.FORWARD))
        works.append(pointwise(op, "merge", _MERGE_FLOPS, reads=(partial, out), writes=(out,)))
    return tuple(works)


@BACKWARD_RULES.register("perfcast", "RingAttention")
def ring_attention_backward(op: OpView) -> Backward:
    """Keeps its own shards of q, k, v, the result and one number per row."""
    shape, out = attention_shape(op), op.output()
    operands = attention_operands(op, 3)
    q, k, v = op.input(0), op.input(1), op.input(2)
    gradients = gradient_of(q), gradient_of(k), gradient_of(v)
    reads = (gradient_of(out), out)
    works = [attention_work(op, shape, (*reads, *operands), gradients, Phase.BACKWARD)]
    later, keys = _later_step(op, shape)
    size_bytes = size_of((k, v))
    for _ in range(op.integer("ranks", 1) - 1):
        works.append(_hop(op, size_bytes, Phase.BACKWARD))
        works.append(_hop(op, size_bytes, Phase.BACKWARD))
        works.append(attention_work(op, later, (*reads, q, *keys), gradients, Phase.BACKWARD))
        for gradient in gradients:
            part = Value("part", gradient.shape, gradient.dtype)
            works.append(
                pointwise(op, "add", 1, reads=(gradient, part), writes=(gradient,), phase=Phase.BACKWARD)
            )
    if op.integer("ranks", 1) > 1:
        works.append(_hop(op, size_bytes, Phase.BACKWARD))
    statistics = shape.batch * shape.heads * shape.q_length * STATISTIC_BYTES
    return Backward(tuple(works), (*(value.name for value in operands), out.name), statistics)
