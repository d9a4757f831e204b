"""What fine-tuning frameworks run where a configuration's graph says less: their losses, norms and key heads.

Passes over lowered graphs of `from_config`. Hugging Face's and litgpt's decoders normalise in FP32 operator
by operator (modeling_llama.py, litgpt/model.py) and repeat keys and values for every query head. Hugging Face
shifts the scores, copies them, and takes the loss in FP32 under autocast; litgpt takes scores and loss in
chunks of 128 tokens (finetune/lora.py, utils.py), or the loss alone (finetune/full.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Value
from predictor.features.lowering.adapters import product_roles

CHUNK = 128
"""Tokens that litgpt takes the loss of at once."""


class Loss(StrEnum):
    """How scores of words become a loss."""

    SHIFTED_FP32 = "shifted_fp32"
    SHIFTED = "shifted"
    CHUNKED_HEAD = "chunked_head"
    CHUNKED = "chunked"
    PLAIN = "plain"


@dataclass(slots=True)
class _Edit:
    """Nodes and values of a graph under edit."""

    values: dict[str, Value]
    nodes: list[Node]

    def value(self, name: str, shape: tuple[int, ...], dtype: DType) -> str:
        self.values[name] = Value(name, shape, dtype)
        return name

    def op(
        self,
        kind: str,
        inputs: tuple[str, ...],
        out: str,
        shape: tuple[int, ...],
        dtype: DType,
        *,
        domain: str = "",
        **attributes: Attribute,
    ) -> str:
        self.nodes.append(Node(out, kind, inputs, (self.value(out, shape, dtype),), domain, attributes))
        return out


def with_loss(graph: Graph, loss: Loss) -> Graph:
    """`graph`, whose first output is scores [batch, tokens, words], with the loss of the next words."""
    scores = graph.outputs[0]
    edit = _Edit(dict(graph.values), list(graph.nodes))
    results = _LOSSES[loss](edit, graph, scores)
    return replace(
        graph,
        nodes=tuple(edit.nodes),
        values=edit.values,
        inputs=(*graph.inputs, "labels"),
        outputs=(*results, *graph.outputs[1:]),
    )


def _cross_entropy(edit: _Edit, scores: str, labels: str, name: str) -> str:
    """The loss of rows of scores."""
    values = edit.values[scores]
    logarithms = edit.value(f"{name}.logarithms", values.shape, values.dtype)
    loss = edit.value(name, (), values.dtype)
    edit.nodes.append(
        Node(
            name,
            "SoftmaxCrossEntropyLoss",
            (scores, labels),
            (loss, logarithms),
            "",
            {"reduction": "mean"},
        )
    )
    return loss


def _shifted(edit: _Edit, graph: Graph, scores: str, wide: bool = False) -> tuple[str, ...]:
    batch, tokens, words = graph.values[scores].shape
    kind = graph.values[scores].dtype
    rows = batch * (tokens - 1)
    labels = edit.value("labels", (rows,), DType.INT64)
    part = edit.op("Slice", (scores,), "scores.shifted", (batch, tokens - 1, words), kind)
    whole = edit.op("Contiguous", (part,), "scores.copied", (rows, words), kind, domain="perfcast")
    if wide:
        whole = edit.op("Cast", (whole,), "scores.wide", (rows, words), DType.FLOAT32, to=1)
    return (_cross_entropy(edit, whole, labels, "loss"),)


def _plain(edit: _Edit, graph: Graph, scores: str) -> tuple[str, ...]:
    batch, tokens, words = graph.values[scores].shape
    labels = edit.value("labels", (batch * tokens,), DType.INT64)
    kind = graph.values[scores].dtype
    rows = edit.op("Reshape", (scores,), "scores.rows", (batch * tokens, words), kind)
    return (_cross_entropy(edit, rows, labels, "loss"), scores)


def _chunked(edit: _Edit, graph: Graph, scores: str) -> tuple[str, ...]:
    """The scores as they are, their loss in chunks; the scores outlive the backward pass."""
    batch, tokens, words = graph.values[scores].shape
    kind = graph.values[scores].dtype
    rows = edit.op("Reshape", (scores,), "scores.rows", (batch * tokens, words), kind)
    edit.value("labels", (batch * tokens,), DType.INT64)
    losses = []
    for number, size in enumerate(_chunks(batch * tokens)):
        part = edit.op("Slice", (rows,), f"scores.{number}", (size, words), kind)
        edit.value(f"labels.{number}", (size,), DType.INT64)
        edit.nodes.append(Node(f"labels.{number}", "Slice", ("labels",), (f"labels.{number}",)))
        losses.append(_cross_entropy(edit, part, f"labels.{number}", f"loss.{number}"))
    return (_sum(edit, losses, kind), scores)


def _chunked_head(edit: _Edit, graph: Graph, scores: str) -> tuple[str, ...]:
    """The product that makes the scores runs once per chunk of each sample's tokens."""
    batch, tokens, words = graph.values[scores].shape
    kind = graph.values[scores].dtype
    first = graph.producer[scores]
    tail = [graph.nodes[first]]
    # Scores may be scaled and capped after the product.
    while tail[-1].op_type != "Linear":
        tail.append(graph.nodes[graph.producer[tail[-1].inputs[0]]])
    product = tail[-1]
    removed = {id(node) for node in tail}
    edit.nodes[:] = [node for node in edit.nodes if id(node) not in removed]
    data = graph.values[product.inputs[0]]
    edit.value("labels", (batch * tokens,), DType.INT64)
    losses, kept = [], []
    for number, size in enumerate(_chunks(tokens)):
        out = edit.op("Slice", (data.name,), f"chunk.{number}", (batch, size, data.shape[-1]), data.dtype)
        for place, node in enumerate(reversed(tail)):
            shape = (batch, size, words)
            name = edit.value(f"scores.{number}.{place}", shape, kind)
            edit.nodes.append(
                replace(node, name=f"{node.name}.{number}", inputs=(out, *node.inputs[1:]), outputs=(name,))
            )
            out = name
        kept.append(out)
    for number, out in enumerate(kept):
        rows = batch * edit.values[out].shape[1]
        flat = edit.op("Reshape", (out,), f"scores.{number}.rows", (rows, words), kind)
        edit.value(f"labels.{number}", (rows,), DType.INT64)
        edit.nodes.append(Node(f"labels.{number}", "Slice", ("labels",), (f"labels.{number}",)))
        losses.append(_cross_entropy(edit, flat, f"labels.{number}", f"loss.{number}"))
    return (_sum(edit, losses, kind), *kept)


def _chunks(tokens: int) -> list[int]:
    return [min(CHUNK, tokens - begin) for begin in range(0, tokens, CHUNK)]


def _sum(edit: _Edit, losses: list[str], kind: DType) -> str:
    total = losses[0]
    for number, loss in enumerate(losses[1:]):
        total = edit.op("Add", (total, loss), f"loss.sum.{number}", (), kind)
    return total


_LOSSES: Mapping[Loss, Callable[[_Edit, Graph, str], tuple[str, ...]]] = {
    Loss.SHIFTED_FP32: partial(_shifted, wide=True),
    Loss.SHIFTED: _shifted,
    Loss.CHUNKED_HEAD: _chunked_head,
    Loss.CHUNKED: _chunked,
    Loss.PLAIN: _plain,
}


def as_written(graph: Graph) -> Graph:
    """Norms in FP32 operator by operator, one product for queries, keys and values, heads repeated."""
    graph = _joined(graph)
    edit = _Edit(dict(graph.values), [])
    wide = _norm_values(graph)
    roots = {root: data for data, root in wide.values()}
    for node in graph.nodes:
        out = node.outputs[0]
        if node.op_type == "Attention":
            attributes = {**node.attributes, "kv_heads": node.attributes["heads"]}
            edit.nodes.append(replace(node, inputs=_repeated(edit, graph, node), attributes=attributes))
        elif out not in wide:
            edit.nodes.append(node)
        else:
            _widen(edit, graph, node, wide, roots)
    return replace(graph, nodes=tuple(edit.nodes), values=edit.values)


def _joined(graph: Graph) -> Graph:
    """Products for queries, keys and values become one, whose result they share."""
    groups: dict[str, list[int]] = {}
    for index, role in product_roles(graph).items():
        if role in ("q", "k", "v"):
            groups.setdefault(graph.nodes[index].inputs[0], []).append(index)
    edit, parameters = _Edit(dict(graph.values), []), set(graph.parameters)
    whole = {indices[0]: indices for indices in groups.values() if len(indices) == _PARTS}
    rest = {index for indices in whole.values() for index in indices[1:]}
    for index, node in enumerate(graph.nodes):
        if index in whole:
            parameters ^= _join(edit, graph, [graph.nodes[item] for item in whole[index]])
        elif index not in rest:
            edit.nodes.append(node)
    return replace(graph, nodes=tuple(edit.nodes), values=edit.values, parameters=frozenset(parameters))


_PARTS = 3


def _join(edit: _Edit, graph: Graph, parts: list[Node]) -> set[str]:
    """One product and its split; the weights that come and go."""
    first, values = parts[0], graph.values
    widths = [values[part.outputs[0]].shape[-1] for part in parts]
    gone = {name for part in parts for name in part.inputs[1:3] if name in graph.parameters}
    total, kind = sum(widths), values[first.outputs[0]].dtype
    depth = values[first.inputs[0]].shape[-1]
    inputs = [first.inputs[0], edit.value(f"{first.name}.joint", (depth, total), kind)]
    if len(first.inputs) > len(inputs):
        inputs.append(edit.value(f"{first.name}.joint_bias", (total,), kind))
    out = edit.value(f"{first.name}.all", (*values[first.outputs[0]].shape[:-1], total), kind)
    attributes = {**first.attributes, "transposed_weight": 0}
    edit.nodes.append(replace(first, inputs=tuple(inputs), outputs=(out,), attributes=attributes))
    outputs = tuple(part.outputs[0] for part in parts)
    edit.nodes.append(Node(f"{first.name}.split", "Split", (out,), outputs, "", {"axis": -1}))
    return gone | set(inputs[1:])


def _norm_values(graph: Graph) -> dict[str, tuple[str, str]]:
    """Results of norms' operators -> (what is normalised, the root that it is divided by)."""
    found: dict[str, tuple[str, str]] = {}
    for node in graph.nodes:
        if node.op_type != "Sqrt":
            continue
        chain = [node.outputs[0]]
        for kind in ("Sqrt", "Add", "ReduceMean", "Pow"):
            place = graph.producer.get(chain[-1])
            if place is None or graph.nodes[place].op_type != kind:
                break
            chain.append(graph.nodes[place].inputs[0])
        data, root = chain[-1], chain[0]
        readers = [graph.nodes[place] for place in graph.consumers.get(root, ())]
        divided = [item for item in readers if item.op_type == "Div" and item.inputs[0] == data]
        if len(chain) == _NORM_DEPTH and divided:
            names = (*chain[:-1], *(item.outputs[0] for item in divided))
            found |= dict.fromkeys(names, (data, root))
    return found


# The root, the sum under it, the mean, the squares, and what was squared.
_NORM_DEPTH = 5


def _widen(
    edit: _Edit, graph: Graph, node: Node, wide: dict[str, tuple[str, str]], roots: dict[str, str]
) -> None:
    """One operator of a norm in FP32; its input is widened once, its result narrowed."""
    out = node.outputs[0]
    data, _ = wide[out]
    source = graph.values[data]
    copy = f"{data}.wide"
    if node.op_type == "Pow":
        edit.op("Cast", (data,), copy, source.shape, DType.FLOAT32, to=1)
    inputs = tuple(copy if name == data else name for name in node.inputs)
    if node.op_type != "Div":
        edit.values[out] = replace(graph.values[out], dtype=DType.FLOAT32)
        edit.nodes.append(replace(node, inputs=inputs))
        return
    result = edit.value(f"{out}.wide", graph.values[out].shape, DType.FLOAT32)
    edit.nodes.append(replace(node, inputs=inputs, outputs=(result,)))
    edit.nodes.append(Node(out, "Cast", (result,), (out,), "", {"to": 16}))


def _repeated(edit: _Edit, graph: Graph, node: Node) -> tuple[str, ...]:
    """Inputs of an attention, keys and values [batch, heads, tokens, width] of as many heads as queries."""
    query = graph.values[node.inputs[0]]
    inputs = list(node.inputs)
    for place in (1, 2):
        value = graph.values[inputs[place]]
        if len(query.shape) != len(value.shape) or len(query.shape) != _RANK:
            continue
        batch, heads, tokens, width = value.shape
        times = query.shape[1] // heads
        if times > 1:
            name = f"{node.name}.{place}"
            shape = (batch, heads * times, tokens, width)
            many = edit.op("Expand", (value.name,), f"{name}.many", shape, value.dtype)
            inputs[place] = edit.op(
                "Contiguous", (many,), f"{name}.heads", shape, value.dtype, domain="perfcast"
            )
    return tuple(inputs)


_RANK = 4


def kept_inputs_bytes(graph: Graph) -> int:
    """Bytes of all that products of blocks read, once each: what they hold beyond autograd's bookkeeping."""
    read = {node.inputs[0] for node in graph.nodes if node.op_type == "BlockLinear"}
    return sum(graph.values[name].size_bytes for name in read)
