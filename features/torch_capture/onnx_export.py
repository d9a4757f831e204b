"""A module as an ONNX file without weights, by torch's exporter on fake tensors."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from predictor.errors import InvalidGraph, InvalidInput
from predictor.features.reading.weights import DROPPED_LOCATION
from predictor.features.torch_capture.model import TorchModel
from predictor.types import Mode, Precision

BATCH = "batch"
_BIAS = 2
_EXPORTERS = ("torch", "onnxscript", "onnx_ir")
# Neither zero nor one: products and sums with it stay.
_PLAIN_NUMBER = 0.75


def export_onnx(model: TorchModel, *, dynamic_batch: bool = True, training: bool = False) -> bytes:
    """The forward pass of `model` as ONNX bytes without weights; nothing is allocated for them.

    Args:
        dynamic_batch: first dimensions that follow the batch become the symbol `batch`, so that the file
            answers for any batch size; where the module fixes them, they stay numbers.
        training: keeps what only training runs (dropout).

    Raises InvalidInput when onnxscript is missing, InvalidGraph when torch cannot export the module,
    and what a capture raises.
    """
    try:
        import onnx_ir
        import onnxscript  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "onnxscript is needed to write ONNX from torch and is not installed: install it with "
            "`pip install perfcast[torch]`"
        ) from None
    from torch._subclasses.fake_tensor import FakeTensorMode

    from predictor.features.reading.strip import strip_model
    from predictor.features.torch_capture.fakes import fake_inputs, fake_module

    # Says what is wrong when the module does not run on these inputs.
    model.capture(mode=Mode.INFER)
    with FakeTensorMode(allow_non_fake_inputs=True):
        copy = _in_mode(fake_module(model.module, Precision.FP32), training)
        if model.loss is not None:
            copy = _with_loss(copy, model.loss)
        given = fake_inputs(model.call, Precision.FP32, None)
        program = _export(copy, given, dynamic_batch)
    weights = [value for value in program.model.graph.initializers.values() if _is_fake(value.const_value)]
    for value in weights:
        value.const_value = _standing_in(value.const_value)
    with _quiet():
        _simplify(program.model)
    for value in program.model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, onnx_ir.LazyTensor):
            value.const_value = onnx_ir.ExternalTensor(
                DROPPED_LOCATION, None, None, tensor.dtype, shape=tensor.shape, name=value.name or ""
            )
    return strip_model(onnx_ir.to_proto(program.model).SerializeToString())


def _in_mode(module: Any, training: bool) -> Any:
    """In training mode but for batch norms: those are one node of ONNX either way."""
    import torch

    for part in module.train(training).modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase):
            part.eval()
    return module


def _with_loss(module: Any, loss: Callable[[Any], Any]) -> Any:
    import torch

    class WithLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return loss(self.module(*args, **kwargs))

    return WithLoss()


def _simplify(model: Any) -> None:
    """What exports usually go through, except for changes to weights: batch norms stay apart."""
    import onnx_ir
    from onnxscript import optimizer

    def is_weight(value: Any) -> bool:
        return value is not None and isinstance(value.const_value, onnx_ir.LazyTensor)

    def should_fold(node: Any) -> bool | None:
        return False if any(is_weight(value) for value in node.inputs) else None

    optimizer.inline(model)
    optimizer.fold_constants(model, onnx_shape_inference=True, should_fold=should_fold)
    optimizer.remove_unused_nodes(model)
    for node in model.graph:
        # The exporter gives every convolution a bias, zeros where the module has none.
        if node.op_type in ("Conv", "ConvTranspose") and len(node.inputs) > _BIAS:
            bias = node.inputs[_BIAS]
            if bias is not None and not is_weight(bias) and onnx_ir.convenience.get_const_tensor(bias):
                node.resize_inputs(_BIAS)
    optimizer.remove_unused_nodes(model)


def _is_fake(tensor: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    raw = getattr(tensor, "raw", None)
    return isinstance(raw, FakeTensor) or isinstance(getattr(raw, "data", None), FakeTensor)


def _standing_in(tensor: Any) -> Any:
    """Numbers for the exporter's constant folding, made when it asks: none that it could simplify away."""
    import numpy as np
    import onnx_ir

    shape, dtype = tuple(tensor.shape), tensor.dtype

    def make() -> Any:
        return onnx_ir.tensor(np.full(shape, _PLAIN_NUMBER, dtype.numpy()), dtype=dtype)

    return onnx_ir.LazyTensor(make, dtype=dtype, shape=tensor.shape, name=tensor.name, cache=False)


def _export(module: Any, given: tuple[tuple[Any, ...], Mapping[str, Any]], dynamic_batch: bool) -> Any:
    import torch

    from predictor.features.torch_capture.fakes import batch_of, fake_inputs, square_masks_are_causal

    args, kwargs = given
    attempts: list[tuple[Any, Any]] = []
    if dynamic_batch:
        # A batch of one would be taken for a fixed size.
        wide = fake_inputs(given, Precision.FP32, max(2, batch_of(given)))
        shapes = torch.utils._pytree.tree_map(lambda item: _shape_of(item, batch_of(wide)), wide)
        attempts.append((wide, shapes))
    attempts.append((given, None))
    for (args, kwargs), shapes in attempts:
        try:
            with _quiet(), square_masks_are_causal():
                return torch.onnx.export(
                    module,
                    tuple(args),
                    kwargs=dict(kwargs),
                    dynamo=True,
                    verbose=False,
                    optimize=False,
                    dynamic_shapes=None if shapes is None else _by_name(module, shapes),
                )
        except Exception as error:
            failure = error
    raise InvalidGraph(
        f"module {type(module).__name__} runs, but torch cannot export it ({_cause(failure)}); eager "
        "predictions need no export: `perfcast predict PKG.MOD:FACTORY --example-shape ... --runtime eager`"
    ) from failure


def _cause(error: Exception) -> str:
    """The first line of the innermost error: the outer ones are about the exporter's steps."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    text = str(inner).strip().splitlines()
    return f"{type(inner).__name__}: {text[0]}" if text else type(inner).__name__


def _shape_of(item: Any, batch: int) -> Any:
    import torch

    if isinstance(item, torch.Tensor) and item.dim() and item.shape[0] == batch:
        return {0: BATCH}
    return None


def _by_name(module: Any, shapes: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Any:
    """Dynamic shapes under the names of forward's parameters, as torch.export wants them."""
    import inspect

    args, kwargs = shapes
    names = list(inspect.signature(module.forward).parameters)
    if len(names) < len(args) or any(
        parameter.kind is parameter.VAR_POSITIONAL
        for parameter in inspect.signature(module.forward).parameters.values()
    ):
        return tuple(args) if not kwargs else None
    return {**dict(zip(names, args, strict=False)), **kwargs}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's progress and advice on standard error."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in _EXPORTERS}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
