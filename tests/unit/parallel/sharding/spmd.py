"""Runs a lowered graph with numpy: whole on one rank, or sharded on all ranks of a group in lockstep.

Only what small transformers and convolutional networks need. Graphs hold no weights: parameters are random,
float constants 2. Equal results show that every rank computes its share of the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Shape, Value
from predictor.parallel.sharding import Sharding
from predictor.parallel.sharding.layout import Split, segments

Array = NDArray[Any]


def owners(split: Split, parts: int) -> Array:
    """Rank of every index of a dimension that is cut so; sizes must divide."""
    parts_of = [np.repeat(np.arange(parts), size // parts) for size in segments(split)]
    return np.concatenate(parts_of)


def cut(whole: Array, split: Split, parts: int, rank: int) -> Array:
    return np.take(whole, np.flatnonzero(owners(split, parts) == rank), axis=split.dim)


def joined(shards: Sequence[Array], split: Split) -> Array:
    own = owners(split, len(shards))
    shape = list(shards[0].shape)
    shape[split.dim] = len(own)
    whole = np.empty(shape, dtype=shards[0].dtype)
    for rank, shard in enumerate(shards):
        index: list[Any] = [slice(None)] * len(shape)
        index[split.dim] = np.flatnonzero(own == rank)
        whole[tuple(index)] = shard
    return whole


def plain(dim: int, size: int) -> Split:
    return Split(dim, 1, (size,))


def leaves(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random inputs and parameters, constants as far as the graph knows them."""
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name in sorted({*graph.inputs, *graph.parameters, *graph.buffers}):
        value = graph.values[name]
        if name in graph.constants:
            found[name] = np.array(graph.constants[name]).reshape(value.shape)
        elif value.dtype.is_float and name in graph.buffers:
            small = value.elements == 1
            found[name] = np.full(value.shape, 2.0) if small else rng.uniform(0.5, 1.5, value.shape)
        elif value.dtype.is_float:
            found[name] = rng.normal(0, 0.5, value.shape)
        elif value.dtype is DType.BOOL:
            found[name] = rng.integers(0, 2, value.shape).astype(bool)
        else:
            found[name] = rng.integers(0, 2, value.shape)
    return found


def run(graph: Graph, given: Mapping[str, Array]) -> list[Array]:
    """Outputs of the whole graph."""
    return [shards[0] for shards in _lockstep(graph, [dict(given)], {})]


def run_sharded(
    whole: Graph, sharded: Sharding, group: str, parts: int, given: Mapping[str, Array]
) -> list[Array]:
    """Outputs of the graph of one rank, run on all ranks of `group` and joined."""
    local = sharded.graph
    ranks: list[dict[str, Array]] = []
    cuts = {name: dict(shard.splits).get(group) for name, shard in sharded.parameters.items()}
    for rank in range(parts):
        mine = dict(given)
        for name, split in cuts.items():
            if split is not None:
                mine[name] = cut(given[name], split, parts, rank)
        for name in local.inputs:
            place = _difference(whole.values[name].shape, local.values[name].shape)
            if place is not None:
                mine[name] = cut(given[name], place, parts, rank)
        ranks.append(mine)
    outputs = []
    for name, shards in zip(whole.outputs, _lockstep(local, ranks, cuts), strict=True):
        place = _difference(whole.values[name].shape, shards[0].shape)
        if place is None:
            for other in shards[1:]:
                np.testing.assert_allclose(other, shards[0], rtol=1e-9, atol=1e-9)
            outputs.append(shards[0])
        else:
            outputs.append(joined(shards, place))
    return outputs


def _difference(whole: Shape, local: Shape) -> Split | None:
    different = [dim for dim, (a, b) in enumerate(zip(whole, local, strict=True)) if a != b]
    assert len(different) <= 1
    return plain(different[0], whole[different[0]]) if different else None


def _lockstep(
    graph: Graph, ranks: list[dict[str, Array]], cuts: Mapping[str, Split | None]
) -> list[list[Array]]:
    for node in graph.nodes:
        if node.op_type in _EXCHANGES and node.domain == "perfcast":
            results = _EXCHANGES[node.op_type](
                node, [[state[n] for n in node.inputs if n] for state in ranks]
            )
            for state, result in zip(ranks, results, strict=True):
                state[node.outputs[0]] = result
            continue
        for rank, state in enumerate(ranks):
            inputs: list[Any] = [state[name] if name else None for name in node.inputs]
            if node.op_type == "Gather" and cuts.get(node.inputs[0]) is not None:
                made = _split_lookup(node, inputs, cuts[node.inputs[0]], len(ranks), rank)
            elif node.op_type == "Slice" and len(node.inputs) == 1:
                made = _slice_of_rank(node, inputs[0], graph.values[node.outputs[0]], rank, len(ranks))
            else:
                if rank and _adds_bias_to_sum(node, cuts):
                    inputs[2] = None
                made = _OPS[node.op_type](node, inputs, [graph.values[n] for n in node.outputs if n])
            for name, array in zip(filter(None, node.outputs), made, strict=True):
                assert array.shape == graph.values[name].shape, (node, array.shape, graph.values[name].shape)
                state[name] = array
    return [[state[name] for state in ranks] for name in graph.outputs]


def _adds_bias_to_sum(node: Node, cuts: Mapping[str, Split | None]) -> bool:
    """A bias that stands in a product whose results are added up belongs to one rank."""
    is_product = node.op_type in ("Linear", "Conv") and len(node.inputs) > 2
    split = cuts.get(node.inputs[1]) if is_product else None
    inner = 1 if node.op_type == "Conv" or node.attributes.get("transposed_weight") else 0
    return split is not None and split.dim == inner


def _split_lookup(node: Node, inputs: list[Any], split: Split | None, parts: int, rank: int) -> list[Array]:
    table, indices = inputs
    axis = int(node.attributes.get("axis", 0)) % table.ndim  # type: ignore[arg-type]
    assert split is not None
    if split.dim != axis:
        return [np.take(table, indices, axis=axis)]
    mine = np.flatnonzero(owners(split, parts) == rank)
    local = np.full(sum(segments(split)), -1)
    local[mine] = np.arange(len(mine))
    found = local[indices]
    rows = np.take(table, np.maximum(found, 0), axis=axis)
    assert axis == 0
    return [np.where((found >= 0)[..., None], rows, 0.0)]


def _slice_of_rank(node: Node, data: Array, out: Value, rank: int, parts: int) -> list[Array]:
    (dim,) = [d for d, (a, b) in enumerate(zip(data.shape, out.shape, strict=True)) if a != b]
    start = rank * data.shape[dim] // parts
    return [np.take(data, range(start, start + out.shape[dim]), axis=dim)]


# Exchanges: (node, inputs by rank) -> result by rank


def _split_of(node: Node, prefix: str = "") -> Split:
    given = node.attributes
    return Split(given[f"{prefix}axis"], given[f"{prefix}outer"], given[f"{prefix}sizes"])  # type: ignore[arg-type]


def _total(inputs: list[list[Array]]) -> Array:
    return np.asarray(np.sum([own[0] for own in inputs], axis=0))


def _ring(node: Node, inputs: list[list[Array]]) -> list[Array]:
    dim = 2 if inputs[0][0].ndim == 4 else 1
    whole = [np.concatenate([own[i] for own in inputs], axis=dim) for i in range(3)]
    mask = [np.concatenate([own[3] for own in inputs], axis=-2)] if len(inputs[0]) > 3 else []
    (out,) = _attention(node, [*whole, *mask], [])
    return np.split(out, len(inputs), axis=dim)


def _ranks(node: Node) -> range:
    return range(int(node.attributes["ranks"]))  # type: ignore[arg-type]


_EXCHANGES: dict[str, Callable[[Node, list[list[Array]]], list[Array]]] = {
    "AllReduce": lambda node, inputs: [_total(inputs)] * len(inputs),
    "GradientAllReduce": lambda node, inputs: [own[0] for own in inputs],
    "AllGather": lambda node, inputs: [joined([own[0] for own in inputs], _split_of(node))] * len(inputs),
    "ReduceScatter": lambda node, inputs: [
        cut(_total(inputs), _split_of(node), len(inputs), rank) for rank in _ranks(node)
    ],
    "Scatter": lambda node, inputs: [
        cut(own[0], _split_of(node), len(inputs), rank) for rank, own in enumerate(inputs)
    ],
    "AllToAll": lambda node, inputs: [
        cut(joined([own[0] for own in inputs], _split_of(node, "from_")), _split_of(node), len(inputs), rank)
        for rank in _ranks(node)
    ],
    "RingAttention": _ring,
}


# Ops: (node, inputs, types of the outputs) -> outputs


def _linear(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    weight = inputs[1].T if node.attributes.get("transposed_weight") else inputs[1]
    # Threads of a BLAS wait for one another on a busy machine; these products are tiny.
    result = np.einsum("...k,kn->...n", inputs[0], weight)
    return [result + inputs[2] if len(inputs) > 2 and inputs[2] is not None else result]


def _attention(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    q, k, v = inputs[:3]
    repeats = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, repeats, axis=1), np.repeat(v, repeats, axis=1)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if len(inputs) > 3 and inputs[3] is not None:
        scores = scores + inputs[3]
    if node.attributes.get("causal") or node.attributes.get("is_causal"):
        scores = np.where(np.tril(np.ones(scores.shape[-2:], dtype=bool)), scores, -1e30)
    return [_softmax(scores, -1) @ v]


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _layer_norm(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    x = inputs[0]
    scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * inputs[1]
    return [scaled + inputs[2] if len(inputs) > 2 and inputs[2] is not None else scaled]


def _rms_norm(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    x = inputs[0]
    return [x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * inputs[1]]


def _split(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    axis = int(node.attributes.get("axis", 0))  # type: ignore[arg-type]
    ends = np.cumsum([value.shape[axis] for value in outputs])[:-1]
    return np.split(inputs[0], ends, axis=axis)


def _reduce(function: Callable[..., Array]) -> Callable[..., list[Array]]:
    def apply(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
        axes: Any = inputs[1] if len(inputs) > 1 else node.attributes["axes"]
        keep = bool(node.attributes.get("keepdims", 1))
        return [function(inputs[0], axis=tuple(int(axis) for axis in np.ravel(axes)), keepdims=keep)]

    return apply


def _slice(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    data, starts, ends, axes = inputs[:4]
    steps = inputs[4] if len(inputs) > 4 else np.ones(len(axes), dtype=int)
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(*(np.ravel(part) for part in (starts, ends, axes, steps)), strict=True):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return [data[tuple(index)]]


def _conv(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    x, w = inputs[:2]
    pads: Any = node.attributes["pads"]
    strides: Any = node.attributes["strides"]
    groups = int(node.attributes.get("group", 1))  # type: ignore[arg-type]
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    kh, kw = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1]]
    x_parts, w_parts = np.split(windows, groups, axis=1), np.split(w, groups, axis=0)
    out = np.concatenate(
        [np.einsum("bchwij,ocij->bohw", a, b) for a, b in zip(x_parts, w_parts, strict=True)], axis=1
    )
    return [out + inputs[2][:, None, None] if len(inputs) > 2 and inputs[2] is not None else out]


def _batch_norm(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    x, scale, shift, mean, variance = (i if i.ndim > 1 else i[:, None, None] for i in inputs)
    return [(x - mean) / np.sqrt(np.abs(variance) + 1e-5) * scale + shift]


def _max_pool(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    given: Any = node.attributes
    k, s, p = (given[name][0] for name in ("kernel_shape", "strides", "pads"))
    x = np.pad(inputs[0], ((0, 0), (0, 0), (p, p), (p, p)), constant_values=-1e30)
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))[:, :, ::s, ::s]
    return [windows.max(axis=(-1, -2))]


def _grouped(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    x, weights, ends = inputs
    group = np.searchsorted(ends, np.arange(len(x)), side="right")
    return [np.einsum("ri,rio->ro", x, weights[np.minimum(group, len(weights) - 1)])]


def _top_k(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    axis, k = int(node.attributes.get("axis", -1)), outputs[0].shape  # type: ignore[arg-type]
    sign = -1 if node.attributes.get("largest", 1) else 1
    order = np.argsort(sign * inputs[0], axis=axis, kind="stable")
    order = np.take(order, range(k[axis]), axis=axis)
    return [np.take_along_axis(inputs[0], order, axis), order]


def _scatter_elements(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    result = inputs[0].copy()
    if node.attributes.get("reduction") == "add":
        np.add.at(result, inputs[1], inputs[2])
    else:
        result[inputs[1]] = inputs[2]
    return [result]


def _divide(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    whole = np.issubdtype(inputs[0].dtype, np.integer)
    return [inputs[0] // inputs[1] if whole else inputs[0] / inputs[1]]


def _of(function: Callable[..., Any]) -> Callable[..., list[Array]]:
    return lambda node, inputs, outputs: [function(*(i for i in inputs if i is not None))]


def _shaped(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Array]:
    return [inputs[0].reshape(outputs[0].shape)]


_OPS: dict[str, Callable[..., list[Array]]] = {
    "Linear": _linear,
    "MatMul": _of(lambda a, b: a @ b),
    "Attention": _attention,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "Softmax": lambda node, inputs, outputs: [_softmax(inputs[0], int(node.attributes.get("axis", -1)))],
    "Add": _of(lambda a, b: a + b),
    "Sub": _of(lambda a, b: a - b),
    "Mul": _of(lambda a, b: a * b),
    "Div": _divide,
    "Pow": _of(lambda a, b: a**b),
    "Sqrt": _of(lambda a: np.sqrt(np.abs(a))),
    "Neg": _of(lambda a: -a),
    "Tanh": _of(np.tanh),
    "Sigmoid": _of(lambda a: 1 / (1 + np.exp(-a))),
    "Relu": _of(lambda a: np.maximum(a, 0)),
    "Clip": _of(lambda a, *bounds: np.clip(a, -1, 1)),
    "Gelu": _of(lambda a: a * 0.5 * (1 + np.tanh(0.8 * a))),
    "Silu": _of(lambda a: a / (1 + np.exp(-a))),
    "Cos": _of(np.cos),
    "Sin": _of(np.sin),
    "Exp": _of(np.exp),
    "Log": _of(lambda a: np.log(np.abs(a) + 1)),
    "Min": _of(np.minimum),
    "Abs": _of(np.abs),
    "Where": _of(np.where),
    "Less": _of(lambda a, b: a < b),
    "ConstantOfShape": lambda node, inputs, outputs: [np.zeros(outputs[0].shape)],
    "Cast": lambda node, inputs, outputs: [
        inputs[0].astype(float) if outputs[0].dtype.is_float else inputs[0].astype(int)
    ],
    "Identity": _of(lambda a: a),
    "Contiguous": _of(lambda a: a),
    "Dropout": _of(lambda a, *rest: a),
    "Reshape": _shaped,
    "Flatten": _shaped,
    "Squeeze": _shaped,
    "Unsqueeze": _shaped,
    "Expand": lambda node, inputs, outputs: [np.broadcast_to(inputs[0], outputs[0].shape)],
    "Transpose": lambda node, inputs, outputs: [inputs[0].transpose(node.permutation(inputs[0].ndim))],
    "Split": _split,
    "Slice": _slice,
    "Concat": lambda node, inputs, outputs: [np.concatenate(inputs, axis=int(node.attributes["axis"]))],
    "Gather": lambda node, inputs, outputs: [
        # Graphs from configurations count rows from 1 where the contents change no shape.
        np.take(inputs[0], inputs[1], axis=int(node.attributes.get("axis", 0)), mode="wrap")
    ],
    "ReduceMean": _reduce(np.mean),
    "ReduceSum": _reduce(np.sum),
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _of(lambda a: a.mean(axis=(2, 3), keepdims=True)),
    "GroupedMatMul": _grouped,
    "TopK": _top_k,
    "ScatterElements": _scatter_elements,
    "CumSum": lambda node, inputs, outputs: [np.cumsum(inputs[0], axis=int(np.ravel(inputs[1])[0]))],
}
