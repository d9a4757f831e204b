"""Normalisations: the forward and backward kernels of `predictor.features.ops.norms` under torch's names."""

from __future__ import annotations

from typing import Any

from predictor.features.programs.work import OpWork
from predictor.features.torch_capture.call_view import (
    ATEN_RULES,
    CallView,
    backward,
    elementwise,
    forward,
    hidden_copies,
)
from predictor.features.torch_capture.calls import Tensor


def _forward(
    view: CallView,
    op_type: str,
    *,
    training: bool | None = None,
    data: str = "input",
    **attributes: Any,
) -> tuple[OpWork, ...]:
    inputs = (view.tensor(data), view.optional("weight"), view.optional("bias"))
    return forward(view, op_type, inputs, (view.output,), training=training, **attributes)


def _backward(
    view: CallView, op_type: str, gradient: str, mask: tuple[bool, ...], **attributes: Any
) -> tuple[OpWork, ...]:
    data, weight = view.tensor("input"), view.optional("weight")
    shift = None
    if len(mask) > 2 and mask[2] and weight is not None:
        # The shift is no argument; its gradient is like that of the scale.
        shift = Tensor(-1, weight.shape, weight.strides, weight.dtype, is_weight=True)
    inputs = (data, weight, shift)
    wanted = [index for index, flag in enumerate(mask) if flag and inputs[index] is not None]
    incoming = view.tensor(gradient)
    copies = hidden_copies(view, op_type, (incoming,))
    return (*copies, *backward(view, op_type, inputs, (incoming,), wanted, **attributes))


def _mask(view: CallView) -> tuple[bool, ...]:
    mask = view.argument("output_mask")
    return tuple(bool(flag) for flag in mask) if isinstance(mask, tuple) else (True, True, True)


@ATEN_RULES.register("aten", "native_layer_norm")
def layer_norm(view: CallView) -> tuple[OpWork, ...]:
    """Rows over the last dimensions."""
    return _forward(view, "LayerNormalization", axis=-len(view.integers("normalized_shape")))


@ATEN_RULES.register("aten", "native_layer_norm_backward")
def layer_norm_backward(view: CallView) -> tuple[OpWork, ...]:
    """Scale and shift, then the input."""
    axis = -len(view.integers("normalized_shape"))
    return _backward(view, "LayerNormalization", "grad_out", _mask(view), axis=axis)


@ATEN_RULES.register("perfcast", "rms_norm")
def rms_norm(view: CallView) -> tuple[OpWork, ...]:
    """Rows over the last dimensions."""
    inputs = (view.tensor("data"), view.optional("scale"))
    return forward(view, "RMSNormalization", inputs, (view.output,), axis=-view.integer("dimensions", 1))


@ATEN_RULES.register("perfcast", "rms_norm_backward")
def rms_norm_backward(view: CallView) -> tuple[OpWork, ...]:
    """The scale, then the input."""
    gradient, scale = view.tensor("gradient"), view.optional("scale")
    wanted = [0] if view.integer("wants_data") else []
    wanted += [1] if scale is not None and view.integer("wants_scale") else []
    copies = hidden_copies(view, "RMSNormalization", (gradient,))
    works = backward(
        view,
        "RMSNormalization",
        (view.tensor("data"), scale),
        (gradient,),
        wanted,
        axis=-view.integer("dimensions", 1),
    )
    return (*copies, *works)


@ATEN_RULES.register("aten", "native_group_norm")
def group_norm(view: CallView) -> tuple[OpWork, ...]:
    """Statistics per sample and group."""
    return _forward(view, "GroupNormalization", num_groups=view.integer("group", 1))


@ATEN_RULES.register("aten", "native_group_norm_backward")
def group_norm_backward(view: CallView) -> tuple[OpWork, ...]:
    """Sums per group and channel, then the input."""
    return _backward(view, "GroupNormalization", "grad_out", _mask(view), num_groups=view.integer("group", 1))


_BATCH_NORMS = (
    "native_batch_norm",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_no_update",
)


@ATEN_RULES.register("aten", *_BATCH_NORMS)
def batch_norm(view: CallView) -> tuple[OpWork, ...]:
    """Statistics over the batch where they are taken, else one scale and shift per channel."""
    name = view.call.op
    taken = bool(view.integer("training")) or name == "_batch_norm_with_update"
    if name in ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"):
        taken = False
    scaled = (view.tensor("input"), view.optional("weight"), view.optional("bias"))
    statistics = (view.optional("running_mean"), view.optional("running_var"))
    inputs = scaled if taken else (*scaled, *statistics)
    return forward(view, "BatchNormalization", inputs, (view.output,), training=taken)


@ATEN_RULES.register(
    "aten",
    "native_batch_norm_backward",
    "cudnn_batch_norm_backward",
    "miopen_batch_norm_backward",
    "batch_norm_backward",
)
def batch_norm_backward(view: CallView) -> tuple[OpWork, ...]:
    """Sums per channel, then the input's gradient."""
    gradient = "grad_out" if view.optional("grad_out") else "grad_output"
    return _backward(view, "BatchNormalization", gradient, _mask(view))


@ATEN_RULES.register("aten", "_weight_norm_interface", "_weight_norm_interface_backward")
def weight_norm(view: CallView) -> tuple[OpWork, ...]:
    """Length of every row, and the row over it."""
    return (elementwise(view, "weight_norm", 4),)
