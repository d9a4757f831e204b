"""What a work rule sees of one recorded call, and the bridge to the rules of ONNX operators.

Most ATen operators are an ONNX operator under another name: their rules look the operands up, and the rule
that prices exported graphs answers. So both front ends agree on the work of a kernel by construction, and
differ only in which kernels they find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from predictor.errors import InvalidGraph
from predictor.features.graph import Attribute, Value
from predictor.features.lowering.layout import accepts
from predictor.features.programs.op_view import OpView, element_bits, vector_compute
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, load_rules
from predictor.features.programs.work import Elements, Family, OpWork, Phase
from predictor.features.torch_capture.calls import Argument, Call, Tensor, tensors_in
from predictor.registry import Registry
from predictor.types import Optimizer, Precision

_OPSET = 21


@dataclass(frozen=True)
class CallView:
    """One call with its job.

    Attributes:
        call: with storages numbered by first appearance.
        training: the iteration has a backward pass.
        optimizer: names the kernels of the step.
    """

    call: Call
    precision: Precision = Precision.FP32
    training: bool = False
    optimizer: Optimizer = Optimizer.NONE

    def argument(self, name: str) -> Argument:
        """The argument, None when it has its default."""
        return next((value for key, value in self.call.arguments if key == name), None)

    def tensor(self, name: str) -> Tensor:
        """A tensor argument. Raises InvalidGraph when it is absent."""
        value = self.argument(name)
        if not isinstance(value, Tensor):
            raise InvalidGraph(f"{self.call.domain}::{self.call.op}: tensor {name!r} is missing")
        return value

    def optional(self, name: str) -> Tensor | None:
        """A tensor argument, None when absent."""
        value = self.argument(name)
        return value if isinstance(value, Tensor) else None

    def tensors(self, name: str) -> tuple[Tensor, ...]:
        """Tensors of a list argument."""
        return tuple(tensors_in(self.argument(name)))

    def integers(self, name: str) -> tuple[int, ...]:
        """An integer list; a single number is a list of one, an absent argument an empty one."""
        value = self.argument(name)
        if isinstance(value, int):
            return (int(value),)
        return tuple(int(item) for item in value if isinstance(item, int)) if isinstance(value, tuple) else ()

    def integer(self, name: str, default: int = 0) -> int:
        """A number or flag."""
        value = self.argument(name)
        return int(value) if isinstance(value, int | float) else default

    def text(self, name: str) -> str:
        """A text argument, empty when absent."""
        value = self.argument(name)
        return value if isinstance(value, str) else ""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All tensors among the arguments."""
        return tuple(self.call.operands())

    @property
    def output(self) -> Tensor:
        """The first result. Raises InvalidGraph when there is none."""
        if not self.call.outputs:
            raise InvalidGraph(f"{self.call.domain}::{self.call.op}: no result is a tensor")
        return self.call.outputs[0]


AtenRule: TypeAlias = Callable[[CallView], tuple[OpWork, ...]]
ATEN_RULES: Registry[AtenRule] = Registry("ATen work rule")
"""Work of one call, keyed by (domain, operator). Phases are set by the caller."""


def forward(
    view: CallView,
    op_type: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    *,
    domain: str = "",
    training: bool | None = None,
    **attributes: Attribute,
) -> tuple[OpWork, ...]:
    """The forward rule of an ONNX operator, with the copies that its kernel makes of strided operands."""
    load_rules()
    rule = WORK_RULES.get(domain, op_type, _OPSET)
    if rule is None:
        raise KeyError(f"no work rule for {op_type}")
    op = _op_view(view, op_type, inputs, [item.value for item in outputs], domain, attributes, ())
    if training is not None:
        op = replace(op, training=training)
    return (*hidden_copies(view, op_type, inputs), *rule(op))


def backward(
    view: CallView,
    op_type: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor | Value],
    wants: Sequence[int],
    *,
    domain: str = "",
    **attributes: Attribute,
) -> tuple[OpWork, ...]:
    """The backward rule of an ONNX operator for the gradients of the inputs `wants`."""
    load_rules()
    rule = BACKWARD_RULES.get(domain, op_type, _OPSET)
    if rule is None:
        raise KeyError(f"no backward rule for {op_type}")
    results = [item.value if isinstance(item, Tensor) else item for item in outputs]
    op = _op_view(view, op_type, inputs, results, domain, attributes, wants)
    return rule(op).works


def _op_view(
    view: CallView,
    op_type: str,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Value],
    domain: str,
    attributes: Mapping[str, Attribute],
    wants: Sequence[int],
) -> OpView:
    position: dict[Tensor, int] = {}
    for index, item in enumerate(inputs):
        if item is not None:
            position.setdefault(item, index)
    return OpView(
        domain=domain,
        op_type=op_type,
        attributes=attributes,
        inputs=tuple(
            None if item is None else Value(f"in{position[item]}", item.shape, item.dtype) for item in inputs
        ),
        outputs=tuple(Value(f"out{index}", item.shape, item.dtype) for index, item in enumerate(outputs)),
        opset=_OPSET,
        constants=(None,) * len(inputs),
        weights=tuple(item is not None and item.is_weight for item in inputs),
        precision=view.precision,
        training=view.training,
        needs_gradient=frozenset(
            f"in{position[item]}" for index in wants if (item := inputs[index]) is not None
        ),
    )


def hidden_copies(view: CallView, op_type: str, inputs: Sequence[Tensor | None]) -> tuple[OpWork, ...]:
    """A copy in front for every operand whose strides the kernel of `op_type` cannot use."""
    return tuple(
        moved(view, "transpose", (item,), (item,))
        for index, item in enumerate(inputs)
        if item is not None and not accepts(op_type, item.shape, item.strides, index)
    )


def elementwise(
    view: CallView,
    kind: str,
    flops_per_element: int,
    reads: Sequence[Tensor] | None = None,
    writes: Sequence[Tensor] | None = None,
) -> OpWork:
    """One pointwise kernel; by default from all operands to all results."""
    written = view.call.outputs if writes is None else writes
    count = max((item.elements for item in written), default=0)
    return vector_work(
        Family.ELEMENTWISE,
        kind,
        Elements(count),
        view.inputs if reads is None else reads,
        written,
        flops=flops_per_element * count,
    )


def moved(view: CallView, kind: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> OpWork:
    """One kernel that moves elements; the phase is that of the call."""
    count = max((item.elements for item in writes), default=0)
    return replace(vector_work(Family.COPY, kind, Elements(count), reads, writes), phase=view.call.phase)


def vector_work(
    family: Family,
    kind: str,
    shape: Elements,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    flops: int = 0,
    launches: int = 1,
    read_bytes: int | None = None,
    write_bytes: int | None = None,
) -> OpWork:
    """Vector work; every distinct operand crosses the bus once, repeated elements not at all."""
    values = [item.stored for item in (*reads, *writes)]
    return OpWork(
        family=family,
        kind=kind,
        phase=Phase.FORWARD,
        compute=vector_compute(values),
        shape=shape,
        element_bits=element_bits(values),
        matrix_flops=0,
        vector_flops=flops,
        read_bytes=stored_bytes(reads) if read_bytes is None else read_bytes,
        write_bytes=stored_bytes(writes) if write_bytes is None else write_bytes,
        parameter_bytes=stored_bytes([item for item in reads if item.is_weight]),
        launch_count=launches,
    )


def stored_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes in memory of the distinct tensors."""
    return sum({value.name: value.size_bytes for value in (item.stored for item in tensors)}.values())
