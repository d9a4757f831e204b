"""What a work rule may see of one op: types, attributes, small constants; no device, no neighbours, no names.

Values carry positional names (`in0`, `in1`, `out0` ...), so that equal ops of any model share one evaluation.
An input that occurs twice has one name, that of its first place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from predictor.errors import InvalidGraph
from predictor.features.dtype import Compute, DType
from predictor.features.graph import Attribute, Value
from predictor.types import Precision

_COMPUTE = {
    DType.FLOAT64: Compute.FP64,
    DType.FLOAT32: Compute.FP32,
    DType.FLOAT16: Compute.FP16,
    DType.BFLOAT16: Compute.BF16,
    DType.FLOAT8: Compute.FP8,
    # Six-bit floats multiply at the rate of eight-bit ones.
    DType.FLOAT6: Compute.FP8,
    DType.FLOAT4: Compute.FP4,
    DType.INT8: Compute.INT8,
    DType.INT4: Compute.INT8,
    DType.INT2: Compute.INT8,
    DType.COMPLEX64: Compute.FP32,
    DType.COMPLEX128: Compute.FP64,
}


@dataclass(frozen=True, slots=True)
class OpView:
    """One op as its rule sees it.

    Attributes:
        domain, op_type, attributes, opset: as in the graph; `opset` is the version of the node's domain.
        inputs, outputs: types by position, None where an optional one is omitted.
        constants: contents of small integer inputs by position, None where unknown.
        weights: per input, True when it is computed from parameters and constants alone.
        precision: the job's numeric policy; tensor types already follow it, TF32 is visible only here.
        training: True when the iteration has a backward pass (BatchNorm takes batch statistics, Dropout
            drops).
        needs_gradient: names of inputs whose gradient the backward pass wants; empty in inference.
    """

    domain: str
    op_type: str
    attributes: Mapping[str, Attribute]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    opset: int = 1
    constants: tuple[tuple[int, ...] | None, ...] = ()
    weights: tuple[bool, ...] = ()
    precision: Precision = Precision.FP32
    training: bool = False
    needs_gradient: frozenset[str] = field(default_factory=frozenset)

    def input(self, index: int) -> Value:
        """Input `index`. Raises InvalidGraph when it is absent."""
        value = self.optional(index)
        if value is None:
            raise InvalidGraph(
                f"{self.op_type}: input {index} is missing; expected at least {index + 1} inputs"
            )
        return value

    def optional(self, index: int) -> Value | None:
        """Input `index`, None when omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def output(self, index: int = 0) -> Value:
        """Output `index`. Raises InvalidGraph when it is absent."""
        value = self.outputs[index] if index < len(self.outputs) else None
        if value is None:
            raise InvalidGraph(f"{self.op_type}: output {index} is missing")
        return value

    def has_output(self, index: int) -> bool:
        """True when output `index` is asked for."""
        return index < len(self.outputs) and self.outputs[index] is not None

    @property
    def present_inputs(self) -> tuple[Value, ...]:
        """The distinct inputs that are given."""
        return tuple({value.name: value for value in self.inputs if value is not None}.values())

    @property
    def present_outputs(self) -> tuple[Value, ...]:
        """The outputs that are asked for."""
        return tuple(value for value in self.outputs if value is not None)

    def constant(self, index: int) -> tuple[int, ...] | None:
        """Contents of input `index` when it is a small integer constant."""
        return self.constants[index] if index < len(self.constants) else None

    def is_weight(self, index: int) -> bool:
        """True when input `index` is computed from parameters and constants alone."""
        return index < len(self.weights) and self.weights[index]

    def wants_gradient(self, index: int) -> bool:
        """True when the backward pass must deliver the gradient of input `index`."""
        value = self.optional(index)
        return value is not None and value.name in self.needs_gradient

    def integer(self, name: str, default: int = 0) -> int:
        """Integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Integer-list attribute."""
        value = self.attributes.get(name)
        if not isinstance(value, tuple):
            return default
        return tuple(item for item in value if isinstance(item, int))

    def text(self, name: str, default: str = "") -> str:
        """Text attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def matrix_compute(self, *indices: int) -> Compute:
        """Arithmetic of the op's matrix part: from the widest of the inputs `indices` (all by default).

        FP32 tensors multiply as TF32 when the precision policy allows it.
        """
        values = [self.input(index) for index in indices] if indices else list(self.present_inputs)
        compute = vector_compute(values)
        if compute is Compute.FP32 and self.precision is Precision.TF32:
            return Compute.TF32
        return compute


def vector_compute(values: list[Value] | tuple[Value, ...]) -> Compute:
    """Arithmetic of pointwise work: that of the widest float, INT8 for narrow integers, else FP32."""
    known = [value.dtype for value in values if value.dtype.is_float]
    if not known:
        known = [value.dtype for value in values]
        if not known or max(dtype.bits for dtype in known) > 8 or DType.BOOL in known:
            return Compute.FP32
    return _COMPUTE[max(known, key=lambda dtype: dtype.bits)]


def element_bits(values: list[Value] | tuple[Value, ...]) -> int:
    """Width of the widest float among the tensors, of the widest of any type when none is a float."""
    floats = [value.dtype.bits for value in values if value.dtype.is_float]
    return max(floats or [value.dtype.bits for value in values], default=32)
