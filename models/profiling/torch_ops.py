"""ONNX operators as torch calls: enough of them to time the networks of predictor.features.architectures.

Contents do not matter to a measurement, so constants that reading a graph drops are stood in for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from predictor.features.dtype import DType
from predictor.features.graph import Graph, Node
from predictor.features.reading.elements import FROM_ONNX

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "Sequence[torch.Tensor | None]"
Call: TypeAlias = "Callable[[Any, Node, Graph, Any], Any]"
"""(operands, node, graph, torch) -> tensor or tuple of tensors."""


def torch_types(torch: Any) -> Mapping[DType, Any]:
    """Element types that a measured job may hold."""
    return {
        DType.FLOAT64: torch.float64,
        DType.FLOAT32: torch.float32,
        DType.FLOAT16: torch.float16,
        DType.BFLOAT16: torch.bfloat16,
        DType.INT64: torch.int64,
        DType.INT32: torch.int32,
        DType.INT8: torch.int8,
        DType.BOOL: torch.bool,
    }


def _ints(node: Node, name: str, default: Sequence[int] = ()) -> list[int]:
    value = node.attributes.get(name, tuple(default))
    return [int(item) for item in value] if isinstance(value, tuple) else [int(str(value))]


def _int(node: Node, name: str, default: int) -> int:
    return int(str(node.attributes.get(name, default)))


def _constant(node: Node, graph: Graph, place: int) -> list[int]:
    return list(graph.constants[node.inputs[place]])


def _padding(node: Node) -> list[int]:
    """Symmetric padding. Raises ValueError for a one-sided one."""
    pads = _ints(node, "pads", [0, 0, 0, 0])
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise ValueError(f"{node.op_type} {node.name!r} pads one side only")
    return pads[:half]


def _conv(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    rank = x[1].dim() - 2
    call = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    ones = [1] * rank
    return call(
        x[0],
        x[1],
        x[2] if len(x) > 2 else None,
        stride=_ints(node, "strides", ones),
        padding=_padding(node),
        dilation=_ints(node, "dilations", ones),
        groups=_int(node, "group", 1),
    )


def _conv_transpose(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    rank = x[1].dim() - 2
    functional = torch.nn.functional
    call = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    return call(
        x[0],
        x[1],
        x[2] if len(x) > 2 else None,
        stride=_ints(node, "strides", [1] * rank),
        padding=_padding(node),
        groups=_int(node, "group", 1),
    )


def _gemm(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    left = x[0].t() if _int(node, "transA", 0) else x[0]
    # torch keeps weights transposed; so do the files that it exports.
    right = x[1].t() if _int(node, "transB", 0) else x[1]
    if len(x) > 2 and x[2] is not None:
        return torch.addmm(x[2], left, right)
    return left @ right


def _pool(kind: str) -> Call:
    def run(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
        call = getattr(torch.nn.functional, kind)
        kernel = _ints(node, "kernel_shape")
        return call(
            x[0],
            kernel,
            stride=_ints(node, "strides", [1] * len(kernel)),
            padding=_padding(node),
            ceil_mode=bool(_int(node, "ceil_mode", 0)),
        )

    return run


def _batch_norm(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    return torch.nn.functional.batch_norm(
        x[0], x[3], x[4], x[1], x[2], training=torch.is_grad_enabled(), momentum=0.1
    )


def _layer_norm(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    bias = x[2] if len(x) > 2 else None
    return torch.nn.functional.layer_norm(x[0], x[1].shape, x[1], bias)


def _slice(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    starts, stops, axes = (_constant(node, graph, place) for place in (1, 2, 3))
    steps = _constant(node, graph, 4) if len(node.inputs) > 4 else [1] * len(axes)
    found = x[0]
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        place = [slice(None)] * found.dim()
        place[axis] = slice(start, min(stop, found.shape[axis]), step)
        found = found[tuple(place)]
    return found


def _split(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    axis = _int(node, "axis", 0)
    sizes = [graph.values[name].shape[axis] for name in node.outputs]
    return torch.split(x[0], sizes, dim=axis)


def _gather(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    axis = _int(node, "axis", 0)
    index = x[1]
    if axis == 0 and x[0].dim() == 2:
        return torch.nn.functional.embedding(index, x[0])
    return torch.index_select(x[0], axis, index.reshape(-1)).reshape(
        *x[0].shape[:axis], *index.shape, *x[0].shape[axis + 1 :]
    )


def _reduce_mean(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    axes = _constant(node, graph, 1) if len(node.inputs) > 1 else _ints(node, "axes")
    return x[0].mean(dim=axes, keepdim=bool(_int(node, "keepdims", 1)))


def _cast(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    return x[0].to(torch_types(torch)[FROM_ONNX[_int(node, "to", 1)]])


def _cross_entropy(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    return torch.nn.functional.cross_entropy(x[0], x[1])


def _shaped(x: Any, node: Node, graph: Graph, torch: Any) -> Any:
    return x[0].reshape(graph.values[node.outputs[0]].shape)


OPS: Mapping[str, Call] = {
    "Add": lambda x, node, graph, torch: x[0] + x[1],
    "Sub": lambda x, node, graph, torch: x[0] - x[1],
    "Mul": lambda x, node, graph, torch: x[0] * x[1],
    "Div": lambda x, node, graph, torch: x[0] / x[1],
    "Pow": lambda x, node, graph, torch: x[0] ** 2.0,
    "Sqrt": lambda x, node, graph, torch: torch.sqrt(x[0]),
    "MatMul": lambda x, node, graph, torch: torch.matmul(x[0], x[1]),
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Softmax": lambda x, node, graph, torch: torch.softmax(x[0], dim=_int(node, "axis", -1)),
    "Relu": lambda x, node, graph, torch: torch.relu(x[0]),
    "Clip": lambda x, node, graph, torch: torch.clamp(x[0], 0.0, 6.0),
    "Sigmoid": lambda x, node, graph, torch: torch.sigmoid(x[0]),
    "Tanh": lambda x, node, graph, torch: torch.tanh(x[0]),
    "Erf": lambda x, node, graph, torch: torch.erf(x[0]),
    "Exp": lambda x, node, graph, torch: torch.exp(x[0]),
    "Gelu": lambda x, node, graph, torch: torch.nn.functional.gelu(
        x[0], approximate=str(node.attributes.get("approximate", "none"))
    ),
    "LeakyRelu": lambda x, node, graph, torch: torch.nn.functional.leaky_relu(x[0], 0.1),
    "HardSwish": lambda x, node, graph, torch: torch.nn.functional.hardswish(x[0]),
    "HardSigmoid": lambda x, node, graph, torch: torch.nn.functional.hardsigmoid(x[0]),
    "MaxPool": _pool("max_pool2d"),
    "AveragePool": _pool("avg_pool2d"),
    "GlobalAveragePool": lambda x, node, graph, torch: torch.nn.functional.adaptive_avg_pool2d(x[0], 1),
    "ReduceMean": _reduce_mean,
    "Flatten": _shaped,
    "Reshape": _shaped,
    "Squeeze": _shaped,
    "Unsqueeze": _shaped,
    "Transpose": lambda x, node, graph, torch: x[0].permute(node.permutation(x[0].dim())),
    "Concat": lambda x, node, graph, torch: torch.cat(list(x), dim=_int(node, "axis", 0)),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Where": lambda x, node, graph, torch: torch.where(x[0], x[1], x[2]),
    "Cast": _cast,
    "Dropout": lambda x, node, graph, torch: torch.nn.functional.dropout(x[0], 0.1),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}
"""Op type -> call."""
