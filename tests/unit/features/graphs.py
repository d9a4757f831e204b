"""Small graphs for tests, straight from shapes: no file, no shape inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from predictor.features.dtype import DType
from predictor.features.graph import Attribute, Graph, Node, Shape, Value
from predictor.features.programs.op_view import OpView
from predictor.types import Precision


@dataclass
class Sketch:
    """Collects values and nodes; `graph` freezes them."""

    dtype: DType = DType.FLOAT32
    opset: int = 21
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)
    constants: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def input(self, name: str, *shape: int, dtype: DType | None = None) -> str:
        self.inputs.append(name)
        return self.value(name, shape, dtype)

    def parameter(self, name: str, *shape: int, dtype: DType | None = None) -> str:
        self.parameters.add(name)
        return self.value(name, shape, dtype)

    def buffer(self, name: str, *shape: int, dtype: DType | None = None) -> str:
        self.buffers.add(name)
        return self.value(name, shape, dtype)

    def constant(self, name: str, *contents: int) -> str:
        self.buffers.add(name)
        self.constants[name] = contents
        return self.value(name, (len(contents),), DType.INT64)

    def value(self, name: str, shape: Shape, dtype: DType | None = None) -> str:
        self.values[name] = Value(name, tuple(shape), dtype or self.dtype)
        return name

    def node(
        self,
        op_type: str,
        inputs: Sequence[str],
        shape: Shape,
        *,
        dtype: DType | None = None,
        domain: str = "",
        name: str = "",
        **attributes: Attribute,
    ) -> str:
        out = name or f"{op_type.lower()}{len(self.nodes)}"
        self.value(out, shape, dtype)
        self.nodes.append(Node(f"/{out}", op_type, tuple(inputs), (out,), domain, attributes))
        return out

    def graph(self, *outputs: str, batch: int = 1, fingerprint: str = "sha256:test") -> Graph:
        return Graph(
            nodes=tuple(self.nodes),
            values=self.values,
            inputs=tuple(self.inputs),
            outputs=outputs,
            parameters=frozenset(self.parameters),
            buffers=frozenset(self.buffers),
            constants=self.constants,
            opsets={"": self.opset},
            batch=batch,
            fingerprint=fingerprint,
        )


def view(
    op_type: str,
    inputs: Sequence[Shape | None],
    outputs: Sequence[Shape],
    *,
    attributes: Mapping[str, Attribute] | None = None,
    domain: str = "",
    opset: int = 21,
    dtype: DType = DType.FLOAT32,
    input_dtypes: Mapping[int, DType] | None = None,
    output_dtypes: Mapping[int, DType] | None = None,
    weights: Sequence[int] = (),
    gradients: Sequence[int] = (),
    constants: Mapping[int, tuple[int, ...]] | None = None,
    precision: Precision = Precision.FP32,
    training: bool = False,
) -> OpView:
    """One op as a rule sees it; `weights` and `gradients` are input positions."""
    in_types, out_types = input_dtypes or {}, output_dtypes or {}
    return OpView(
        domain=domain,
        op_type=op_type,
        attributes=attributes or {},
        inputs=tuple(
            None if shape is None else Value(f"in{i}", shape, in_types.get(i, dtype))
            for i, shape in enumerate(inputs)
        ),
        outputs=tuple(Value(f"out{i}", shape, out_types.get(i, dtype)) for i, shape in enumerate(outputs)),
        opset=opset,
        constants=tuple((constants or {}).get(i) for i in range(len(inputs))),
        weights=tuple(i in weights for i in range(len(inputs))),
        precision=precision,
        training=training,
        needs_gradient=frozenset(f"in{i}" for i in gradients),
    )


def convolution_in_fp16() -> Graph:
    """One convolution of four images laid NCHW, which tensor cores read converted."""
    s = Sketch(DType.FLOAT16)
    s.input("x", 4, 64, 14, 14)
    s.parameter("w", 64, 64, 1, 1)
    return s.graph(s.node("Conv", ["x", "w"], (4, 64, 14, 14)))
