"""Runs a sharded graph forward and backward with torch, all ranks in lockstep.

Each exchange has the gradient that its op declares (predictor.features.ops.collectives), not the one that the
joint computation would have: equal gradients show that the conjugates stand where they must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from predictor.features.graph import Graph, Node, Value
from predictor.parallel.sharding import Sharding
from predictor.parallel.sharding.layout import Split
from tests.unit.parallel.sharding.spmd import owners, plain

Tensor: TypeAlias = Any


def places(split: Split, parts: int, rank: int) -> Tensor:
    """Indices of a rank along the dimension."""
    return torch.from_numpy(np.flatnonzero(owners(split, parts) == rank))


def cut(whole: Tensor, split: Split, parts: int, rank: int) -> Tensor:
    return whole.index_select(split.dim, places(split, parts, rank))


def joined(shards: Sequence[Tensor], split: Split) -> Tensor:
    order = torch.cat([places(split, len(shards), rank) for rank in range(len(shards))])
    return torch.cat(list(shards), split.dim).index_select(split.dim, torch.argsort(order))


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """One result and one gradient per rank, by the functions given."""

    @staticmethod
    def forward(ctx: Any, forward: Any, backward: Any, *shards: Tensor) -> Any:
        ctx.backward_of = backward
        return tuple(part.clone() for part in forward([shard.detach() for shard in shards]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (None, None, *ctx.backward_of(list(gradients)))


def exchange(node: Node, shards: list[Tensor]) -> list[Tensor]:
    parts = len(shards)
    every = range(parts)

    def split(prefix: str = "") -> Split:
        given: Any = node.attributes
        return Split(given[f"{prefix}axis"], given[f"{prefix}outer"], given[f"{prefix}sizes"])

    def total(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.stack(tensors).sum(0)] * parts

    def same(tensors: list[Tensor]) -> list[Tensor]:
        return tensors

    def gather(tensors: list[Tensor]) -> list[Tensor]:
        return [joined(tensors, split())] * parts

    def own(tensors: list[Tensor]) -> list[Tensor]:
        return [cut(tensors[rank], split(), parts, rank) for rank in every]

    def scatter_sum(tensors: list[Tensor]) -> list[Tensor]:
        return own(total(tensors))

    def to(tensors: list[Tensor], before: Split, after: Split) -> list[Tensor]:
        whole = joined(tensors, before)
        return [cut(whole, after, parts, rank) for rank in every]

    kinds: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "AllReduce": (total, same),
        "GradientAllReduce": (same, total),
        "AllGather": (gather, own if node.attributes.get("backward") == "slice" else scatter_sum),
        "ReduceScatter": (scatter_sum, gather),
        "Scatter": (own, gather),
        "AllToAll": (
            lambda tensors: to(tensors, split("from_"), split()),
            lambda tensors: to(tensors, split(), split("from_")),
        ),
    }
    forward, backward = kinds[node.op_type]
    made = _Exchange.apply(forward, backward, *shards)
    return list(made)


def ring(node: Node, inputs: list[list[Tensor]]) -> list[Tensor]:
    """Differentiable as a whole: every rank's keys get gradients from all queries."""
    whole = [torch.cat([own[i] for own in inputs], 2) for i in range(3)]
    mask = [torch.cat([own[3] for own in inputs], -2)] if len(inputs[0]) > 3 else []
    return list(_attention(node, [*whole, *mask], []).chunk(len(inputs), 2))


def gradients(
    whole: Graph, sharded: Sharding, group: str, parts: int, given: Mapping[str, np.ndarray]
) -> tuple[list[dict[str, Tensor]], dict[str, Split | None]]:
    """Gradients of all parameters by rank for a loss that weighs all outputs, and how parameters are cut."""
    cuts = {name: dict(shard.splits).get(group) for name, shard in sharded.parameters.items()}
    local = sharded.graph
    states: list[dict[str, Tensor]] = []
    for rank in range(parts):
        state = {name: torch.from_numpy(array.copy()) for name, array in given.items()}
        for name, split in cuts.items():
            if split is not None:
                state[name] = cut(state[name], split, parts, rank)
        for name in local.inputs:
            place = _difference(whole.values[name], local.values[name])
            if place is not None:
                state[name] = cut(state[name], place, parts, rank)
        for name in whole.parameters:
            state[name] = state[name].double().requires_grad_()
        states.append(state)
    _run(local, states, cuts)
    loss = torch.zeros((), dtype=torch.float64)
    for name, final in zip(whole.outputs, local.outputs, strict=True):
        value = whole.values[name]
        weights = _weights(value)
        place = _difference(value, local.values[final])
        for rank, state in enumerate(states):
            mine = weights if place is None else cut(weights, place, parts, rank)
            # Every rank seeds the gradient of its own outputs.
            loss = loss + (state[final] * mine).sum()
    loss.backward()
    found = []
    for state in states:
        grads = {name: state[name].grad for name in whole.parameters}
        found.append({name: grad for name, grad in grads.items() if grad is not None})
    return found, cuts


def _weights(value: Value) -> Tensor:
    rng = np.random.default_rng(len(value.name))
    return torch.from_numpy(rng.normal(size=value.shape))


def _difference(whole: Value, local: Value) -> Split | None:
    different = [dim for dim, (a, b) in enumerate(zip(whole.shape, local.shape, strict=True)) if a != b]
    return plain(different[0], whole.shape[different[0]]) if different else None


def _run(graph: Graph, states: list[dict[str, Tensor]], cuts: Mapping[str, Split | None]) -> None:
    parts = len(states)
    for node in graph.nodes:
        if node.domain == "perfcast" and node.op_type == "RingAttention":
            results = ring(node, [[state[name] for name in node.inputs if name] for state in states])
        elif node.domain == "perfcast" and "ranks" in node.attributes:
            results = exchange(node, [state[node.inputs[0]] for state in states])
        else:
            results = None
        for rank, state in enumerate(states):
            if results is not None:
                state[node.outputs[0]] = results[rank]
                continue
            inputs: list[Any] = [state[name] if name else None for name in node.inputs]
            outputs = [graph.values[name] for name in node.outputs if name]
            split = cuts.get(node.inputs[0]) if node.op_type == "Gather" else None
            if split is not None and split.dim == 0:
                made = _split_lookup(inputs, split, parts, rank)
            elif node.op_type == "Slice" and len(node.inputs) == 1:
                (dim,) = [
                    d
                    for d, (a, b) in enumerate(zip(inputs[0].shape, outputs[0].shape, strict=True))
                    if a != b
                ]
                start = rank * inputs[0].shape[dim] // parts
                made = inputs[0].narrow(dim, start, outputs[0].shape[dim])
            else:
                weight = cuts.get(node.inputs[1]) if node.op_type in ("Linear", "Conv") else None
                inner = 1 if node.op_type == "Conv" or node.attributes.get("transposed_weight") else 0
                if weight is not None and weight.dim == inner and len(inputs) > 2 and rank:
                    # The bias of a sum belongs to one rank forward; its gradient is whole on each.
                    inputs[2] = inputs[2] - inputs[2].detach()
                made = _OPS[node.op_type](node, inputs, outputs)
            for name, tensor in zip(
                filter(None, node.outputs), made if isinstance(made, list) else [made], strict=True
            ):
                assert tuple(tensor.shape) == graph.values[name].shape, node
                state[name] = tensor


def _split_lookup(inputs: list[Any], split: Split, parts: int, rank: int) -> Tensor:
    table, indices = inputs
    mine = places(split, parts, rank)
    local = torch.full((sum(split.sizes) * split.outer,), -1)
    local[mine] = torch.arange(len(mine))
    found = local[indices.long()]
    return torch.where((found >= 0)[..., None], table[found.clamp(min=0)], 0.0)


def _attention(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    q, k, v = inputs[:3]
    k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if len(inputs) > 3 and inputs[3] is not None:
        scores = scores + inputs[3]
    if node.attributes.get("causal") or node.attributes.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -1e30)
    result: Tensor = scores.softmax(-1) @ v
    return result


def _linear(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    weight = inputs[1].T if node.attributes.get("transposed_weight") else inputs[1]
    result: Tensor = inputs[0] @ weight
    return result + inputs[2] if len(inputs) > 2 and inputs[2] is not None else result


def _conv(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    given: Any = node.attributes
    bias = inputs[2] if len(inputs) > 2 else None
    return torch.nn.functional.conv2d(
        inputs[0],
        inputs[1],
        bias,
        stride=tuple(given["strides"]),
        padding=tuple(given["pads"][:2]),
        groups=int(given.get("group", 1)),
    )


def _layer_norm(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    bias = inputs[2] if len(inputs) > 2 else None
    return torch.nn.functional.layer_norm(inputs[0], inputs[0].shape[-1:], inputs[1], bias)


def _batch_norm(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    x, scale, shift, mean, variance = (i if i.ndim > 1 else i[:, None, None] for i in inputs)
    result: Tensor = (x - mean) / (variance.abs() + 1e-5).sqrt() * scale + shift
    return result


def _split(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> list[Tensor]:
    axis = int(node.attributes.get("axis", 0))  # type: ignore[arg-type]
    return list(inputs[0].split([value.shape[axis] for value in outputs], axis))


def _mean(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    given: Any = node.attributes
    axes = inputs[1] if len(inputs) > 1 else given["axes"]
    result: Tensor = inputs[0].mean(tuple(int(a) for a in np.ravel(axes)), keepdim=bool(given["keepdims"]))
    return result


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, inputs, outputs: function(*(i for i in inputs if i is not None))


def _shaped(node: Node, inputs: list[Any], outputs: Sequence[Value]) -> Tensor:
    result: Tensor = inputs[0].reshape(outputs[0].shape)
    return result


_OPS: dict[str, Callable[..., Any]] = {
    "Linear": _linear,
    "Conv": _conv,
    "Attention": _attention,
    "LayerNormalization": _layer_norm,
    "BatchNormalization": _batch_norm,
    "Split": _split,
    "ReduceMean": _mean,
    "MatMul": _of(torch.matmul),
    "Softmax": lambda node, inputs, outputs: inputs[0].softmax(int(node.attributes.get("axis", -1))),
    "Add": _of(torch.add),
    "Mul": _of(torch.mul),
    "Div": _of(torch.div),
    "Pow": _of(torch.pow),
    "Sqrt": _of(torch.sqrt),
    "Neg": _of(torch.neg),
    "Tanh": _of(torch.tanh),
    "Relu": _of(torch.relu),
    "Gelu": _of(lambda a: a * 0.5 * (1 + torch.tanh(0.8 * a))),
    "Silu": _of(torch.nn.functional.silu),
    "Cos": _of(torch.cos),
    "Sin": _of(torch.sin),
    "Where": _of(torch.where),
    "Sub": _of(torch.sub),
    "Cast": lambda node, inputs, outputs: (
        inputs[0].double() if outputs[0].dtype.is_float else inputs[0].long()
    ),
    "Contiguous": _of(lambda a: a),
    "Reshape": _shaped,
    "Flatten": _shaped,
    "Unsqueeze": _shaped,
    "Expand": lambda node, inputs, outputs: inputs[0].expand(outputs[0].shape),
    "ConstantOfShape": lambda node, inputs, outputs: torch.zeros(outputs[0].shape, dtype=torch.float64),
    "Transpose": lambda node, inputs, outputs: inputs[0].permute(node.permutation(inputs[0].ndim)),
    "Concat": lambda node, inputs, outputs: torch.cat(inputs, int(node.attributes["axis"])),
    "Gather": lambda node, inputs, outputs: torch.embedding(inputs[0], inputs[1].long()),
    "GlobalAveragePool": _of(lambda a: a.mean((2, 3), keepdim=True)),
}
