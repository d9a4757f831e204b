"""What inference engines fuse, as data, and the pass that does it.

An engine makes a plan of the whole graph before it runs: weights-only arithmetic is done once, batch norms go
into the convolution before them, activations and residual additions into the product that makes their
operand. Which of these an engine does is a row of `ENGINES`; nothing else here knows an engine's name.

Sources: ONNX Runtime, "Graph Optimizations in ONNX Runtime" (documentation) and its lists of CUDA kernels
(FusedConv takes ReLU, after an optional addition); NVIDIA TensorRT developer guide, "Layer fusion".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from predictor.features.draft import DATA, WEIGHT, Draft
from predictor.features.graph import Graph, Node
from predictor.features.lowering.grouping import forward_work
from predictor.features.ops.epilogue import with_epilogue
from predictor.features.programs.rules import load_rules
from predictor.features.programs.work import Family, OpWork
from predictor.features.reading.cleanup import IMPURE
from predictor.types import Runtime

_CONVOLUTIONS = frozenset({("", "Conv"), ("", "ConvTranspose")})
_PRODUCTS = frozenset({("", "MatMul"), ("", "Gemm"), ("perfcast", "Linear"), ("", "Einsum")})
_STORED = frozenset({("com.microsoft", "MatMulNBits"), ("com.microsoft", "GemmFloat8")})
"""Products with weights in few bits."""
_ANY = "*"
"""Stands for a chain of any pointwise ops."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What one engine fuses.

    Attributes:
        folds_norms: ops that take over the batch norm behind them.
        epilogues: chains of op types that (domain, op type) runs on its result before writing it; longest
            first.
        skip_norms: an addition and the layer or RMS norm behind it are one kernel.
        bias_gelu: the bias of a linear layer moves into the GELU behind it.
        groups_pointwise: what is pointwise, normalises or reduces shares kernels with its neighbours.
    """

    folds_norms: frozenset[tuple[str, str]]
    epilogues: Mapping[tuple[str, str], tuple[tuple[str, ...], ...]]
    skip_norms: bool
    bias_gelu: bool
    groups_pointwise: bool


ENGINES: Mapping[Runtime, Engine] = {
    Runtime.ONNXRUNTIME: Engine(
        folds_norms=frozenset({("", "Conv"), ("", "MatMul"), ("perfcast", "Linear")}),
        epilogues={("", "Conv"): (("Add", "Relu"), ("Relu",))},
        skip_norms=True,
        bias_gelu=True,
        groups_pointwise=False,
    ),
    Runtime.TENSORRT: Engine(
        folds_norms=_CONVOLUTIONS | _PRODUCTS,
        epilogues=dict.fromkeys(_CONVOLUTIONS | _PRODUCTS | _STORED, ((_ANY,),)),
        skip_norms=False,
        bias_gelu=False,
        groups_pointwise=True,
    ),
}
_NORMS = {
    ("", "LayerNormalization"): "SkipLayerNormalization",
    ("", "RMSNormalization"): "SkipSimplifiedLayerNormalization",
}


def fuse_for_engine(graph: Graph, engine: Engine) -> Graph:
    """`graph`, whose blocks are recognised and whose types are final, as the engine's plan runs it."""
    load_rules()
    graph = _precomputed(graph)
    for step in (_fold_norms, _join_skip_norms, _move_biases, _add_epilogues):
        draft = Draft(graph)
        step(draft, engine)
        draft.drop_dead()
        graph = draft.finish()
    read = {name for node in graph.nodes for name in node.inputs}.union(graph.outputs, graph.resident)
    # What was folded or computed beforehand is not kept beside its result.
    return replace(graph, parameters=graph.parameters & read, buffers=graph.buffers & read)


def _key(node: Node) -> tuple[str, str]:
    return node.domain, node.op_type


def _only_reader(draft: Draft, name: str) -> Node | None:
    """The node that alone reads `name`; None where it is read more often, or returned."""
    if draft.use_count.get(name, 0) != 1 or name in draft.outputs:
        return None
    return draft.reader(name)


def _replace(draft: Draft, gone: Node, last: Node, *nodes: Node) -> None:
    """`gone` and `last` make way for `nodes`, which stand where `last` stood."""
    index = draft.producer[next(filter(None, last.outputs))][0]
    draft.remove(gone)
    slot = draft.slots[index]
    draft.put(index, tuple(n for old in slot for n in (nodes if old is last else (old,))))


def _precomputed(graph: Graph) -> Graph:
    """What depends on weights and constants alone is computed when the plan is made, and kept as a weight."""
    draft = Draft(graph)
    weights: set[str] = set()
    for slot in draft.slots:
        for node in slot:
            if node.op_type in IMPURE or any(isinstance(v, Graph) for v in node.attributes.values()):
                continue
            made = [name for name in node.outputs if name]
            if node.inputs and all(draft.depends_on(name) != DATA for name in made):
                weights.update(name for name in made if draft.depends_on(name) == WEIGHT)
                draft.buffers.update(name for name in made if draft.depends_on(name) != WEIGHT)
                draft.remove(node)
    graph = draft.finish()
    return replace(graph, parameters=graph.parameters | (weights & graph.values.keys()))


def _fold_norms(draft: Draft, engine: Engine) -> None:
    """Scale and shift of a batch norm go into the weight and the bias of the product before it."""
    for slot in draft.slots:
        for node in slot:
            if _key(node) not in engine.folds_norms:
                continue
            norm = _only_reader(draft, node.outputs[0])
            if norm is None or _key(norm) != ("", "BatchNormalization") or norm.inputs[0] != node.outputs[0]:
                continue
            # The shift stands in for the new bias: as many numbers of the same kind.
            inputs = (*node.inputs[:2], norm.inputs[2])
            _replace(draft, node, norm, replace(node, inputs=inputs, outputs=norm.outputs[:1]))


def _join_skip_norms(draft: Draft, engine: Engine) -> None:
    """An addition and the norm behind it; the sum is written too where others read it."""
    if not engine.skip_norms:
        return
    for slot in draft.slots:
        for node in slot:
            kind = _NORMS.get(_key(node))
            total = draft.node(node.inputs[0]) if kind else None
            if kind is None or total is None or _key(total) != ("", "Add"):
                continue
            name = total.outputs[0]
            shape = draft.shape(name)
            axis = node.attributes.get("axis", -1)
            if axis not in (-1, len(shape) - 1) or any(draft.shape(given) != shape for given in total.inputs):
                continue
            kept = draft.use_count[name] > 1 or name in draft.outputs
            outputs = (node.outputs[0], "", "", name) if kept else node.outputs[:1]
            joined = Node(node.name, kind, (*total.inputs, *node.inputs[1:]), outputs, "com.microsoft", {})
            if not kept:
                _replace(draft, total, node, joined)
            elif _stands_before_readers(draft, name, node):
                # Others read the sum between the addition and the norm otherwise.
                _replace(draft, total, node, joined)


def _stands_before_readers(draft: Draft, name: str, node: Node) -> bool:
    place = draft.producer[node.outputs[0]][0]
    return all(reader >= place for reader in draft.graph.consumers.get(name, ()))


def _move_biases(draft: Draft, engine: Engine) -> None:
    """Linear(x, w, b) and Gelu: the bias is added by the activation's kernel."""
    if not engine.bias_gelu:
        return
    for slot in draft.slots:
        for node in slot:
            if _key(node) != ("perfcast", "Linear") or len(node.inputs) != 3:
                continue
            gelu = _only_reader(draft, node.outputs[0])
            if gelu is None or _key(gelu) not in (("perfcast", "Gelu"), ("", "Gelu")):
                continue
            plain = replace(node, inputs=node.inputs[:2])
            inputs = (node.outputs[0], node.inputs[2])
            biased = Node(gelu.name, "BiasGelu", inputs, gelu.outputs, "com.microsoft", {})
            _replace(draft, node, gelu, plain, biased)


def _add_epilogues(draft: Draft, engine: Engine) -> None:
    """Pointwise ops behind a product, and a convolution's bias, run on its result before it is written."""
    for slot in draft.slots:
        for node in slot:
            chains = engine.epilogues.get(_key(node), ())
            chain = _chain(draft, node) if chains else []
            chain = chain[: max((_matching(chain, allowed) for allowed in chains), default=0)]
            is_biased = _key(node) in _CONVOLUTIONS and len(node.inputs) > 2 and bool(node.inputs[2])
            if not chain and not is_biased:
                continue
            flops = sum(work.vector_flops for link in chain for work in _works(draft, link))
            if is_biased:
                flops += draft.values[node.outputs[0]].elements
            product = replace(node, inputs=node.inputs[:2]) if is_biased else node
            bias = node.inputs[2] if is_biased else ""
            opset = draft.graph.opsets.get(node.domain, 1)
            fused = with_epilogue(product, chain, bias, flops, opset)
            for link in [node, *chain][:-1]:
                draft.remove(link)
            last = [node, *chain][-1]
            index = draft.producer[last.outputs[0]][0]
            draft.put(index, tuple(fused if old is last else old for old in draft.slots[index]))


def _matching(chain: list[Node], allowed: tuple[str, ...]) -> int:
    """How many ops at the start of `chain` are those of `allowed`; 0 where it is not all of them."""
    if allowed == (_ANY,):
        return len(chain)
    found = tuple(node.op_type for node in chain[: len(allowed)])
    return len(allowed) if found == allowed else 0


def _chain(draft: Draft, node: Node) -> list[Node]:
    """Pointwise ops behind `node`, each the only reader of the one before, on tensors of the same shape."""
    chain: list[Node] = []
    name = node.outputs[0]
    shape = draft.shape(name)
    while (reader := _only_reader(draft, name)) is not None:
        outputs = [output for output in reader.outputs if output]
        if len(outputs) != 1 or draft.shape(outputs[0]) != shape or not _is_pointwise(draft, reader):
            break
        chain.append(reader)
        name = outputs[0]
    return chain


def _works(draft: Draft, node: Node) -> tuple[OpWork, ...]:
    return forward_work(node, draft.values, draft.graph.constants, draft.graph.opsets) or ()


def _is_pointwise(draft: Draft, node: Node) -> bool:
    works = _works(draft, node)
    return bool(works) and all(
        work.family is Family.ELEMENTWISE or (work.family is Family.COPY and work.kind == "cast")
        for work in works
    )
