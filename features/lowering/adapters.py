"""Low-rank adapters beside frozen weights, and frozen weights in blocks of few bits (LoRA, QLoRA).

A pass over a lowered graph: every chosen Linear y = x W becomes y = x W + s (drop(x) A) B with A [in, rank]
and B [rank, out]; all other weights stop being parameters (Hu et al. 2021, arXiv:2106.09685). With `quantize`
the frozen weights of products are stored in blocks and widened each time they are used, forward and backward
(Dettmers et al. 2023, arXiv:2305.14314); embeddings and the head keep their type.

Targets are named by what a product is for, found from the graph: `q`, `k`, `v` lead to an attention, `o`
comes from one, `head` makes scores of words, `mlp` is any other; or by a part of the weight's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from predictor.checks import whole_number
from predictor.errors import InvalidRequest, UnknownName
from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Value
from predictor.features.ops.attention import FUSED
from predictor.types import Notice

ROLES = ("q", "k", "v", "o", "mlp", "head")
ALL_TARGETS = "all"
BLOCK_BITS: Mapping[str, float] = {
    # 4 bits and an FP32 scale per block of 64.
    "nf4": 4.5,
    # The scales in 8 bits, with an FP32 scale per 256 of them.
    "nf4-dq": 4 + 8 / 64 + 32 / (64 * 256),
    # 4 bits, an FP16 scale and a packed zero point per group of 128.
    "int4": 4 + 20 / 128,
    # 8 bits and an FP32 scale per row, which rounds to nothing.
    "int8": 8.0,
}
"""Bits that a weight of a product takes, scales included (bitsandbytes; GPTQ's groups for int4)."""

# bitsandbytes' products hold on to what they read (MatMul4Bit, MatMul8bitLt: ctx.tensors); GPTQ's widen with
# plain operators, and the product keeps the widened weight.
_KEEP_INPUTS, _KEEP_WEIGHTS = frozenset({"nf4", "nf4-dq", "int8"}), frozenset({"int4"})

# Ops that a product's result passes on its way to an attention: shapes, positions, norms of heads, biases.
_PASSED = frozenset(
    {
        *("Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze", "Expand", "Contiguous", "Concat"),
        *("Mul", "Add", "Sub", "Neg", "Div", "Cast", "RotaryEmbedding", "RMSNormalization"),
        *("LayerNormalization", "Pow", "Sqrt", "ReduceMean", "Reciprocal", "Softmax"),
    }
)


@dataclass(frozen=True, slots=True)
class Adapters:
    """What is trained, and how the rest is stored.

    Attributes:
        rank: of the adapters; 0 is none, and then `trained` alone is trained.
        targets: roles of ROLES, `all`, or parts of weights' names.
        dropout: adapters drop some of their input, and keep a mask and what is left.
        quantize: a key of BLOCK_BITS, or None.
        trained: further roles whose own weights are trained: of ROLES, or `embedding`.
        wide: adapters are FP32 whatever the activations are, as under autocast.
        copies: what is trained is a copy beside the frozen weights (PEFT's modules_to_save).
        quantized_head: the head is in blocks, too.

    Raises InvalidRequest or UnknownName.
    """

    rank: int = 8
    targets: frozenset[str] = field(default_factory=lambda: frozenset({"q", "v"}))
    dropout: bool = True
    quantize: str | None = None
    trained: frozenset[str] = frozenset()
    wide: bool = False
    copies: bool = False
    quantized_head: bool = False

    def __post_init__(self) -> None:
        if self.rank:
            object.__setattr__(
                self, "rank", whole_number(self.rank, "adapters: rank", "adapters.rank", "at least 1")
            )
        for name in ("targets", "trained"):
            object.__setattr__(self, name, _words(getattr(self, name), name))
        if self.quantize is not None and self.quantize not in BLOCK_BITS:
            raise UnknownName.among("quantize", str(self.quantize), BLOCK_BITS)
        if not self.rank and not self.trained and not self.quantize:
            raise InvalidRequest(
                "adapters: rank is 0, nothing else is trained and nothing quantised; give a rank, roles to "
                "train, or a format of frozen weights",
                field="adapters.rank",
            )


def _words(value: object, name: str) -> frozenset[str]:
    if isinstance(value, str):
        value = value.replace("+", ",").split(",")
    if not isinstance(value, Iterable):
        raise InvalidRequest(f"adapters: {name} is {value!r}; expected names", field=f"adapters.{name}")
    return frozenset(str(item).strip() for item in value if str(item).strip())


def adapt(graph: Graph, adapters: Adapters) -> Graph:
    """`graph`, lowered, with adapters and frozen weights.

    Raises InvalidRequest when no product is a target.
    """
    roles = product_roles(graph)
    chosen = {index for index, role in roles.items() if _is_target(graph.nodes[index], role, adapters)}
    trained = _trained(graph, roles, adapters)
    if adapters.rank and not chosen:
        found = ", ".join(sorted(set(roles.values()))) or "none"
        raise InvalidRequest(
            f"adapters: no product of the graph is a target of {', '.join(sorted(adapters.targets))}; its "
            f"products are: {found}",
            field="adapters.targets",
        )
    values = dict(graph.values)
    parameters = set(trained)
    buffers = set((graph.buffers | graph.parameters) - trained)
    if adapters.copies:
        for name in trained:
            values[f"{name}.frozen"] = replace(values[name], name=f"{name}.frozen")
            buffers.add(f"{name}.frozen")
    nodes: list[Node] = []
    for index, node in enumerate(graph.nodes):
        role = roles.get(index)
        frozen = role is not None and node.inputs[1] not in trained
        if frozen and adapters.quantize and (role != "head" or adapters.quantized_head):
            node = _in_blocks(node, values, adapters.quantize)
            buffers.add(node.inputs[3])
        if index not in chosen or not adapters.rank:
            nodes.append(node)
            continue
        made, weights = _with_adapter(node, values, adapters)
        nodes += made
        parameters |= weights
    return replace(
        graph,
        nodes=tuple(nodes),
        values=values,
        parameters=frozenset(parameters),
        buffers=frozenset(buffers),
        notes=(*graph.notes, _notice(len(chosen), adapters)),
    )


def _notice(count: int, adapters: Adapters) -> Notice:
    stored = f", frozen weights in {adapters.quantize}" if adapters.quantize else ""
    return Notice("ADAPTERS", f"{count} products have adapters of rank {adapters.rank}{stored}")


def product_roles(graph: Graph) -> dict[int, str]:
    """Node index -> role of every Linear with a weight of its own."""
    products = {
        index: node
        for index, node in enumerate(graph.nodes)
        if node.op_type == "Linear" and node.inputs[1] in graph.parameters
    }
    found: dict[int, str] = {}
    for index, node in products.items():
        ahead = _attention_input(graph, node, products)
        if ahead:
            found[index] = ahead
        elif _comes_from_attention(graph, node):
            found[index] = "o"
        elif node.outputs[0] in _results(graph):
            found[index] = "head"
        else:
            found[index] = "mlp"
    return found


def _results(graph: Graph) -> set[str]:
    """Values that reach an output or a loss through shapes alone."""
    found = set(graph.outputs)
    for node in reversed(graph.nodes):
        is_loss = node.op_type in ("SoftmaxCrossEntropyLoss", "TokenLoss", "NegativeLogLikelihoodLoss")
        passes = node.op_type in _AFTER_SCORES
        if is_loss or (passes and not found.isdisjoint(node.outputs)):
            found.add(node.inputs[0])
    return found


# Between the scores of words and the loss or the output.
_AFTER_SCORES = frozenset(
    {
        *("Reshape", "Cast", "Slice", "Split", "Contiguous", "Transpose", "LogSoftmax", "Mul", "Tanh", "Div"),
        *("Concat", "Flatten", "Squeeze", "Unsqueeze", "Identity"),
    }
)


def _attention_input(graph: Graph, node: Node, products: Mapping[int, Node]) -> str:
    """`q`, `k` or `v`, or all of these where one product makes them together; empty for other products."""
    reached: set[str] = set()
    todo, seen = list(node.outputs), set(node.outputs)
    while todo:
        name = todo.pop()
        for index in graph.consumers.get(name, ()):
            reader = graph.nodes[index]
            if (reader.domain, reader.op_type) in FUSED:
                places = [place for place, read in enumerate(reader.inputs[:3]) if read == name]
                reached.update("qkv"[place] for place in places)
            elif reader.op_type in _PASSED and index not in products:
                todo += [out for out in reader.outputs if out and out not in seen]
                seen.update(reader.outputs)
    if not reached or len(seen) > _FARTHEST * len(reached) * 3:
        return ""
    return "".join(role for role in "qkv" if role in reached)


# Values on the way from a product to an attention; beyond, it is the residual stream that was followed.
_FARTHEST = 24


def _comes_from_attention(graph: Graph, node: Node) -> bool:
    name = node.inputs[0]
    for _ in range(_BACK):
        index = graph.producer.get(name)
        if index is None:
            return False
        before = graph.nodes[index]
        if (before.domain, before.op_type) in FUSED:
            return True
        if before.op_type not in ("Reshape", "Transpose", "Contiguous", "Dropout"):
            return False
        name = before.inputs[0]
    return False


_BACK = 6


def _is_target(node: Node, role: str, adapters: Adapters) -> bool:
    targets = adapters.targets
    if ALL_TARGETS in targets and role != "head":
        return True
    known = targets & set(ROLES)
    if any(part in known for part in ((role,) if role in ("o", "mlp", "head") else role)):
        return True
    return any(text in node.inputs[1] for text in targets - set(ROLES) - {ALL_TARGETS})


def _trained(graph: Graph, roles: Mapping[int, str], adapters: Adapters) -> frozenset[str]:
    """Weights that are trained themselves."""
    found = {
        name
        for index, role in roles.items()
        if role in adapters.trained
        for name in graph.nodes[index].inputs[1:]
        if name in graph.parameters
    }
    if "embedding" in adapters.trained:
        found |= {
            node.inputs[0]
            for node in graph.nodes
            if node.op_type == "Gather" and node.inputs[0] in graph.parameters
        }
    return frozenset(found)


def _in_blocks(node: Node, values: dict[str, Value], quantize: str) -> Node:
    """The product with its weight stored in blocks: the value's type stands for 4 or 8 bits of it."""
    weight = values[node.inputs[1]]
    bits = BLOCK_BITS[quantize]
    stored = DType.INT8 if bits >= DType.INT8.bits else DType.INT4
    values[weight.name] = replace(weight, dtype=stored)
    scales = f"{weight.name}.scales"
    size = round(weight.elements * (bits - stored.bits) / DType.INT8.bits)
    values[scales] = Value(scales, (max(1, size),), DType.INT8)
    attributes: dict[str, Attribute] = {**node.attributes, "keeps_input": int(quantize in _KEEP_INPUTS)}
    attributes["keeps_weight"] = int(quantize in _KEEP_WEIGHTS)
    return Node(
        node.name,
        "BlockLinear",
        (*node.inputs[:2], *(node.inputs[2:3] or ("",)), scales),
        node.outputs,
        "perfcast",
        attributes,
    )


def _with_adapter(
    node: Node, values: dict[str, Value], adapters: Adapters
) -> tuple[Sequence[Node], set[str]]:
    """The product, and beside it the adapter whose result is added."""
    data, out = values[node.inputs[0]], values[node.outputs[0]]
    stem = node.outputs[0]

    def made(name: str, shape: tuple[int, ...], dtype: DType | None = None) -> str:
        values[f"{stem}.{name}"] = Value(f"{stem}.{name}", shape, dtype or out.dtype)
        return f"{stem}.{name}"

    stored = DType.FLOAT32 if adapters.wide else None
    down = made("adapter.a", (data.shape[-1], adapters.rank), stored)
    up = made("adapter.b", (adapters.rank, out.shape[-1]), stored)
    plain = made("frozen", out.shape)
    narrow = made("adapter.narrow", (*out.shape[:-1], adapters.rank))
    wide, scaled = made("adapter.wide", out.shape), made("adapter.scaled", out.shape)
    source = node.inputs[0]
    nodes: list[Node] = [replace(node, outputs=(plain,))]
    if adapters.dropout:
        source = made("adapter.dropped", data.shape, data.dtype)
        nodes.append(Node(f"{node.name}.dropout", "Dropout", (node.inputs[0],), (source,)))
    plainly: dict[str, Attribute] = {"transposed_weight": 0}
    factor = made("adapter.scale", ())
    nodes += [
        Node(f"{node.name}.a", "Linear", (source, down), (narrow,), "perfcast", plainly),
        Node(f"{node.name}.b", "Linear", (narrow, up), (wide,), "perfcast", plainly),
        Node(f"{node.name}.scale", "Mul", (wide, factor), (scaled,)),
        Node(f"{node.name}.sum", "Add", (plain, scaled), node.outputs[:1]),
    ]
    return nodes, {down, up}
