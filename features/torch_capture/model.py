"""A torch module as a source of programs: `PredictionRequest(graph=TorchModel(module, (image,)), ...)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from predictor.errors import InvalidInput
from predictor.features.programs.work import Program
from predictor.types import Mode, Optimizer, Precision, Runtime

if TYPE_CHECKING:
    import torch

    from predictor.features.torch_capture.calls import Capture

_HINT = "install it with `pip install perfcast[torch]`, or give an ONNX file"
_numbers = itertools.count()


def require_torch() -> None:
    """Raises InvalidInput with what to do when torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InvalidInput(f"torch is needed to capture a module and is not installed: {_HINT}") from None


class TorchModel:
    """A module with example inputs. Captures are made when asked for, under fake tensors, and kept.

    The module is copied for every capture and never changed. Changes made to it after the first prediction
    are not noticed: make a new TorchModel then.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        example_inputs: Any,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        loss: Callable[[Any], Any] | None = None,
    ) -> None:
        """The module and what it is called with; nothing is captured yet.

        Args:
            example_inputs: a tensor, a tuple of arguments, or a mapping of keyword arguments; tensors may be
                on any device, `meta` included.
            example_kwargs: further arguments by keyword.
            loss: makes a scalar of the outputs; without it the backward pass starts from ones.

        Raises InvalidInput when torch is missing or `module` is no module.
        """
        require_torch()
        import torch

        if not isinstance(module, torch.nn.Module):
            raise InvalidInput(f"expected a torch.nn.Module, got {type(module).__name__}")
        self.module = module
        args, kwargs = as_call(example_inputs)
        self.call = args, {**kwargs, **(example_kwargs or {})}
        """Positional and keyword arguments of the example call."""
        self.loss = loss
        self._number = next(_numbers)
        self._captures: dict[Hashable, Capture] = {}
        self._export: bytes | None = None
        # Exporting captures first.
        self._lock = RLock()

    @property
    def key(self) -> Hashable:
        """Unique for every TorchModel of a process."""
        return "torch", self._number

    @property
    def name(self) -> str:
        """The module's class."""
        return type(self.module).__name__

    def capture(
        self,
        *,
        mode: Mode,
        precision: Precision = Precision.FP32,
        optimizer: Optimizer = Optimizer.NONE,
        batch: int | None = None,
    ) -> Capture:
        """One iteration as torch runs it. Raises InvalidInput or InvalidGraph."""
        from predictor.features.torch_capture.capture import capture

        # TF32 is a rate: the calls are those of FP32.
        stored = Precision.FP32 if precision is Precision.TF32 else precision
        step = optimizer if mode is Mode.TRAIN else Optimizer.NONE
        key = (mode, stored, step, batch)
        with self._lock:
            if key not in self._captures:
                self._captures[key] = capture(
                    self.module,
                    self.call[0],
                    self.call[1],
                    mode=mode,
                    precision=stored,
                    optimizer=step,
                    batch=batch,
                    loss=self.loss,
                )
            return self._captures[key]

    def program(
        self,
        *,
        batch: int | None = None,
        mode: Mode = Mode.INFER,
        precision: Precision = Precision.FP32,
        optimizer: Optimizer = Optimizer.NONE,
        runtime: Runtime = Runtime.EAGER,
        strict: bool = False,
    ) -> Program:
        """One iteration on one device; `batch` replaces the inputs' first dimension.

        Compilers and inference engines regroup what a module runs op by op: but for `Runtime.EAGER` the
        program is derived from the module's export, as for a file.

        Raises InvalidInput or InvalidGraph when the module cannot be captured (or exported), UnsupportedOp
        with `strict`.
        """
        if runtime is not Runtime.EAGER:
            return self._compiled(batch, mode, precision, optimizer, runtime, strict)
        from predictor.features.torch_capture.program import program_of_capture

        return program_of_capture(
            self.capture(mode=mode, precision=precision, optimizer=optimizer, batch=batch),
            precision=precision,
            optimizer=optimizer,
            training=mode is Mode.TRAIN,
            strict=strict,
        )

    def _compiled(
        self,
        batch: int | None,
        mode: Mode,
        precision: Precision,
        optimizer: Optimizer,
        runtime: Runtime,
        strict: bool,
    ) -> Program:
        from predictor.features.programs.program import build_program
        from predictor.features.reading.reader import read_graph
        from predictor.features.torch_capture.fakes import batch_of
        from predictor.features.torch_capture.onnx_export import export_onnx

        with self._lock:
            if self._export is None:
                self._export = export_onnx(self)
        graph = read_graph(self._export, batch=batch or batch_of(self.call))
        return build_program(
            graph,
            mode=mode,
            precision=precision,
            optimizer=optimizer,
            runtime=runtime,
            strict=strict,
        )


def as_call(inputs: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Positional and keyword arguments of a call with these example inputs."""
    if isinstance(inputs, Mapping):
        return (), inputs
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}
