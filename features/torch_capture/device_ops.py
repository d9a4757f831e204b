"""Operators that stand for one library call on a device where torch's CPU path runs many.

Their work rules are in `predictor.features.torch_capture.rules.recurrent` and `.norms`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@cache
def operators() -> Any:
    """`torch.ops.perfcast`, registered at the first use."""
    _register_rnn()
    _register_rms_norm()
    return torch.ops.perfcast


def _register_rnn() -> None:
    @torch.library.custom_op("perfcast::rnn", mutates_args=())
    def rnn(
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
        raise NotImplementedError("perfcast::rnn exists on fake tensors only")

    @rnn.register_fake
    def _(
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
        out = data.new_empty((*data.shape[:-1], directions * width))
        last = data.new_empty((layers * directions, batch, width))
        cells = data.new_empty((layers * directions, batch, hidden) if cell == "lstm" else (0,))
        # Gates of every step and what lies between layers, kept for the gradient.
        reserve = data.new_empty((layers, steps, batch, directions * (_GATES[cell] + 1) * hidden))
        return out, last, cells, reserve

    @torch.library.custom_op("perfcast::rnn_backward", mutates_args=())
    def rnn_backward(
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
        raise NotImplementedError("perfcast::rnn_backward exists on fake tensors only")

    @rnn_backward.register_fake
    def _(
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
        data_gradient = torch.empty_like(data) if wants_data else data.new_empty((0,))
        return [data_gradient, *(torch.empty_like(weight) for weight in weights)]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        data, weights, *ctx.options = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(data, output[0], output[3], *weights)

    def backward(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, ...]:
        data, out, reserve, *weights = ctx.saved_tensors
        if gradient is None:
            # Only the last state is used: its gradient enters the same call.
            gradient = torch.zeros_like(out)
        cell, batch_first, layers, directions, hidden, *_ = ctx.options
        found = torch.ops.perfcast.rnn_backward(
            gradient,
            data,
            out,
            reserve,
            weights,
            cell,
            batch_first,
            layers,
            directions,
            hidden,
            ctx.needs_input_grad[0],
        )
        data_gradient = found[0] if ctx.needs_input_grad[0] else None
        return (data_gradient, list(found[1:]), *(None for _ in ctx.options))

    rnn.register_autograd(backward, setup_context=setup)


def _register_rms_norm() -> None:
    @torch.library.custom_op("perfcast::rms_norm", mutates_args=())
    def rms_norm(
        data: torch.Tensor, scale: torch.Tensor | None, dimensions: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError("perfcast::rms_norm exists on fake tensors only")

    @rms_norm.register_fake
    def _(data: Any, scale: Any, dimensions: int) -> tuple[Any, Any]:
        rows = data.shape[: data.dim() - dimensions]
        return torch.empty_like(data, memory_format=torch.contiguous_format), data.new_empty(
            (*rows, *(1 for _ in range(dimensions))), dtype=torch.float32
        )

    @torch.library.custom_op("perfcast::rms_norm_backward", mutates_args=())
    def rms_norm_backward(
        gradient: torch.Tensor,
        data: torch.Tensor,
        deviation: torch.Tensor,
        scale: torch.Tensor | None,
        dimensions: int,
        wants_data: bool,
        wants_scale: bool,
    ) -> list[torch.Tensor]:
        raise NotImplementedError("perfcast::rms_norm_backward exists on fake tensors only")

    @rms_norm_backward.register_fake
    def _(
        gradient: Any,
        data: Any,
        deviation: Any,
        scale: Any,
        dimensions: int,
        wants_data: bool,
        wants_scale: bool,
    ) -> list[Any]:
        return [
            torch.empty_like(data) if wants_data else data.new_empty((0,)),
            torch.empty_like(scale) if wants_scale else data.new_empty((0,)),
        ]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        data, scale, ctx.dimensions = inputs
        ctx.set_materialize_grads(False)
        ctx.has_scale = scale is not None
        ctx.save_for_backward(data, output[1], *(() if scale is None else (scale,)))

    def backward(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, ...]:
        data, deviation, *scale = ctx.saved_tensors
        wants_data, wants_scale = ctx.needs_input_grad[0], ctx.has_scale and ctx.needs_input_grad[1]
        found = torch.ops.perfcast.rms_norm_backward(
            gradient,
            data,
            deviation,
            scale[0] if scale else None,
            ctx.dimensions,
            wants_data,
            wants_scale,
        )
        return found[0] if wants_data else None, found[1] if wants_scale else None, None

    rms_norm.register_autograd(backward, setup_context=setup)
