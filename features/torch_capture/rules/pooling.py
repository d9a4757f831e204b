"""Pooling and resampling."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from predictor.features.programs.work import Elements, Family, OpWork
from predictor.features.torch_capture.call_view import (
    ATEN_RULES,
    CallView,
    backward,
    forward,
    hidden_copies,
    vector_work,
)
from predictor.features.torch_capture.calls import Tensor

_MAX = ("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d", "max_pool2d", "max_pool3d")
_AVERAGE = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
_ADAPTIVE = {
    "_adaptive_avg_pool2d": "AveragePool",
    "_adaptive_avg_pool3d": "AveragePool",
    "adaptive_max_pool2d": "MaxPool",
    "adaptive_max_pool3d": "MaxPool",
}


def _images(tensor: Tensor, rank: int) -> Tensor:
    """A single sample without its batch dimension, with one."""
    if len(tensor.shape) >= rank + 2:
        return tensor
    return replace(tensor, shape=(1, *tensor.shape), strides=(tensor.elements, *tensor.strides))


def _kernel(view: CallView, rank: int) -> tuple[int, ...]:
    found = view.integers("kernel_size")
    return found * rank if len(found) == 1 else found


def _rank(view: CallView) -> int:
    return int(next(char for char in view.call.op if char.isdigit()))


@ATEN_RULES.register("aten", *_MAX, *_AVERAGE)
def pool(view: CallView) -> tuple[OpWork, ...]:
    """One kernel over windows; the positions of the maxima are written where they are asked for."""
    op_type = "MaxPool" if view.call.op.startswith("max") else "AveragePool"
    rank = _rank(view)
    data, out = _images(view.tensor("self"), rank), _images(view.output, rank)
    training = len(view.call.outputs) > 1
    return forward(view, op_type, (data,), (out,), training=training, kernel_shape=_kernel(view, rank))


@ATEN_RULES.register("aten", *(f"{name}_backward" for name in (*_MAX[:2], *_AVERAGE[1:])))
def pool_backward(view: CallView) -> tuple[OpWork, ...]:
    """Scatters or spreads the gradient."""
    op_type = "MaxPool" if view.call.op.startswith("max") else "AveragePool"
    rank = _rank(view)
    data, gradient = _images(view.tensor("self"), rank), _images(view.tensor("grad_output"), rank)
    copies = hidden_copies(view, op_type, (gradient,))
    kernel = _kernel(view, rank)
    return (*copies, *backward(view, op_type, (data,), (gradient,), (0,), kernel_shape=kernel))


def _adaptive_kernel(data: Tensor, out: Tensor, rank: int) -> tuple[int, ...]:
    """Windows that cover the input evenly."""
    sizes = zip(data.shape[-rank:], out.shape[-rank:], strict=True)
    return tuple(max(1, -(-before // max(1, after))) for before, after in sizes)


@ATEN_RULES.register("aten", *_ADAPTIVE)
def adaptive_pool(view: CallView) -> tuple[OpWork, ...]:
    """As many windows as outputs."""
    rank, data, out = _rank(view), view.tensor("self"), view.output
    kernel = _adaptive_kernel(data, out, rank)
    training = len(view.call.outputs) > 1
    return forward(view, _ADAPTIVE[view.call.op], (data,), (out,), training=training, kernel_shape=kernel)


@ATEN_RULES.register("aten", *(f"{name}_backward" for name in _ADAPTIVE))
def adaptive_pool_backward(view: CallView) -> tuple[OpWork, ...]:
    """Spreads or scatters the gradient."""
    rank, data, gradient = _rank(view), view.tensor("self"), view.tensor("grad_output")
    op_type = _ADAPTIVE[view.call.op.removesuffix("_backward")]
    kernel = _adaptive_kernel(data, gradient, rank)
    return backward(view, op_type, (data,), (gradient,), (0,), kernel_shape=kernel)


_UPSAMPLES = {
    **{f"upsample_nearest{rank}d": "nearest" for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": "nearest" for rank in (1, 2, 3)},
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
    "_upsample_bilinear2d_aa": "linear",
    "_upsample_bicubic2d_aa": "cubic",
}


@ATEN_RULES.register("aten", *_UPSAMPLES)
def upsample(view: CallView) -> tuple[OpWork, ...]:
    """One kernel."""
    data = view.optional("self") or view.tensor("input")
    return forward(view, "Resize", (data,), (view.output,), mode=_UPSAMPLES[view.call.op])


@ATEN_RULES.register("aten", *(f"{name}_backward" for name in _UPSAMPLES))
def upsample_backward(view: CallView) -> tuple[OpWork, ...]:
    """Collects the gradient of every tap."""
    mode = _UPSAMPLES[view.call.op.removesuffix("_backward")]
    return backward(view, "Resize", (view.output,), (view.tensor("grad_output"),), (0,), mode=mode)


@ATEN_RULES.register("aten", "grid_sampler_2d", "grid_sampler_3d", "cudnn_grid_sampler")
def grid_sample(view: CallView) -> tuple[OpWork, ...]:
    """Taps at data-dependent places."""
    data = view.optional("input") or view.tensor("self")
    mode = ("linear", "nearest", "cubic")[view.integer("interpolation_mode")]
    return forward(view, "GridSample", (data, view.tensor("grid")), (view.output,), mode=mode)


@ATEN_RULES.register(
    "aten", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "cudnn_grid_sampler_backward"
)
def grid_sample_backward(view: CallView) -> tuple[OpWork, ...]:
    """Zeros, then scattered additions."""
    data, gradient = view.optional("input") or view.tensor("self"), view.tensor("grad_output")
    mode = ("linear", "nearest", "cubic")[view.integer("interpolation_mode")]
    inputs = (data, view.tensor("grid"))
    return backward(view, "GridSample", inputs, (gradient,), (0, 1), mode=mode)


@ATEN_RULES.register("aten", "max_unpool2d", "max_unpool3d")
def max_unpool(view: CallView) -> tuple[OpWork, ...]:
    """Zeros, then every input element at its place."""
    inputs = (view.tensor("self"), view.tensor("indices"))
    return forward(view, "MaxUnpool", inputs, (view.output,))


@ATEN_RULES.register("torchvision", "roi_align", "roi_pool", "ps_roi_align")
def roi_align(view: CallView) -> tuple[OpWork, ...]:
    """Four taps per sample."""
    inputs = (view.tensor("input"), view.tensor("rois"))
    ratio = max(1, view.integer("sampling_ratio", 1))
    return forward(view, "RoiAlign", inputs, (view.output,), sampling_ratio=ratio)


@ATEN_RULES.register("torchvision", "deform_conv2d")
def deformable_convolution(view: CallView) -> tuple[OpWork, ...]:
    """Samples four taps per kernel element, then multiplies."""
    weight = view.tensor("weight")
    gathered = view.output.elements * prod(weight.shape[1:])
    sampled = vector_work(
        Family.GATHER, "grid_sample", Elements(gathered), view.inputs, view.call.outputs, flops=8 * gathered
    )
    product = forward(
        view,
        "Conv",
        (view.tensor("input"), weight, None),
        (view.output,),
        kernel_shape=weight.shape[2:],
        group=view.integer("groups", 1),
    )
    return (sampled, *product)
