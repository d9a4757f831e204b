"""Makes torch take, on fake CPU tensors, the kernels that it takes on CUDA devices.

A CPU build of torch can hold fake CUDA tensors but not differentiate them, so captures run on fake CPU
tensors, and the few functions that choose their kernel by device are redirected: attention to the flash or
the memory-efficient kernel, dropout and RMS norm to one kernel, recurrent layers to one library call,
grouped products in any type, and autocast's list of functions that run in FP32.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from predictor.features.torch_capture.device_ops import operators

_functional = torch.nn.functional
_variable = torch._C._VariableFunctions
# aten/src/ATen/autocast_mode.h: fp32 and fp32_set_opt_dtype, by the names that reach a function mode.
_WIDE = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__
softplus layer_norm native_layer_norm group_norm norm nuclear_norm cosine_similarity
poisson_nll_loss cosine_embedding_loss nll_loss nll_loss_nd nll_loss2d hinge_embedding_loss kl_div
l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
cross_entropy_loss dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum
linalg_vector_norm linalg_matrix_norm sum
"""
_WIDE_NAMES = frozenset(_WIDE.split())
_HALVES = (torch.float16, torch.bfloat16)
# sdp_utils.cpp: the flash kernel takes heads up to this width.
_FLASH_WIDTH = 256
# Fused kernels take (batch, heads, length, width) only.
_FUSED_RANK = 4


class CudaChoices(TorchFunctionMode):  # type: ignore[misc]
    """Active while the passes of a capture run. `autocast`: apply CUDA's FP32 list."""

    def __init__(self, *, autocast: bool) -> None:
        super().__init__()
        self._autocast = autocast

    def __torch_function__(
        self, func: Any, types_: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Redirects what is in the table; lets functions written in Python run with this mode on."""
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is not None:
            with self:
                found = handler(*args, **kwargs)
            if found is not NotImplemented:
                return found
        if self._autocast and getattr(func, "__name__", "") in _WIDE_NAMES:
            args, kwargs = torch.utils._pytree.tree_map(_widened, (args, kwargs))
        if func in _SEEN_THROUGH:
            with self:
                return _body(func)(*args, **kwargs)
        return func(*args, **kwargs)


def _widened(item: Any) -> Any:
    if isinstance(item, torch.Tensor) and item.dtype in _HALVES:
        return item.to(torch.float32)
    return item


# Functions written in Python that call what is redirected; checkpointed layers run again inside backward.
_SEEN_THROUGH = frozenset(
    {
        _functional.dropout,
        _functional.multi_head_attention_forward,
        torch.autograd.backward,
        torch.Tensor.backward,
    }
)
_BODIES: dict[Any, Callable[..., Any]] = {}


def _body(func: types.FunctionType) -> Callable[..., Any]:
    """`func` without its own dispatch to function modes, so that the functions it calls are seen."""
    found = _BODIES.get(func)
    if found is None:
        names = {
            name: (lambda *_: False) for name in func.__globals__ if name.startswith("has_torch_function")
        }
        found = types.FunctionType(
            func.__code__, {**func.__globals__, **names}, func.__name__, func.__defaults__, func.__closure__
        )
        found.__kwdefaults__ = func.__kwdefaults__
        _BODIES[func] = found
    return found


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """The kernel that sdp_utils.cpp prefers for these operands: flash, memory-efficient, or none fused."""
    query, key, value, attn_mask = (_as_autocast(item) for item in (query, key, value, attn_mask))
    tensors = (query, key, value)
    same_width = query.shape[-1] == value.shape[-1]
    half = all(item.dtype in _HALVES for item in tensors)
    images = all(item.dim() == _FUSED_RANK for item in tensors)
    grouped = images and not query.shape[1] == key.shape[1] == value.shape[1]
    if images and half and attn_mask is None and same_width and query.shape[-1] <= _FLASH_WIDTH:
        # Narrow heads are padded to a multiple of 8 in front of the kernel.
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if grouped or not images:
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    bias = _bias(attn_mask, query, key)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]


def _as_autocast(item: Any) -> Any:
    if item is not None and torch.is_autocast_enabled("cpu") and item.dtype == torch.float32:
        return item.to(torch.get_autocast_dtype("cpu"))
    return item


def _bias(mask: Any, query: Any, key: Any) -> Any:
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=query.dtype)
        mask = bias.masked_fill_(mask.logical_not(), float("-inf"))
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _dropout(input: Any, p: float = 0.5, train: bool = True) -> Any:
    if not train or p == 0 or p == 1:
        return NotImplemented
    return torch.native_dropout(input, p, True)[0]


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return operators().rms_norm(input, weight, len(normalized_shape))[0]


def _grouped_mm(left: Any, right: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Experts: rows by a matrix of their group. BF16 and unusual forms keep torch's own path."""
    rows_by_matrices = offs is not None and (left.dim(), right.dim()) == (2, 3)
    if left.dtype == torch.bfloat16 or not rows_by_matrices or bias is not None or out_dtype is not None:
        return NotImplemented
    return operators().grouped_mm(left, right, offs)


def _recurrent(cell: str) -> Callable[..., Any]:
    """torch.lstm and relatives; packed sequences keep torch's own path."""

    def run(
        input: Any,
        states: Any,
        weights: Any,
        has_biases: Any,
        layers: Any,
        dropout: Any,
        train: Any,
        bidirectional: Any,
        batch_first: Any = None,
    ) -> Any:
        if batch_first is None or not isinstance(has_biases, bool):
            return NotImplemented
        directions = 2 if bidirectional else 1
        state = states[0] if cell == "lstm" else states
        hidden, width = weights[1].shape[0] // _GATE_COUNTS[cell], state.shape[-1]
        steps, batch = (1, 0) if batch_first else (0, 1)
        input, weights = _as_autocast(input), [_as_autocast(weight) for weight in weights]
        out, last, cells, _ = operators().rnn(
            input,
            list(weights),
            cell,
            batch_first,
            layers,
            directions,
            hidden,
            width,
            input.shape[batch],
            input.shape[steps],
        )
        return (out, last, cells) if cell == "lstm" else (out, last)

    return run


_GATE_COUNTS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}

_HANDLERS: dict[Any, Callable[..., Any]] = {
    torch._C._nn.scaled_dot_product_attention: _attention,
    _functional.rms_norm: _rms_norm,
    torch.rms_norm: _rms_norm,
    _variable.dropout: _dropout,
    # Before torch 2.10 only the second, before 2.8 neither.
    getattr(_functional, "grouped_mm", None): _grouped_mm,
    getattr(torch, "_grouped_mm", None): _grouped_mm,
    **{getattr(_variable, cell): _recurrent(cell) for cell in _GATE_COUNTS},
}
