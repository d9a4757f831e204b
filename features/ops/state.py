"""Ops with a state that is carried along: linear attention, causal convolutions, caches."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from predictor.features.graph import IN_PLACE, Value
from predictor.features.ops.conv import DATA_GRADIENT, WEIGHT_GRADIENT, convolve
from predictor.features.ops.parts import copy, gradient_of, pointwise, size_of, sum_to, work
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Contraction, Convolution, Elements, Family, OpWork, Phase

# Vector FLOPs per element of the state and step: the decay, the update rate.
_DECAY, _RATE = 1, 1
_ACTIVATION_FLOPS = 5


@WORK_RULES.register("", "LinearAttention")
def linear_attention(op: OpView) -> tuple[OpWork, ...]:
    """One step per token: the state [d_k, d_v] takes k v^T and answers q; the delta rules also ask it for k.

    Each of these is 2 * d_k * d_v FLOPs; answers are given per query head, updates per key head.
    """
    query, value, out = op.input(0), op.input(2), op.output()
    samples, length = query.shape[0], query.shape[1]
    heads, kv_heads = op.integer("q_num_heads", 1), op.integer("kv_num_heads", 1)
    key_dim, value_dim = op.input(1).shape[2] // kv_heads, value.shape[2] // kv_heads
    rule = op.text("update_rule", "gated_delta")
    state = key_dim * value_dim
    updates = 2 if "delta" in rule else 1
    per_token = 2 * state * (heads + updates * kv_heads)
    vector = state * kv_heads * (_DECAY * ("gated" in rule) + _RATE * ("delta" in rule))
    reads = op.present_inputs
    return (
        OpWork(
            family=Family.ATTENTION,
            kind="linear_attention",
            phase=Phase.FORWARD,
            compute=op.matrix_compute(0),
            shape=Contraction(samples * kv_heads, length, value_dim, key_dim),
            element_bits=element_bits(reads),
            matrix_flops=samples * length * per_token,
            vector_flops=samples * length * vector + out.elements,
            read_bytes=size_of(reads),
            write_bytes=size_of(op.present_outputs),
        ),
    )


@BACKWARD_RULES.register("", "LinearAttention")
def linear_attention_backward(op: OpView) -> Backward:
    """Per product of a step one for either operand, and the step again: three times the forward FLOPs."""
    (forward,) = linear_attention(op)
    writes = [gradient_of(value) for value in op.present_inputs if value.name in op.needs_gradient]
    item = replace(
        forward,
        phase=Phase.BACKWARD,
        matrix_flops=3 * forward.matrix_flops,
        vector_flops=2 * forward.vector_flops,
        read_bytes=forward.read_bytes + op.output().size_bytes,
        write_bytes=size_of(writes),
        launch_count=2,
    )
    return Backward((item,), tuple(value.name for value in op.present_inputs if value.dtype.is_float))


def _causal_shape(op: OpView) -> Convolution:
    data, weight, out = op.input(0), op.input(1), op.output()
    channels, kernel = data.shape[1], weight.shape[-1]
    return Convolution(
        samples=data.shape[0],
        in_channels=channels,
        out_channels=channels,
        groups=channels,
        in_spatial=(data.shape[2] + kernel - 1,),
        out_spatial=out.shape[2:],
        kernel=(kernel,),
        strides=(1,),
        dilations=(1,),
    )


@WORK_RULES.register("", "CausalConvWithState")
def causal_convolution(op: OpView) -> tuple[OpWork, ...]:
    """A depthwise convolution over what came before, and its activation; k - 1 positions are kept."""
    data, weight, out, shape = op.input(0), op.input(1), op.output(), _causal_shape(op)
    reads = tuple(value for value in (data, weight, op.optional(2), op.optional(3)) if value is not None)
    main = convolve(op, shape, op.matrix_compute(0, 1), reads, out)
    activation = _ACTIVATION_FLOPS * out.elements if op.text("activation", "none") != "none" else 0
    works = [replace(main, kind="causal_conv", vector_flops=activation)]
    if op.has_output(1):
        state = op.output(1)
        works.append(copy(op, "copy", reads=(Value("tail", state.shape, state.dtype),), writes=(state,)))
    return tuple(works)


@BACKWARD_RULES.register("", "CausalConvWithState")
def causal_convolution_backward(op: OpView) -> Backward:
    """The activation's derivative, then the gradients of a depthwise convolution."""
    data, weight, out, shape = op.input(0), op.input(1), op.output(), _causal_shape(op)
    compute = op.matrix_compute(0, 1)
    works: list[OpWork] = []
    kept = [data.name, weight.name]
    if op.text("activation", "none") != "none":
        reads = (gradient_of(out), out)
        works.append(pointwise(op, "silu", 8, reads=reads, writes=(out,), phase=Phase.BACKWARD))
        kept.append(out.name)
    if op.wants_gradient(0):
        works.append(convolve(op, shape, compute, (out, weight), data, DATA_GRADIENT))
    if op.wants_gradient(1):
        works.append(convolve(op, shape, compute, (out, data), weight, WEIGHT_GRADIENT))
    if op.wants_gradient(2):
        works.append(sum_to(op, out, op.input(2)))
    return Backward(tuple(works), tuple(kept))


@BACKWARD_RULES.register("", "TensorScatter")
def cache_update_backward(op: OpView) -> Backward:
    """The new rows' gradient is a part of the whole; the old ones' has zeros there."""
    cache, update, out = op.input(0), op.input(1), op.output()
    works: list[OpWork] = []
    if op.wants_gradient(0):
        works.append(copy(op, "copy", reads=(gradient_of(out),), writes=(cache,), phase=Phase.BACKWARD))
    if op.wants_gradient(1):
        picked = Value("picked", update.shape, update.dtype)
        works.append(copy(op, "slice", reads=(picked,), writes=(update,), phase=Phase.BACKWARD))
    return Backward(tuple(works))


@WORK_RULES.register("", "TensorScatter")
def cache_update(op: OpView) -> tuple[OpWork, ...]:
    """The new rows written over the cache: itself where marked, else a copy of it."""
    cache, update, out = op.input(0), op.input(1), op.output()
    written = Value("written", update.shape, cache.dtype)
    reads = tuple(value for value in (update, op.optional(2)) if value is not None)
    rows = work(op, Family.GATHER, "scatter", Elements(prod(update.shape)), reads=reads, writes=(written,))
    return (rows,) if op.integer(IN_PLACE) else (copy(op, "copy", reads=(cache,), writes=(out,)), rows)
