"""What a capture holds: the kernels that a framework asked for, and when each piece of memory lived.

Free of torch: a capture can be kept, compared and priced where torch is not installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import TypeAlias

from predictor.features.dtype import DType
from predictor.features.graph import Shape, Value
from predictor.features.lowering.strides import Strides
from predictor.features.programs.work import Phase


@dataclass(frozen=True, slots=True)
class Tensor:
    """One operand: a view of a piece of memory.

    Attributes:
        storage: index into `Capture.storages`; in a `Call` that was made anonymous, of first appearance.
        strides: in elements. offset: of the first element.
        is_weight: computed from parameters and buffers alone.
    """

    storage: int
    shape: Shape
    strides: Strides
    dtype: DType
    offset: int = 0
    is_weight: bool = False

    @property
    def value(self) -> Value:
        """The tensor as rules see it."""
        return Value(self._name, self.shape, self.dtype)

    @property
    def stored(self) -> Value:
        """As `value`, but dimensions repeated by strides of zero count once: what is in memory."""
        shape = tuple(
            1 if stride == 0 and size > 1 else size
            for size, stride in zip(self.shape, self.strides, strict=True)
        )
        return Value(self._name, shape, self.dtype)

    @property
    def elements(self) -> int:
        """Number of elements, repeated ones included."""
        return prod(self.shape)

    @property
    def _name(self) -> str:
        return f"{self.storage}@{self.offset}{self.shape}{self.strides}"


Argument: TypeAlias = "Tensor | int | float | bool | str | tuple[Argument, ...] | None"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        domain, op: `aten` and the operator's name without overload; in-place forms drop their underscore.
        arguments: by name in schema order, tensors and plain values; defaults may be absent.
        outputs: tensors returned or written.
        allocates: False when every output lies in an argument's memory and nothing was written: a view.
    """

    domain: str
    op: str
    phase: Phase
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[Tensor, ...]
    is_view: bool = False

    def operands(self) -> Iterator[Tensor]:
        """Tensors among the arguments, lists flattened, in order."""
        for _, argument in self.arguments:
            yield from tensors_in(argument)


def tensors_in(argument: Argument) -> Iterator[Tensor]:
    """Tensors of one argument in order."""
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from tensors_in(item)


class Role(Enum):
    """What a piece of memory is for."""

    PARAMETER = 0
    BUFFER = 1
    INPUT = 2
    STATE = 3
    GRADIENT = 4
    ACTIVATION = 5


@dataclass(frozen=True, slots=True)
class Storage:
    """A piece of memory: alive from the call that makes it to the last call before it is freed.

    Attributes:
        begin, end: indices of calls, both included; persistent roles have -1 and the number of calls.
    """

    size_bytes: int
    role: Role
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """The gradient of `parameter` is complete after call `call_index`."""

    parameter: str
    size_bytes: int
    call_index: int


@dataclass(frozen=True)
class Capture:
    """One iteration as the framework ran it.

    Attributes:
        calls, modules: the calls in order, and the module that each belongs to.
        storages: of everything allocated, by index.
        forward_count: calls before the backward pass.
        parameter_count: elements of all parameters, shared ones once.
        batch: samples per iteration.
    """

    calls: tuple[Call, ...]
    modules: tuple[str, ...]
    storages: tuple[Storage, ...]
    gradients: tuple[ReadyGradient, ...]
    forward_count: int
    parameter_count: int
    batch: int

    @cached_property
    def fingerprint(self) -> str:
        """`sha256:...` of the calls, their operands and the batch; names of modules do not matter."""
        digest = hashlib.sha256(repr((self.batch, self.parameter_count, self.forward_count)).encode())
        for call in self.calls:
            digest.update(repr(call).encode())
        return f"sha256:{digest.hexdigest()}"
