"""Graphs described in Python: architecture-search candidates, published configurations, test cases.

Neither torch nor a file is needed. The result is weightless ONNX bytes that take the same path as any export:

    b = GraphBuilder()
    x = b.input("image", ("batch", 3, 224, 224))
    x = b.relu(b.batch_norm(b.conv(x, 64, kernel=7, stride=2)))
    x = b.linear(b.flatten(b.global_pool(x)), 1000)
    onnx_bytes = b.build([x])

A dimension is a number or a symbol (str). `reshape` takes 0 for "as in the input" and -1 for "the rest", so
that one description serves every batch size. Weights are shared by passing a handle twice, or by building
under `shared_weights`. Guide: docs/how-to/build-a-graph.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper

import predictor.features.reading.type_rules  # noqa: F401  (registers the rules)
from predictor.errors import InvalidGraph
from predictor.features.dtype import DType
from predictor.features.reading.elements import FROM_ONNX, INT64, TO_ONNX
from predictor.features.reading.onnx_inference import NodeTypeError, infer_outputs
from predictor.features.reading.tensor_type import Array, Dim, TensorType, merged
from predictor.features.reading.type_rules.operands import TYPES_AFTER_ONNX, Operands
from predictor.features.reading.weights import external_tensor

OPSET = 21
Pair = int | Sequence[int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Handle of a value in a GraphBuilder; `shape` may hold symbols, and None where only binding tells."""

    name: str
    shape: tuple[Dim, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def size(self, axis: int) -> int:
        """The dimension as a number. Raises InvalidGraph when it is symbolic."""
        size = self.shape[axis]
        if not isinstance(size, int):
            raise InvalidGraph(
                f"dimension {axis} of {self.name!r} is {size!r}; a number is needed to size weights"
            )
        return size

    @property
    def sizes(self) -> tuple[int, ...]:
        """All dimensions as numbers. Raises InvalidGraph when one is symbolic."""
        return tuple(self.size(axis) for axis in range(self.rank))


class GraphBuilder:
    """Collects nodes; every method returns the handle of its output. Shapes are checked as nodes are added.

    Raises InvalidGraph from any method whose operands do not fit the op.
    """

    def __init__(self, name: str = "graph", *, dtype: DType = DType.FLOAT32, opset: int = OPSET) -> None:
        self.name = name
        self.dtype = dtype
        self._opsets: dict[str, int] = {"": opset}
        self._types: dict[str, TensorType] = {}
        self._contents: dict[str, Array] = {}
        self._inputs: list[ValueInfoProto] = []
        self._initializers: list[TensorProto] = []
        self._nodes: list[NodeProto] = []
        self._counts: dict[str, int] = {}
        self._shared: dict[str, list[Tensor]] = {}
        self._recording: list[Tensor] | None = None
        self._replaying: Iterator[Tensor] | None = None

    # Leaves

    def input(self, name: str, shape: Sequence[int | str], dtype: DType | None = None) -> Tensor:
        """A value the caller feeds. `dtype` defaults to the builder's; token ids want DType.INT64."""
        if name in self._types:
            raise InvalidGraph(f"the graph already has a value {name!r}")
        elem_type = TO_ONNX[dtype or self.dtype]
        self._inputs.append(helper.make_tensor_value_info(name, elem_type, list(shape)))
        return self._known(name, TensorType(elem_type, tuple(shape)))

    def parameter(self, shape: Sequence[int], name: str = "", dtype: DType | None = None) -> Tensor:
        """A weight without contents. Use the handle twice, or `shared_weights`, to share the weight."""
        kind = dtype or self.dtype
        if self._replaying is not None:
            known = next(self._replaying, None)
            if known is None or known.shape != tuple(shape) or known.dtype is not kind:
                first = known.shape if known else "no further weight"
                raise InvalidGraph(
                    f"shared weights: the first application has {first}, this one {tuple(shape)}; layers "
                    "that share weights must have the same sizes"
                )
            return known
        elem_type = TO_ONNX[kind]
        unique = self._unique(name or "weight")
        self._initializers.append(external_tensor(unique, elem_type, shape))
        made = self._known(unique, TensorType(elem_type, tuple(shape)))
        if self._recording is not None:
            self._recording.append(made)
        return made

    def frozen(self, shape: Sequence[int], name: str = "frozen") -> Tensor:
        """A weight that is read but not trained: an input of the graph, so that it gets no gradient."""
        return self.input(self._unique(name), shape)

    @contextmanager
    def shared_weights(self, key: str) -> Iterator[None]:
        """What is built under one key uses the weights of the first time: counted once, applied each time.

            for _ in range(12):
                with b.shared_weights("layer"):
                    x = layer(b, x)

        Raises InvalidGraph when a later application needs other weights than the first, or inside another
        `shared_weights`.
        """
        if self._recording is not None or self._replaying is not None:
            raise InvalidGraph(f"shared_weights({key!r}) inside another shared_weights; use one key for both")
        if key in self._shared:
            self._replaying = iter(self._shared[key])
        else:
            self._recording = self._shared[key] = []
        try:
            yield
        finally:
            self._recording = self._replaying = None

    def constant(self, values: Any, dtype: DType | None = None, name: str = "") -> Tensor:
        """A small tensor with contents: integers become int64, floats the builder's dtype."""
        array = np.asarray(values)
        elem_type = TO_ONNX[dtype] if dtype else INT64 if array.dtype.kind in "iu" else TO_ONNX[self.dtype]
        array = array.astype(helper.tensor_dtype_to_np_dtype(elem_type))
        unique = self._unique(name or "constant")
        self._initializers.append(
            TensorProto(name=unique, data_type=elem_type, dims=array.shape, raw_data=array.tobytes())
        )
        self._contents[unique] = array
        return self._known(unique, TensorType(elem_type, array.shape))

    # Generic

    def op(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        n_outputs: int = 1,
        *,
        domain: str = "",
        name: str = "",
        **attributes: Any,
    ) -> Any:
        """Any op: a Tensor, or a tuple of them for `n_outputs` > 1. None is an omitted optional input.

        Outputs of ops that neither ONNX nor type_rules knows take the first input's type.
        """
        unique = self._unique(name or op_type.lower())
        names = [unique if i == 0 else f"{unique}.{i}" for i in range(n_outputs)]
        given = [tensor.name if tensor else "" for tensor in inputs]
        kept = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, given, names, name=unique, domain=domain, **kept)
        version = self._opsets.setdefault(domain, 1)
        try:
            found = infer_outputs(node, version, self._types, self._contents)
        except NodeTypeError as error:
            shapes = ", ".join(str(tensor.shape) if tensor else "-" for tensor in inputs)
            raise InvalidGraph(f"{op_type} {unique!r} on {shapes}: {error}") from None
        types = [self._types[tensor.name] if tensor else None for tensor in inputs]
        rule = TYPES_AFTER_ONNX.get(domain, op_type, version)
        contents = [self._contents.get(name) if name else None for name in given]
        own = () if rule is None else rule(Operands(types, contents, kept, n_outputs))
        if own:
            ours = dict(zip(names, own, strict=False))
            found = {**ours, **{n: merged(t, ours.get(n, t)) for n, t in (found or {}).items()}}
        if found is None and types and types[0]:
            found = dict.fromkeys(names, types[0])
        self._nodes.append(node)
        unknown = TensorType(0, None)
        outputs = tuple(self._known(n, (found or {}).get(n, unknown)) for n in names)
        return outputs[0] if n_outputs == 1 else outputs

    # Products

    def linear(self, x: Tensor, features: int, *, bias: bool = True, weight: Tensor | None = None) -> Tensor:
        """x @ W (+ b) over the last dimension: Gemm for matrices, else MatMul + Add, as exporters do."""
        shape = (x.size(-1), features)
        weight = weight or self.parameter(shape, "linear.weight")
        if x.rank == 2:
            return self._one(
                "Gemm", [x, weight, self.parameter((features,), "linear.bias") if bias else None]
            )
        y = self.matmul(x, weight)
        return self.add(y, self.parameter((features,), "linear.bias")) if bias else y

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Batched product with broadcasting, as numpy's."""
        return self._one("MatMul", [a, b])

    def grouped_matmul(self, rows: Tensor, sizes: tuple[int, int, int], ends: Tensor, *, name: str) -> Tensor:
        """Sorted rows times new weights (groups, in, out): rows up to ends[i] meet matrix i."""
        y: Tensor = self.op("GroupedMatMul", [rows, self.parameter(sizes, name), ends], domain="perfcast")
        return y

    def conv(
        self,
        x: Tensor,
        channels: int,
        *,
        kernel: Pair,
        stride: Pair = 1,
        padding: Pair | None = None,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> Tensor:
        """Convolution of (N, C, spatial...). `padding` None keeps the size at stride 1 (odd kernels)."""
        spatial = x.rank - 2
        sizes, steps = _each(kernel, spatial), _each(dilation, spatial)
        pads = [d * (k - 1) // 2 for k, d in zip(sizes, steps, strict=True)] if padding is None else padding
        in_channels = x.size(1)
        if in_channels % groups or channels % groups:
            raise InvalidGraph(
                f"{groups} groups do not divide {in_channels} input and {channels} output channels"
            )
        inputs = [x, self.parameter((channels, in_channels // groups, *sizes), "conv.weight")]
        if bias:
            inputs.append(self.parameter((channels,), "conv.bias"))
        return self._one(
            "Conv",
            inputs,
            kernel_shape=sizes,
            strides=_each(stride, spatial),
            pads=_each(pads, spatial) * 2,
            dilations=steps,
            group=groups,
        )

    def conv_transpose(
        self, x: Tensor, channels: int, *, kernel: Pair, stride: Pair = 1, padding: Pair = 0
    ) -> Tensor:
        """Transposed convolution with bias, upsampling by `stride`."""
        spatial = x.rank - 2
        weight = self.parameter((x.size(1), channels, *_each(kernel, spatial)), "conv_transpose.weight")
        return self._one(
            "ConvTranspose",
            [x, weight, self.parameter((channels,), "conv_transpose.bias")],
            kernel_shape=_each(kernel, spatial),
            strides=_each(stride, spatial),
            pads=_each(padding, spatial) * 2,
        )

    def embedding(self, ids: Tensor, count: int, width: int, *, table: Tensor | None = None) -> Tensor:
        """Rows of a (count, width) table by integer ids."""
        return self.gather(table or self.parameter((count, width), "embedding.weight"), ids, axis=0)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """softmax(q k^T / sqrt(d) + mask) v on (batch, heads, length, head size), as separate ops."""
        axes = [*range(k.rank - 2), k.rank - 1, k.rank - 2]
        scores = self.matmul(q, self.transpose(k, axes))
        scores = self.mul(scores, self.constant(1.0 / sqrt(q.size(-1))))
        return self.matmul(self.softmax(self.add(scores, mask) if mask else scores), v)

    # Element by element

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b, broadcast."""
        return self._one("Add", [a, b])

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """a - b, broadcast."""
        return self._one("Sub", [a, b])

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """a * b, broadcast."""
        return self._one("Mul", [a, b])

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """a / b, broadcast."""
        return self._one("Div", [a, b])

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0)."""
        return self._one("Relu", [x])

    def relu6(self, x: Tensor) -> Tensor:
        """min(max(x, 0), 6)."""
        return self._one("Clip", [x, self.constant(0.0), self.constant(6.0)])

    def gelu(self, x: Tensor, *, approximate: str = "none") -> Tensor:
        """Gaussian error unit; approximate="tanh" for GPT-2's form."""
        return self._one("Gelu", [x], approximate=approximate)

    def silu(self, x: Tensor) -> Tensor:
        """x * sigmoid(x)."""
        return self.mul(x, self.sigmoid(x))

    def hard_swish(self, x: Tensor) -> Tensor:
        """x * clip(x / 6 + 1/2, 0, 1)."""
        return self._one("HardSwish", [x])

    def sigmoid(self, x: Tensor) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self._one("Sigmoid", [x])

    def tanh(self, x: Tensor) -> Tensor:
        """Hyperbolic tangent."""
        return self._one("Tanh", [x])

    # Normalisations and reductions

    def layer_norm(self, x: Tensor, *, epsilon: float = 1e-5, bias: bool = True) -> Tensor:
        """Over the last dimension, with affine parameters."""
        width = (x.size(-1),)
        inputs = [x, self.parameter(width, "layer_norm.weight")]
        if bias:
            inputs.append(self.parameter(width, "layer_norm.bias"))
        return self._one("LayerNormalization", inputs, axis=-1, epsilon=epsilon)

    def rms_norm(self, x: Tensor, *, epsilon: float = 1e-6) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) * weight, as separate ops (what exporters below opset 23 write)."""
        square = self._one("Pow", [x, self.constant(2.0)])
        mean = self._one("ReduceMean", [square, self.constant([-1])], keepdims=1)
        root = self._one("Sqrt", [self.add(mean, self.constant(epsilon))])
        return self.mul(self.div(x, root), self.parameter((x.size(-1),), "rms_norm.weight"))

    def batch_norm(self, x: Tensor, *, epsilon: float = 1e-5) -> Tensor:
        """Over channels of (N, C, ...); scale and shift are parameters, mean and variance buffers."""
        width = (x.size(1),)
        affine = [self.parameter(width, f"batch_norm.{part}") for part in ("weight", "bias", "mean", "var")]
        return self._one("BatchNormalization", [x, *affine], epsilon=epsilon)

    def group_norm(self, x: Tensor, groups: int, *, epsilon: float = 1e-5) -> Tensor:
        """Over channel groups of (N, C, ...), with affine parameters per channel."""
        width = (x.size(1),)
        affine = [self.parameter(width, f"group_norm.{part}") for part in ("weight", "bias")]
        return self._one("GroupNormalization", [x, *affine], num_groups=groups, epsilon=epsilon)

    def softmax(self, x: Tensor, *, axis: int = -1) -> Tensor:
        """exp(x) / sum(exp(x)) along one axis."""
        return self._one("Softmax", [x], axis=axis)

    def reduce_mean(self, x: Tensor, axes: Sequence[int], *, keepdims: bool = False) -> Tensor:
        """Mean over axes."""
        return self._one("ReduceMean", [x, self.constant(list(axes))], keepdims=int(keepdims))

    # Pools and resampling

    def max_pool(self, x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
        """Maximum over windows; `stride` defaults to the kernel."""
        return self._pool("MaxPool", x, kernel, stride, padding)

    def avg_pool(self, x: Tensor, *, kernel: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
        """Mean over windows; `stride` defaults to the kernel."""
        return self._pool("AveragePool", x, kernel, stride, padding)

    def global_pool(self, x: Tensor) -> Tensor:
        """Mean over all spatial positions: (N, C, 1, ...)."""
        return self._one("GlobalAveragePool", [x])

    def resize(self, x: Tensor, scale: float, *, mode: str = "nearest") -> Tensor:
        """Spatial resampling by one factor; mode `nearest`, `linear` or `cubic`."""
        scales = self.constant([1.0, 1.0] + [scale] * (x.rank - 2), dtype=DType.FLOAT32)
        return self._one("Resize", [x, None, scales], mode=mode)

    # Layout

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """0 keeps the input's dimension at that place, one -1 takes the rest."""
        return self._one("Reshape", [x, self.constant(list(shape))])

    def expand(self, x: Tensor, shape: Sequence[int | str]) -> Tensor:
        """x repeated to `shape` without a copy; a symbol must be a dimension of some input."""
        parts: list[Tensor] = []
        for size in shape:
            parts.append(self.constant([size]) if isinstance(size, int) else self._symbol(size))
        target = self.concat(parts, axis=0) if any(isinstance(size, str) for size in shape) else None
        made = self._one("Expand", [x, target or self.constant(list(shape))])
        return self._known(made.name, TensorType(TO_ONNX[x.dtype], tuple(shape)))

    def flatten(self, x: Tensor, *, axis: int = 1) -> Tensor:
        """To a matrix, rows before `axis`."""
        return self._one("Flatten", [x], axis=axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Dimensions in the given order."""
        return self._one("Transpose", [x], perm=list(axes))

    def concat(self, parts: Sequence[Tensor], *, axis: int) -> Tensor:
        """Joined along one axis."""
        return self._one("Concat", list(parts), axis=axis)

    def split(self, x: Tensor, parts: int | Sequence[int], *, axis: int) -> tuple[Tensor, ...]:
        """Equal parts along one axis, or parts of the given sizes."""
        if parts == 1:
            return (x,)
        outputs: tuple[Tensor, ...]
        if isinstance(parts, int):
            outputs = self.op("Split", [x], parts, axis=axis, num_outputs=parts)
        else:
            outputs = self.op("Split", [x, self.constant(list(parts))], len(parts), axis=axis)
        return outputs

    def slice(self, x: Tensor, start: int, stop: int, *, axis: int, step: int = 1) -> Tensor:
        """x[start:stop:step] along one axis."""
        return self._one("Slice", [x, *(self.constant([n]) for n in (start, stop, axis, step))])

    def gather(self, x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
        """Entries of x by integer indices along one axis."""
        return self._one("Gather", [x, indices], axis=axis)

    # Result

    def build(self, outputs: Sequence[Tensor]) -> bytes:
        """ONNX bytes of everything built so far, returning `outputs`. Weights are external and absent."""
        if not outputs:
            raise InvalidGraph("a graph needs at least one output")
        model = ModelProto(ir_version=10, producer_name="perfcast")
        model.opset_import.extend(helper.make_opsetid(d, v) for d, v in self._opsets.items())
        graph = model.graph
        graph.name = self.name
        graph.node.extend(self._nodes)
        graph.input.extend(self._inputs)
        graph.initializer.extend(self._initializers)
        graph.output.extend(
            ValueInfoProto(name=tensor.name, type=self._type_proto(tensor)) for tensor in outputs
        )
        return bytes(model.SerializeToString(deterministic=True))

    # Helpers

    def _symbol(self, name: str) -> Tensor:
        """The size that a symbol stands for, as a vector of one element."""
        for value in self._inputs:
            dims = self._types[value.name].dims or ()
            if name in dims:
                axis = dims.index(name)
                source = Tensor(value.name, dims, self.dtype)
                return self._one("Shape", [source], start=axis, end=axis + 1)
        raise InvalidGraph(f"no input has a dimension {name!r}; expected a symbol of the inputs")

    def _one(self, op_type: str, inputs: Sequence[Tensor | None], **attributes: Any) -> Tensor:
        output: Tensor = self.op(op_type, inputs, **attributes)
        return output

    def _pool(self, op_type: str, x: Tensor, kernel: Pair, stride: Pair | None, padding: Pair) -> Tensor:
        spatial = x.rank - 2
        return self._one(
            op_type,
            [x],
            kernel_shape=_each(kernel, spatial),
            strides=_each(kernel if stride is None else stride, spatial),
            pads=_each(padding, spatial) * 2,
        )

    def _known(self, name: str, known: TensorType) -> Tensor:
        self._types[name] = known
        return Tensor(name, known.dims or (), FROM_ONNX.get(known.elem_type, self.dtype))

    def _unique(self, stem: str) -> str:
        while True:
            count = self._counts[stem] = self._counts.get(stem, 0) + 1
            name = stem if count == 1 else f"{stem}_{count}"
            if name not in self._types:
                return name

    def _type_proto(self, tensor: Tensor) -> TypeProto:
        known = self._types[tensor.name]
        proto: TypeProto = helper.make_tensor_type_proto(known.elem_type, known.dims)
        return proto


def _each(size: Pair, count: int) -> list[int]:
    """One number for every spatial dimension, or the given ones."""
    sizes = [size] * count if isinstance(size, int) else list(size)
    if len(sizes) != count:
        raise InvalidGraph(f"{sizes} names {len(sizes)} sizes for {count} spatial dimensions")
    return sizes
