"""A private copy of a module whose tensors are fake: the user's module is neither changed nor read."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from predictor.errors import InvalidInput
from predictor.types import Precision

_UNIFORM = {
    Precision.FP64: torch.float64,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
}


def fake_module(module: torch.nn.Module, precision: Precision) -> torch.nn.Module:
    """A copy with fake parameters and buffers, of the type that `precision` stores. Call it in a fake mode.

    Parameters may lie on any device, `meta` included. Raises InvalidInput when the module cannot be copied.
    """
    memo: dict[int, Any] = {}
    for tensor in _tensors_of(module):
        if id(tensor) not in memo:
            memo[id(tensor)] = _fake(tensor, precision)
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InvalidInput(
            f"module {type(module).__name__} cannot be copied ({type(error).__name__}: {error}); make it "
            "deep-copyable, or export it to ONNX and give the file"
        ) from error


@contextmanager
def square_masks_are_causal() -> Iterator[None]:
    """`nn.Transformer` and its parts look for the causal triangle in a mask's contents; here in its shape."""
    owner = torch.nn.modules.transformer
    asked = owner._detect_is_causal_mask

    def by_shape(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        if is_causal is not None or mask is None:
            return is_causal is True
        length = mask.shape[-2] if size is None else size
        return bool(tuple(mask.shape) == (length, length))

    owner._detect_is_causal_mask = by_shape
    try:
        yield
    finally:
        owner._detect_is_causal_mask = asked


def fake_inputs(inputs: Any, precision: Precision, batch: int | None) -> Any:
    """Fakes of the tensors in a nest of tuples, lists and mappings, with `batch` as their first dimension.

    Only tensors whose first dimension is that of the first tensor follow the batch.
    """
    own = batch_of(inputs)

    def fake(item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        shape = list(item.shape)
        if batch is not None and shape and shape[0] == own:
            shape[0] = batch
        return torch.empty(shape, dtype=_stored_type(item.dtype, precision), device="cpu")

    return pytree.tree_map(fake, inputs)


def batch_of(inputs: Any) -> int:
    """First dimension of the first tensor that has one; 1 when there is none."""
    for item in pytree.tree_leaves(inputs):
        if isinstance(item, torch.Tensor) and item.dim():
            return int(item.shape[0])
    return 1


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors of an output, whatever containers or dataclasses hold them."""
    leaves = pytree.tree_leaves(value)
    found: list[torch.Tensor] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | torch.nn.Module):
            found += [item for item in vars(leaf).values() if isinstance(item, torch.Tensor)]
    return found


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors kept as plain attributes of any submodule."""
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from _plain(vars(part))


def _plain(attributes: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for value in attributes.values():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, torch.Tensor))


def _fake(tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    made = torch.empty_strided(
        tuple(tensor.shape), tuple(tensor.stride()), dtype=_stored_type(tensor.dtype, precision), device="cpu"
    )
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made


def _stored_type(dtype: torch.dtype, precision: Precision) -> torch.dtype:
    wide = dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    return _UNIFORM[precision] if precision in _UNIFORM and wide else dtype
