"""Captures one iteration of a module: forward, the backward pass that autograd runs, the optimizer's step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch

from predictor.errors import InvalidGraph, InvalidInput, PerfcastError
from predictor.features.programs.work import Phase
from predictor.features.torch_capture.calls import Capture, ReadyGradient, Role
from predictor.features.torch_capture.cuda_choices import CudaChoices
from predictor.features.torch_capture.fakes import (
    batch_of,
    fake_inputs,
    fake_module,
    square_masks_are_causal,
    tensors_in,
)
from predictor.features.torch_capture.recorder import Recorder
from predictor.types import Mode, Optimizer, Precision

_OPTIMIZERS: Mapping[Optimizer, Callable[[list[Any]], torch.optim.Optimizer]] = {
    Optimizer.SGD: lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
    Optimizer.MOMENTUM: lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True),
    Optimizer.ADAM: lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=True),
    Optimizer.ADAMW: lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
}


def make_optimizer(optimizer: Optimizer, parameters: list[Any]) -> torch.optim.Optimizer:
    """torch's optimizer with the multi-tensor step of CUDA devices. Raises KeyError for NONE."""
    return _OPTIMIZERS[optimizer](parameters)


def capture(
    module: torch.nn.Module,
    example_args: tuple[Any, ...],
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode,
    precision: Precision = Precision.FP32,
    optimizer: Optimizer = Optimizer.NONE,
    batch: int | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Capture:
    """Runs one iteration on fake tensors; no weight is allocated, `module` stays as it is.

    Args:
        module: on any device, `meta` included.
        example_args, example_kwargs: what `module` is called with; only shapes and types matter.
        mode: INFER is the forward pass in evaluation mode, TRAIN all three in training mode.
        batch: replaces the first dimension of the inputs.
        loss: makes a scalar of the outputs. Without, the backward pass starts from a gradient of ones for
            every output that nothing else reads, as for an exported graph.

    Raises InvalidInput when the module fails on these inputs, InvalidGraph when what runs depends on data.
    """
    inputs = (tuple(example_args), dict(example_kwargs or {}))
    recorder = Recorder()
    # Fused inference kernels of whole encoder layers would hide what runs; they are off by default on ONNX,
    # too.
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    # Failures become one error of ours, not lines in torch's log.
    log = logging.getLogger("torch._subclasses")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with recorder, square_masks_are_causal():
            run = _Run(recorder, module, inputs, mode, precision, optimizer, batch, loss)
            return run.iteration()
    except PerfcastError:
        raise
    except Exception as error:
        raise _explained(module, error) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        log.setLevel(level)


class _Run:
    """One capture in progress."""

    def __init__(
        self,
        recorder: Recorder,
        module: torch.nn.Module,
        inputs: Any,
        mode: Mode,
        precision: Precision,
        optimizer: Optimizer,
        batch: int | None,
        loss: Callable[[Any], torch.Tensor] | None,
    ) -> None:
        self._recorder = recorder
        self._precision = precision
        self._loss = loss
        self._training = mode is Mode.TRAIN
        self._module = fake_module(module, precision).train(self._training)
        self._args, self._kwargs = fake_inputs(inputs, precision, batch)
        self._batch = batch_of((self._args, self._kwargs))
        self._trained = [item for item in self._module.parameters() if item.requires_grad]
        self._step = make_optimizer(optimizer, self._trained) if self._steps(optimizer) else None
        self._ready: list[ReadyGradient] = []
        self._name_modules()

    def _steps(self, optimizer: Optimizer) -> bool:
        return self._training and bool(self._trained) and optimizer is not Optimizer.NONE

    def iteration(self) -> Capture:
        """The capture of one iteration in the steady state."""
        recorder = self._recorder
        recorder.hold(self._module.parameters(), Role.PARAMETER)
        recorder.hold(self._module.buffers(), Role.BUFFER)
        recorder.hold(tensors_in((self._args, self._kwargs)), Role.INPUT)
        if self._step is not None:
            self._make_state(self._step)
        if self._training:
            self._watch_gradients()
        outputs = self._forward()
        forward_count = recorder.call_count
        if self._training:
            self._backward(outputs)
            del outputs
            if self._step is not None:
                self._optimize(self._step)
        for parameter in self._trained:
            if parameter.grad is not None:
                recorder.role_of(parameter.grad, Role.GRADIENT)
        calls, modules, storages = recorder.finish()
        return Capture(
            calls=calls,
            modules=modules,
            storages=storages,
            gradients=tuple(self._ready),
            forward_count=forward_count,
            parameter_count=sum(item.numel() for item in self._module.parameters()),
            batch=self._batch,
        )

    def _forward(self) -> Any:
        autocast = self._precision is Precision.AMP
        with ExitStack() as stack:
            if autocast:
                stack.enter_context(torch.autocast("cpu", dtype=torch.float16))
            if not self._training:
                stack.enter_context(torch.no_grad())
            stack.enter_context(CudaChoices(autocast=autocast))
            self._recorder.phase = Phase.FORWARD
            outputs = self._module(*self._args, **self._kwargs)
            return outputs if self._loss is None else self._loss(outputs)

    def _backward(self, outputs: Any) -> None:
        heads = [item for item in tensors_in(outputs) if item.requires_grad]
        scalars = [item for item in heads if item.dim() == 0]
        heads = scalars or heads
        if not heads:
            raise InvalidInput(
                f"module {type(self._module).__name__}: no output needs a gradient, so there is nothing to "
                "train; use mode infer, or give a module with trainable parameters"
            )
        self._recorder.phase = Phase.BACKWARD
        # Checkpointed layers run forward again in here, and must choose the kernels they chose before.
        with CudaChoices(autocast=self._precision is Precision.AMP):
            torch.autograd.backward(heads, [torch.ones_like(item) for item in heads])

    def _optimize(self, step: torch.optim.Optimizer) -> None:
        self._recorder.phase, self._recorder.module = None, "optimizer"
        found, scale = torch.zeros(1), torch.ones(1)
        self._recorder.phase = Phase.OPTIMIZER
        if self._precision is Precision.AMP:
            gradients = [item.grad for item in self._trained if item.grad is not None]
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)
        step.step()

    def _make_state(self, step: torch.optim.Optimizer) -> None:
        """One unrecorded step: state that the optimizer makes at its first step exists from now on."""
        for parameter in self._trained:
            parameter.grad = torch.empty_like(parameter)
        step.step()
        for state in step.state.values():
            found = [item for item in state.values() if isinstance(item, torch.Tensor) and item.dim()]
            self._recorder.hold(found, Role.STATE)
        for parameter in self._trained:
            parameter.grad = None

    def _watch_gradients(self) -> None:
        for name, parameter in self._module.named_parameters():
            if parameter.requires_grad:
                size_bytes = parameter.numel() * parameter.element_size()
                parameter.register_post_accumulate_grad_hook(self._on_gradient(name, size_bytes))

    def _on_gradient(self, name: str, size_bytes: int) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            self._ready.append(ReadyGradient(name, size_bytes, self._recorder.call_count - 1))

        return note

    def _name_modules(self) -> None:
        """Calls carry the name of the innermost module that runs them."""
        recorder = self._recorder
        stack: list[str] = []

        def hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
            def enter(*_: Any) -> None:
                stack.append(recorder.module)
                recorder.module = name

            def leave(*_: Any) -> None:
                recorder.module = stack.pop()

            return enter, leave

        for name, part in self._module.named_modules():
            enter, leave = hooks(name)
            part.register_forward_pre_hook(enter)
            part.register_forward_hook(leave, always_call=True)


def _explained(module: torch.nn.Module, error: Exception) -> PerfcastError:
    name = type(module).__name__
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return InvalidGraph(
            f"module {name}: what runs depends on the contents of tensors ({error}); make the shape fixed, "
            "or export the module to ONNX and bind it with --dim"
        )
    return InvalidInput(
        f"module {name} failed on the example inputs: {type(error).__name__}: {error}; check that it runs "
        "with these shapes and types"
    )
