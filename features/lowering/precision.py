"""The job's numeric policy, written into the graph: types of values, and the Casts that a framework runs.

FP64, FP16 and BF16 convert the whole model. AMP follows torch's autocast for CUDA devices: products,
convolutions and attention run in FP16 whatever they are given; a few numerically delicate ops run in FP32;
some take FP16 and return FP32; everything else runs in the widest type among its operands, single constants
apart.
Arguments that do not have the type an op runs in pass a Cast kernel first: a parameter once per iteration
(autocast caches it), anything else at every use. Type promotion inside a kernel costs no Cast.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.features.draft import Draft
from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node, Value
from predictor.features.lowering.kernel_free import drop_no_ops
from predictor.types import Precision

_UNIFORM = {
    Precision.FP64: DType.FLOAT64,
    Precision.FP16: DType.FLOAT16,
    Precision.BF16: DType.BFLOAT16,
}
# On GPUs autocast's default is FP16.
_AUTOCAST = DType.FLOAT16
_TENSOR_PROTO_TYPE = {DType.FLOAT32: 1, DType.FLOAT16: 10}

# torch: autocast to lower_precision_fp.
_LOW = frozenset(
    {
        "MatMul",
        "Gemm",
        "Linear",
        "Einsum",
        "Conv",
        "ConvTranspose",
        "Attention",
        "PRelu",
        "LSTM",
        "GRU",
        "RNN",
        "FusedMatMul",
        "MatMulNBits",
        "MultiHeadAttention",
        "GroupQueryAttention",
    }
)
# torch: autocast to fp32.
_WIDE = frozenset(
    {
        "LayerNormalization",
        "GroupNormalization",
        "SkipLayerNormalization",
        "GroupNorm",
        "Pow",
        "Exp",
        "Log",
        "Reciprocal",
        "Softplus",
        "Tan",
        "Acos",
        "Asin",
        "Cosh",
        "Sinh",
        "ReduceLogSumExp",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
    }
)
# torch: fp32_set_opt_dtype and fp32_append_dtype, where the kernel reads 16 bits and writes 32.
_WIDE_OUTPUT = frozenset(
    {"Softmax", "LogSoftmax", "CumSum", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2"}
)
# The result has the first operand's type; weights and statistics may be wider.
_LIKE_FIRST = frozenset(
    {"BatchNormalization", "InstanceNormalization", "RMSNormalization", "Gather", "Resize"}
)


# What timm's `fast_norm` (since 0.6.8) takes out of autocast's hands.
_NARROW_NORMS = frozenset({"LayerNormalization", "GroupNormalization"})


def apply_precision(graph: Graph, precision: Precision, *, narrow_norms: bool = False) -> Graph:
    """`graph` with the types of a job of that precision; FP32 and TF32 (a rate) change nothing.

    `narrow_norms`: layer and group norms run in 16 bits under autocast, as some libraries make them.
    """
    if precision in _UNIFORM:
        return _uniform(graph, _UNIFORM[precision])
    if precision is not Precision.AMP:
        return graph
    return _autocast(graph, _LOW | _NARROW_NORMS if narrow_norms else _LOW)


def _uniform(graph: Graph, target: DType) -> Graph:
    converted = {
        name: replace(value, dtype=target)
        if _is_wide(value.dtype) or value.dtype in _UNIFORM.values()
        else value
        for name, value in graph.values.items()
    }
    draft = Draft(replace(graph, values=converted))
    drop_no_ops(draft)
    return draft.finish()


def _is_wide(dtype: DType) -> bool:
    return dtype in (DType.FLOAT32, DType.FLOAT64)


def _autocast(graph: Graph, low: frozenset[str]) -> Graph:
    values = dict(graph.values)
    nodes: list[Node] = []
    cached: dict[str, str] = {}
    constants = graph.buffers | graph.constants.keys()

    def is_operand(name: str) -> bool:
        # A single constant stands for a number in the program: it neither needs a kernel nor widens the
        # result.
        value = values.get(name)
        return value is not None and value.dtype.is_float and not (value.elements == 1 and name in constants)

    def cast(name: str, target: DType, node: Node) -> str:
        if not is_operand(name) or values[name].dtype is target or not _is_plain(values[name].dtype):
            return name
        keep = name in graph.parameters and target is _AUTOCAST
        if keep and name in cached:
            return cached[name]
        stem = f"{name}.{target.value[0]}" if keep else f"{node.name}.{name}.{target.value[0]}"
        result = _unused(stem, values)
        values[result] = Value(result, values[name].shape, target)
        nodes.append(Node(result, "Cast", (name,), (result,), "", {"to": _TENSOR_PROTO_TYPE[target]}))
        if keep:
            cached[name] = result
        return result

    for node in graph.nodes:
        copies = node.op_type == "Contiguous"
        target = _copy_type(graph, node, low) if copies else _run_type(node, low)
        if target is not None:
            node = replace(node, inputs=tuple(cast(name, target, node) for name in node.inputs))
        operands = [values[name].dtype for name in node.inputs if is_operand(name)]
        result = _result_type(node, target, operands)
        for name in node.outputs:
            if result is not None and name in values and _is_plain(values[name].dtype):
                values[name] = replace(values[name], dtype=result)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), values=values)


def _is_plain(dtype: DType) -> bool:
    return dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def _run_type(node: Node, low: frozenset[str]) -> DType | None:
    """The type that autocast asks for, None where it does not interfere."""
    if node.op_type in low:
        return _AUTOCAST
    return DType.FLOAT32 if node.op_type in _WIDE else None


def _copy_type(graph: Graph, node: Node, low: frozenset[str]) -> DType | None:
    """A copy made for a kernel comes after the cast for it: casts keep strides, and autocast comes first."""
    readers = [graph.nodes[index] for name in node.outputs for index in graph.consumers.get(name, ())]
    wanted = {_run_type(reader, low) for reader in readers}
    return wanted.pop() if len(wanted) == 1 else None


def _result_type(node: Node, target: DType | None, operands: list[DType]) -> DType | None:
    if target is not None:
        return target
    if node.op_type in _WIDE_OUTPUT:
        return DType.FLOAT32
    # A cast written in the model says its own type.
    if node.op_type == "Cast" or not operands:
        return None
    if node.op_type in _LIKE_FIRST:
        return operands[0]
    return max(operands, key=lambda dtype: dtype.bits)


def _unused(stem: str, values: dict[str, Value]) -> str:
    name, number = stem, 1
    while name in values:
        number += 1
        name = f"{stem}.{number}"
    return name
