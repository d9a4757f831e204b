"""Which leaf tensors are trained. ONNX does not say: weights, statistics and constants are all initializers.

Names do not count, only how a tensor is used: a float tensor of more than one element is a parameter unless
each of its uses is one that no framework trains.
"""

from __future__ import annotations

from collections.abc import Callable

from predictor.features.graph import Graph, Node
from predictor.registry import Registry

UseRule = Callable[[Graph, Node, int], bool]
FIXED_USES: Registry[UseRule] = Registry("fixed-use rule")
"""Rules that say whether the operand at a position of a node is never trained."""

# From a table of positions or frequencies to its sine, these may stand in between.
_TOWARDS_SINE = frozenset(
    {"Mul", "Div", "MatMul", "Einsum", "Cast", "Concat", "Transpose", "Unsqueeze", "Reshape"}
)
_SINES = frozenset({"Sin", "Cos"})
_FOLLOWED = 6


def trainable(graph: Graph) -> frozenset[str]:
    """The graph's leaves (neither inputs nor written by a node) that are parameters."""
    candidates = graph.parameters
    return frozenset(name for name in candidates if _is_trained(graph, name))


def _is_trained(graph: Graph, name: str) -> bool:
    value = graph.values.get(name)
    if value is None or not value.dtype.is_float or value.elements <= 1 or name in graph.constants:
        return False
    used = False
    for index in graph.consumers.get(name, ()):
        node = graph.nodes[index]
        for position, read in enumerate(node.inputs):
            if read == name:
                used = True
                if not _is_fixed(graph, node, position):
                    return True
    return not used


def _is_fixed(graph: Graph, node: Node, position: int) -> bool:
    rule = FIXED_USES.get(node.domain, node.op_type, graph.opsets.get(node.domain, 1))
    return rule is not None and rule(graph, node, position)


@FIXED_USES.register("", "BatchNormalization")
def _statistics(graph: Graph, node: Node, position: int) -> bool:
    return position in (3, 4)


@FIXED_USES.register(
    "", "Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or"
)
@FIXED_USES.register("", "IsInf", "IsNaN", "Trilu", "NonZero", "Shape", "Size", "ConstantOfShape")
def _decision(graph: Graph, node: Node, position: int) -> bool:
    return True


@FIXED_USES.register("", "Resize", "Upsample", "Range", "Clip", "Pad", "DequantizeLinear", "QuantizeLinear")
@FIXED_USES.register("", "Dropout", "OneHot", "QLinearConv", "QLinearMatMul", "STFT")
def _setting(graph: Graph, node: Node, position: int) -> bool:
    return position > 0


@FIXED_USES.register("", "Add")
def _attention_mask(graph: Graph, node: Node, position: int) -> bool:
    """Added to attention scores and the same for every head: a mask; a bias differs by head."""
    value = graph.values[node.inputs[position]]
    per_head = len(value.shape) >= 3 and value.shape[-3] != 1
    readers = graph.consumers.get(node.outputs[0], ())
    return (
        len(value.shape) >= 2
        and not per_head
        and bool(readers)
        and all(graph.nodes[index].op_type == "Softmax" for index in readers)
    )


@FIXED_USES.register("", "Sin", "Cos")
def _angle(graph: Graph, node: Node, position: int) -> bool:
    return True


@FIXED_USES.register("", *_TOWARDS_SINE)
def _frequency(graph: Graph, node: Node, position: int) -> bool:
    """Rotary or sinusoidal frequencies: all that is computed from them is angles."""
    return _only_sines(graph, node, _FOLLOWED)


def _only_sines(graph: Graph, node: Node, steps: int) -> bool:
    if node.op_type in _SINES:
        return True
    if steps == 0 or node.op_type not in _TOWARDS_SINE:
        return False
    readers = [index for output in node.outputs for index in graph.consumers.get(output, ())]
    return bool(readers) and all(_only_sines(graph, graph.nodes[index], steps - 1) for index in readers)
