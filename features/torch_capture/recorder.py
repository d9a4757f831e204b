"""Runs torch on fake tensors and writes down every operator that reaches the dispatcher below autograd.

Storages are followed through weak references: autograd keeps and frees exactly what it would keep and free on
a device, so lifetimes are observed, not modelled.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from predictor.features.dtype import DType
from predictor.features.programs.work import Phase
from predictor.features.torch_capture.calls import Argument, Call, Role, Storage, Tensor

DTYPES: dict[torch.dtype, DType] = {
    torch.float64: DType.FLOAT64,
    torch.float32: DType.FLOAT32,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int64: DType.INT64,
    torch.int32: DType.INT32,
    torch.int16: DType.INT16,
    torch.int8: DType.INT8,
    torch.uint8: DType.INT8,
    torch.bool: DType.BOOL,
    torch.complex64: DType.COMPLEX64,
    torch.complex128: DType.COMPLEX128,
    **{
        getattr(torch, name): DType.FLOAT8
        for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
        if hasattr(torch, name)
    },
    **{getattr(torch, name): DType.INT64 for name in ("uint64",) if hasattr(torch, name)},
    **{getattr(torch, name): DType.INT32 for name in ("uint32",) if hasattr(torch, name)},
    **{getattr(torch, name): DType.INT16 for name in ("uint16",) if hasattr(torch, name)},
}

_DOMAINS = frozenset({"aten", "perfcast", "torchvision"})
# Numbers of the host: no kernel runs on the device.
_HOST = frozenset(
    {"lift_fresh", "scalar_tensor", "_local_scalar_dense", "sym_size", "sym_stride", "sym_numel"}
)


@dataclass(frozen=True, slots=True)
class _Signature:
    """What the schema of an operator tells, looked up once."""

    domain: str
    op: str
    arguments: tuple[str, ...]
    written: tuple[int, ...]


@dataclass(slots=True)
class _Life:
    size_bytes: int
    role: Role
    begin: int
    end: int | None = None


@dataclass(slots=True)
class _Log:
    calls: list[Call] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    lives: list[_Life] = field(default_factory=list)


class Recorder(FakeTensorMode):  # type: ignore[misc]
    """A fake-tensor mode that records calls while `phase` is set.

    `module` names the part of the model that runs; backward calls take the name that was current when their
    forward call ran.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.phase: Phase | None = None
        self.module = ""
        self._log = _Log()
        self._inside = False
        self._signatures: dict[Any, _Signature] = {}
        self._storages: dict[int, int] = {}
        self._module_of_node: dict[int, str] = {}

    @property
    def call_count(self) -> int:
        """Calls recorded so far."""
        return len(self._log.calls)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the operator on fakes; calls from inside it are its own business."""
        if self._inside or self.phase is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        self._inside = True
        try:
            out = super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._inside = False
        self._record(func, args, kwargs or {}, out)
        return out

    def hold(self, tensors: Iterable[torch.Tensor], role: Role) -> None:
        """Registers memory that exists before the iteration."""
        for tensor in tensors:
            index = self._storage(tensor, -1, role)
            self._log.lives[index].role = role

    def role_of(self, tensor: torch.Tensor, role: Role) -> None:
        """Says what a tensor that was made during the iteration is for."""
        self._log.lives[self._storage(tensor, len(self._log.calls) - 1, role)].role = role

    def finish(self) -> tuple[tuple[Call, ...], tuple[str, ...], tuple[Storage, ...]]:
        """Calls, their modules and the storages; what is still alive lives to the end."""
        last = len(self._log.calls)
        storages = tuple(
            Storage(
                life.size_bytes,
                life.role,
                life.begin,
                last if life.end is None else max(life.begin, life.end),
            )
            for life in self._log.lives
        )
        return tuple(self._log.calls), tuple(self._log.modules), storages

    def _record(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        signature = self._signatures.get(func) or self._read_signature(func)
        if signature.domain not in _DOMAINS or signature.op in _HOST:
            return
        index = len(self._log.calls)
        arguments = [
            (name, self._argument(value, index))
            for name, value in zip(signature.arguments, args, strict=False)
        ]
        arguments += [(name, self._argument(value, index)) for name, value in kwargs.items()]
        known = len(self._log.lives)
        outputs = tuple(self._outputs(out, index))
        if not outputs:
            outputs = tuple(
                tensor
                for place in signature.written
                if place < len(args)
                for tensor in self._outputs(args[place], index)
            )
        is_view = not signature.written and all(tensor.storage < known for tensor in outputs)
        assert self.phase is not None
        self._log.calls.append(
            Call(signature.domain, signature.op, self.phase, tuple(arguments), outputs, is_view)
        )
        self._log.modules.append(self._module())

    def _module(self) -> str:
        if self.phase is Phase.FORWARD:
            # Autograd has made its node just before the call came down here.
            self._module_of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.module)
            return self.module
        node = torch._C._current_autograd_node()
        return self._module_of_node.get(node._sequence_nr(), "") if node is not None else ""

    def _read_signature(self, func: Any) -> _Signature:
        schema = func._schema
        domain, _, name = schema.name.partition("::")
        written = tuple(
            place
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        if written and name.endswith("_") and not name.endswith("__"):
            name = name[:-1]
        if torch.Tag.inplace_view in func.tags:
            # squeeze_, as_strided_: other strides over the same numbers.
            written = ()
        found = _Signature(domain, name, tuple(argument.name for argument in schema.arguments), written)
        self._signatures[func] = found
        return found

    def _argument(self, value: Any, index: int) -> Argument:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, index)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list | tuple):
            return tuple(self._argument(item, index) for item in value)
        return str(value)

    def _outputs(self, out: Any, index: int) -> Iterable[Tensor]:
        if isinstance(out, torch.Tensor):
            yield self._tensor(out, index)
        elif isinstance(out, list | tuple):
            for item in out:
                yield from self._outputs(item, index)

    def _tensor(self, tensor: torch.Tensor, index: int) -> Tensor:
        return Tensor(
            self._storage(tensor, index, Role.ACTIVATION),
            tuple(tensor.shape),
            tuple(tensor.stride()),
            DTYPES.get(tensor.dtype, DType.INT8),
            tensor.storage_offset(),
        )

    def _storage(self, tensor: torch.Tensor, index: int, role: Role) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._storages.get(key)
        if known is not None:
            return known
        number = len(self._log.lives)
        self._log.lives.append(_Life(storage.nbytes(), role, index))
        self._storages[key] = number
        weakref.finalize(storage, _release, self._storages, key, self._log, number).atexit = False
        return number


def _release(storages: dict[int, int], key: int, log: _Log, number: int) -> None:
    """Freed between the call before and the next one."""
    storages.pop(key, None)
    log.lives[number].end = len(log.calls) - 1
