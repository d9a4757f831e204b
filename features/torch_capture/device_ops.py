"""Operators that stand for one library call on a device where torch's CPU path runs many.

They have shapes and gradients, no arithmetic. Their work rules are in `rules/recurrent.py`, `rules/norms.py`
and `rules/matrix.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import torch

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# What a vendor's recurrent kernel keeps per cell beside its gates.
_CELL = 1


@cache
def operators() -> Any:
    """`torch.ops.perfcast`, registered at the first use."""
    for name, schema, fake, setup, backward in (
        ("rnn", _rnn, _fake_rnn, _keep_rnn, _differentiate_rnn),
        ("rnn_backward", _rnn_backward, _fake_rnn_backward, None, None),
        ("rms_norm", _rms_norm, _fake_rms_norm, _keep_rms_norm, _differentiate_rms_norm),
        ("rms_norm_backward", _rms_norm_backward, _fake_rms_norm_backward, None, None),
        ("grouped_mm", _grouped_mm, _fake_grouped_mm, _keep_grouped_mm, _differentiate_grouped_mm),
    ):
        operator = torch.library.custom_op(f"perfcast::{name}", schema, mutates_args=())
        operator.register_fake(fake)
        if setup is not None and backward is not None:
            operator.register_autograd(backward, setup_context=setup)
    return torch.ops.perfcast


def _on_fakes_only() -> NoReturn:
    raise NotImplementedError("operators of perfcast exist on fake tensors only")


# Recurrent layers. The functions without a body give the operators' schemas.


def _rnn(
    data: torch.Tensor,
    weights: Sequence[torch.Tensor],
    cell: str,
    batch_first: bool,
    layers: int,
    directions: int,
    hidden: int,
    width: int,
    batch: int,
    steps: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    _on_fakes_only()


def _fake_rnn(
    data: Any,
    weights: Any,
    cell: str,
    batch_first: bool,
    layers: int,
    directions: int,
    hidden: int,
    width: int,
    batch: int,
    steps: int,
) -> tuple[Any, ...]:
    """(output, last states, last cells, what is kept for the gradient)."""
    out = data.new_empty((*data.shape[:-1], directions * width))
    last = data.new_empty((layers * directions, batch, width))
    cells = data.new_empty((layers * directions, batch, hidden) if cell == "lstm" else (0,))
    reserve = data.new_empty((layers, steps, batch, directions * (_GATES[cell] + _CELL) * hidden))
    return out, last, cells, reserve


def _rnn_backward(
    gradient: torch.Tensor,
    data: torch.Tensor,
    out: torch.Tensor,
    reserve: torch.Tensor,
    weights: Sequence[torch.Tensor],
    cell: str,
    batch_first: bool,
    layers: int,
    directions: int,
    hidden: int,
    wants_data: bool,
) -> list[torch.Tensor]:
    _on_fakes_only()


def _fake_rnn_backward(
    gradient: Any,
    data: Any,
    out: Any,
    reserve: Any,
    weights: Any,
    cell: str,
    batch_first: bool,
    layers: int,
    directions: int,
    hidden: int,
    wants_data: bool,
) -> list[Any]:
    return [_like_if(wants_data, data, data), *(torch.empty_like(weight) for weight in weights)]


def _keep_rnn(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    data, weights, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(data, output[0], output[3], *weights)


def _differentiate_rnn(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, ...]:
    data, out, reserve, *weights = ctx.saved_tensors
    cell, batch_first, layers, directions, hidden, *_rest = ctx.options
    if gradient is None:
        # Only the last state is used: its gradient enters the same call.
        gradient = torch.zeros_like(out)
    wants_data = ctx.needs_input_grad[0]
    found = torch.ops.perfcast.rnn_backward(
        gradient, data, out, reserve, weights, cell, batch_first, layers, directions, hidden, wants_data
    )
    return (found[0] if wants_data else None, list(found[1:]), *(None for _ in ctx.options))


# RMS norm.


def _rms_norm(
    data: torch.Tensor, scale: torch.Tensor | None, dimensions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    _on_fakes_only()


def _fake_rms_norm(data: Any, scale: Any, dimensions: int) -> tuple[Any, Any]:
    """(output, deviation of every row)."""
    rows = (*data.shape[: data.dim() - dimensions], *(1 for _ in range(dimensions)))
    out = torch.empty_like(data, memory_format=torch.contiguous_format)
    return out, data.new_empty(rows, dtype=torch.float32)


def _rms_norm_backward(
    gradient: torch.Tensor,
    data: torch.Tensor,
    deviation: torch.Tensor,
    scale: torch.Tensor | None,
    dimensions: int,
    wants_data: bool,
    wants_scale: bool,
) -> list[torch.Tensor]:
    _on_fakes_only()


def _fake_rms_norm_backward(
    gradient: Any, data: Any, deviation: Any, scale: Any, dimensions: int, wants_data: bool, wants_scale: bool
) -> list[Any]:
    return [_like_if(wants_data, data, data), _like_if(wants_scale, scale, data)]


def _keep_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    data, scale, ctx.dimensions = inputs
    ctx.has_scale = scale is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(data, output[1], *(() if scale is None else (scale,)))


def _differentiate_rms_norm(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, ...]:
    data, deviation, *scales = ctx.saved_tensors
    scale = scales[0] if scales else None
    wants_data, wants_scale = ctx.needs_input_grad[0], ctx.has_scale and ctx.needs_input_grad[1]
    found = torch.ops.perfcast.rms_norm_backward(
        gradient, data, deviation, scale, ctx.dimensions, wants_data, wants_scale
    )
    return found[0] if wants_data else None, found[1] if wants_scale else None, None


# Grouped products, which torch runs in any type and knows the shape of in BF16 alone.


def _grouped_mm(left: torch.Tensor, right: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    _on_fakes_only()


def _fake_grouped_mm(left: Any, right: Any, ends: Any) -> Any:
    """(T x k)(G x k x n) is (T x n); (k x T)(T x n) is one matrix a group, (G x k x n)."""
    if left.dim() == right.dim():
        return left.new_empty((ends.shape[0], left.shape[0], right.shape[1]))
    return left.new_empty((left.shape[0], right.shape[2]))


def _keep_grouped_mm(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_grouped_mm(ctx: Any, gradient: Any) -> tuple[Any, ...]:
    left, right, ends = ctx.saved_tensors
    product = torch.ops.perfcast.grouped_mm
    for_left = product(gradient, right.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    for_right = product(left.transpose(0, 1), gradient, ends) if ctx.needs_input_grad[1] else None
    return for_left, for_right, None


def _like_if(wanted: bool, tensor: Any, source: Any) -> Any:
    """Space for a gradient, or an empty tensor where none is asked for."""
    return torch.empty_like(tensor) if wanted else source.new_empty((0,))
