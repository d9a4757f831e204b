"""Capture -> Program: every call priced once per distinct signature, memory from observed lifetimes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from predictor.errors import InvalidGraph, UnsupportedOp
from predictor.features.programs.memory_timeline import Held, Lifetime, Line, MemoryTimeline
from predictor.features.programs.op_view import element_bits, vector_compute
from predictor.features.programs.work import (
    Elements,
    Family,
    OpInstance,
    OpWork,
    ParameterGradient,
    Phase,
    Program,
)
from predictor.features.torch_capture.call_view import ATEN_RULES, AtenRule, CallView
from predictor.features.torch_capture.calls import Argument, Call, Capture, Role, Tensor
from predictor.registry import Registry
from predictor.types import Optimizer, Precision


def program_of_capture(
    capture: Capture,
    *,
    precision: Precision = Precision.FP32,
    optimizer: Optimizer = Optimizer.NONE,
    training: bool,
    rules: Registry[AtenRule] = ATEN_RULES,
    strict: bool = False,
) -> Program:
    """One iteration as captured.

    Args:
        precision, optimizer, training: as the capture was made.
        strict: raise UnsupportedOp, naming every operator without a rule, instead of pricing it by its bytes.
    """
    import predictor.features.torch_capture.rules  # noqa: F401

    price = _Pricing(capture, precision, optimizer, training, rules)
    works = [price(call) for call in capture.calls]
    if strict and price.unknown:
        listed = ", ".join(f"{name} ({count}x)" for name, count in sorted(price.unknown.items()))
        raise UnsupportedOp(
            f"{len(price.unknown)} operators have no work rule: {listed}; drop strict to price them by the "
            "bytes they move",
            ops=",".join(sorted(price.unknown)),
        )
    ops: list[OpInstance] = []
    # Number of ops up to and including each call.
    reached: list[int] = []
    for call, module, found in zip(capture.calls, capture.modules, works, strict=True):
        covered = price.is_known(call)
        ops += [OpInstance(work, module, call.op, covered) for work in found]
        reached.append(len(ops))
    timeline = _timeline(capture, works, training)
    return Program(
        ops=tuple(ops),
        memory=timeline.work(),
        gradients=tuple(
            ParameterGradient(item.parameter, item.size_bytes, max(0, reached[item.call_index] - 1))
            for item in capture.gradients
        ),
        parameter_count=capture.parameter_count,
        batch=capture.batch,
        fingerprint=capture.fingerprint,
        timeline=timeline,
    )


class _Pricing:
    """Evaluates rules, remembering every signature."""

    def __init__(
        self,
        capture: Capture,
        precision: Precision,
        optimizer: Optimizer,
        training: bool,
        rules: Registry[AtenRule],
    ) -> None:
        self._job = precision, training, optimizer
        self._rules = rules
        self._known: dict[Call, tuple[OpWork, ...]] = {}
        self._weights = {
            index
            for index, storage in enumerate(capture.storages)
            if storage.role in (Role.PARAMETER, Role.BUFFER)
        }
        self.unknown: dict[str, int] = {}

    def is_known(self, call: Call) -> bool:
        """True when a rule prices the call."""
        return call.is_view or self._rule(call) is not None

    def _rule(self, call: Call) -> AtenRule | None:
        return self._rules.get(call.domain, call.op, 1)

    def __call__(self, call: Call) -> tuple[OpWork, ...]:
        """Works of one call, in its phase."""
        if call.is_view or _is_host_arithmetic(call):
            return ()
        operands = list(call.operands())
        if call.phase is Phase.FORWARD and operands and all(x.storage in self._weights for x in operands):
            self._weights.update(tensor.storage for tensor in call.outputs)
        signature = self._anonymous(call)
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = self._evaluate(signature)
        if self._rule(call) is None:
            name = f"{call.domain}::{call.op}"
            self.unknown[name] = self.unknown.get(name, 0) + 1
        return found

    def _evaluate(self, call: Call) -> tuple[OpWork, ...]:
        precision, training, optimizer = self._job
        view = CallView(call, precision, training, optimizer)
        rule = self._rule(call)
        try:
            works = rule(view) if rule else (_fallback(view),)
        except InvalidGraph:
            raise
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
            shapes = ", ".join(str(item.shape) for item in call.operands())
            raise InvalidGraph(
                f"the rule of {call.domain}::{call.op} cannot price operands of shapes {shapes} ({error})"
            ) from error
        return tuple(work.in_phase(call.phase) for work in works)

    def _anonymous(self, call: Call) -> Call:
        """The call with storages numbered by first appearance, so that equal ones are equal."""
        numbers: dict[int, int] = {}

        def renamed(item: Argument) -> Argument:
            if isinstance(item, Tensor):
                return replace(
                    item,
                    storage=numbers.setdefault(item.storage, len(numbers)),
                    is_weight=item.storage in self._weights,
                )
            if isinstance(item, tuple):
                return tuple(renamed(part) for part in item)
            return item

        arguments = tuple((name, renamed(item)) for name, item in call.arguments)
        outputs = tuple(item for output in call.outputs if isinstance(item := renamed(output), Tensor))
        return replace(call, arguments=arguments, outputs=outputs)


def _is_host_arithmetic(call: Call) -> bool:
    """The optimizer counts steps and scales in numbers that stay on the host."""
    return call.phase is Phase.OPTIMIZER and not any(item.shape for item in (*call.operands(), *call.outputs))


def _fallback(view: CallView) -> OpWork:
    """No rule: every operand crosses the memory bus once."""
    inputs, outputs = view.inputs, view.call.outputs
    values = [item.stored for item in (*inputs, *outputs)]
    return OpWork(
        family=Family.UNKNOWN,
        kind=view.call.op,
        phase=view.call.phase,
        compute=vector_compute(values),
        shape=Elements(max((item.elements for item in outputs), default=0)),
        element_bits=element_bits(values),
        matrix_flops=0,
        vector_flops=0,
        read_bytes=sum({item.stored.name: item.stored.size_bytes for item in inputs}.values()),
        write_bytes=sum({item.stored.name: item.stored.size_bytes for item in outputs}.values()),
    )


def _timeline(capture: Capture, works: Sequence[tuple[OpWork, ...]], training: bool) -> MemoryTimeline:
    length = max(1, len(capture.calls))
    steps = (index for index, call in enumerate(capture.calls) if call.phase is Phase.OPTIMIZER)
    workspaces = {index: size for index, found in enumerate(works) if (size := _convolution_bytes(found)) > 0}

    def sizes(*roles: Role) -> list[int]:
        return [item.size_bytes for item in capture.storages if item.role in roles]

    return MemoryTimeline.of(
        list(_lifetimes(capture, length, training)),
        length=length,
        forward_length=min(length, capture.forward_count),
        training=training,
        held=Held(
            parameter_bytes=sum(sizes(Role.PARAMETER)),
            buffer_bytes=sum(sizes(Role.BUFFER)),
            persistent_bytes=tuple(sizes(Role.PARAMETER, Role.BUFFER)),
            input_bytes=tuple(sizes(Role.INPUT)),
            state_bytes=tuple(sizes(Role.STATE)),
            state_step=next(steps, length - 1),
        ),
        workspaces=workspaces,
        step_nodes=tuple(range(length)),
        node_names=tuple(
            f"{name}:{call.op}" for name, call in zip(capture.modules, capture.calls, strict=True)
        ),
    )


def _lifetimes(capture: Capture, length: int, training: bool) -> Iterator[Lifetime]:
    """Saved is what outlives the forward pass and is freed in backward; gradients live to the end."""
    for storage in capture.storages:
        end = min(storage.end, length - 1)
        begin = min(max(0, storage.begin), end)
        if storage.role is Role.GRADIENT:
            yield Lifetime(Line.PARAMETER_GRADIENT, storage.size_bytes, begin, end, node=begin, ready=begin)
        elif storage.role is Role.ACTIVATION and storage.size_bytes:
            saved = training and storage.begin < capture.forward_count <= storage.end
            yield Lifetime(
                Line.SAVED if saved else Line.TRANSIENT, storage.size_bytes, begin, end, node=begin
            )


def _convolution_bytes(works: Sequence[OpWork]) -> int:
    return max(
        (work.moved_bytes - work.parameter_bytes for work in works if work.family is Family.CONVOLUTION),
        default=0,
    )
