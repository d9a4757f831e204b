"""Fused scaled dot-product attention."""

from __future__ import annotations

from predictor.features.programs.work import OpWork
from predictor.features.torch_capture.call_view import ATEN_RULES, CallView, backward, forward
from predictor.features.torch_capture.calls import Tensor

_KERNELS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
# The CPU's gradient is named after the whole forward name.
_BACKWARD = tuple(f"_scaled_dot_product_{kernel}_backward" for kernel in _KERNELS)


@ATEN_RULES.register("aten", *(f"_scaled_dot_product_{kernel}" for kernel in _KERNELS))
def attention(view: CallView) -> tuple[OpWork, ...]:
    """One kernel; a bias is read as well."""
    causal = view.integer("is_causal")
    return forward(view, "Attention", _operands(view), (view.output,), domain="perfcast", causal=causal)


@ATEN_RULES.register("aten", *_BACKWARD)
def attention_backward(view: CallView) -> tuple[OpWork, ...]:
    """Recomputes the scores."""
    gradient = view.optional("grad_out") or view.tensor("grad_out_")
    causal = view.integer("is_causal")
    return backward(
        view, "Attention", _operands(view), (gradient,), (0, 1, 2), domain="perfcast", causal=causal
    )


def _operands(view: CallView) -> tuple[Tensor | None, ...]:
    bias = view.optional("attn_bias") or view.optional("attn_mask")
    return view.tensor("query"), view.tensor("key"), view.tensor("value"), bias
