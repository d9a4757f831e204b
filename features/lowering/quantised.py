"""Quantised graphs as an engine runs them: products on stored integers, without the conversions around them.

Exporters write a quantised layer as float arithmetic between conversions: DequantizeLinear on the operands,
a product or convolution, an activation, QuantizeLinear on the result. An engine that compiles such a graph
multiplies the integers (INT8, FP8) and converts in the product's epilogue. Where only the weight is stored
in few bits, the product is in the activations' type and reads the packed weight.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.draft import DATA, Draft
from predictor.features.graph import Graph, Node

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_EPILOGUES = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "HardSigmoid", "Tanh"})
_DOMAINS = frozenset({"", "com.microsoft"})
_NARROW_BITS = 8


def fuse_quantised(graph: Graph) -> Graph:
    """`graph` with its quantised products on stored operands; the same graph where it has none."""
    if not any(node.op_type == "DequantizeLinear" for node in graph.nodes):
        return graph
    draft = Draft(graph)
    for index, slot in enumerate(draft.slots):
        for node in slot:
            if node.op_type in _PRODUCTS and not node.domain:
                _fuse(draft, index, node)
    draft.drop_dead()
    return draft.finish()


def _fuse(draft: Draft, index: int, node: Node) -> None:
    stored = [_stored(draft, name) for name in node.inputs]
    left, right = stored[0], stored[1]
    if right is None or (left is None and draft.depends_on(right) == DATA):
        return
    inputs = [node.inputs[0] if left is None else left, right]
    # A bias of 32 bits is added to the sums as it is stored.
    inputs += [(_source(draft, name) if left else None) or name for name in node.inputs[2:]]
    outputs, after = (_epilogue(draft, node.outputs[0]) if left else None) or (node.outputs[0], ())
    for other in after:
        draft.remove(other)
    fused = replace(node, inputs=tuple(inputs), outputs=(outputs,))
    draft.put(index, tuple(fused if item is node else item for item in draft.slots[index]))


def _source(draft: Draft, name: str) -> str | None:
    """What is dequantised into `name`."""
    made_by = draft.node(name) if name else None
    if made_by is None or made_by.op_type != "DequantizeLinear" or made_by.domain not in _DOMAINS:
        return None
    return made_by.inputs[0]


def _stored(draft: Draft, name: str) -> str | None:
    """The narrow value behind `name`; a weight that is quantised in the graph is so before it runs."""
    source = _source(draft, name)
    if source is None or draft.values[source].dtype.bits > _NARROW_BITS:
        return None
    made_by = draft.node(source)
    if made_by is not None and draft.depends_on(source) != DATA:
        draft.remove(made_by)
        draft.buffers.add(source)
    return source


def _epilogue(draft: Draft, name: str) -> tuple[str, tuple[Node, ...]] | None:
    """(quantised result, nodes on the way) where activations and a QuantizeLinear alone read `name`."""
    passed: list[Node] = []
    while draft.use_count.get(name, 0) == 1 and name not in draft.outputs:
        reader = draft.reader(name)
        if reader is None or reader.domain not in _DOMAINS or reader.inputs[0] != name:
            return None
        passed.append(reader)
        if reader.op_type == "QuantizeLinear":
            return reader.outputs[0], tuple(passed)
        if reader.op_type not in _EPILOGUES:
            return None
        name = reader.outputs[0]
    return None
