"""Convolutions: Conv, ConvTranspose and the integer forms, any number of spatial dimensions.

FLOPs 2 * N * C_out * prod(out) * C_in/groups * prod(kernel) (for the transposed form with in and out
exchanged); the data gradient and the weight gradient ask for the same number. Padding only matters through
the output's shape. A bias is a second, elementwise kernel, as frameworks run it on GPUs, unless
`perfcast_fused_bias` = 1 says otherwise or torch's own kernel for depthwise images runs, which adds it.

Tensor cores read images channels-last. Where they lie otherwise cuDNN copies both operands into that order
and the result back (kernels `nchwToNhwcKernel` and `nhwcToNchwKernel` in profiles), in each pass anew.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from predictor.errors import InvalidGraph
from predictor.features.dtype import Compute
from predictor.features.graph import Value
from predictor.features.ops.parts import pointwise, size_of, sum_to, weight_bytes
from predictor.features.programs.op_view import OpView, element_bits
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import (
    IMAGE_CONVERSION,
    Convolution,
    Elements,
    Family,
    OpWork,
    Phase,
)

FORWARD = "forward"
DATA_GRADIENT = "data_gradient"
WEIGHT_GRADIENT = "weight_gradient"


def geometry(op: OpView, data: Value, weight: Value, out: Value) -> Convolution:
    """Shape facts of the forward convolution."""
    transposed = op.op_type.startswith("ConvTranspose")
    groups = op.integer("group", 1)
    rank = len(data.shape) - 2
    # ONNX's shape inference looks at the spatial sizes only.
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    if groups < 1 or wanted != data.shape[1] or out.shape[1] % groups:
        raise InvalidGraph(
            f"{op.op_type}: a weight of shape {weight.shape} in {groups} groups does not take data of shape "
            f"{data.shape}, {data.shape[1]} channels"
        )
    return Convolution(
        samples=data.shape[0],
        in_channels=data.shape[1],
        out_channels=out.shape[1],
        groups=groups,
        in_spatial=data.shape[2:],
        out_spatial=out.shape[2:],
        kernel=op.integers("kernel_shape", weight.shape[2:]),
        strides=op.integers("strides", (1,) * rank),
        dilations=op.integers("dilations", (1,) * rank),
        transposed=transposed,
        channels_last=bool(op.integer("perfcast_channels_last")),
    )


def conv_flops(shape: Convolution) -> int:
    """2 per multiply-add of the direct algorithm."""
    points = prod(shape.in_spatial if shape.transposed else shape.out_spatial)
    pairs = shape.in_channels * shape.out_channels // shape.groups
    return 2 * shape.samples * points * pairs * prod(shape.kernel)


def _kind(shape: Convolution) -> str:
    if shape.transposed:
        return "conv_transpose"
    if shape.groups == 1:
        return "conv"
    return "depthwise_conv" if shape.groups == shape.in_channels else "grouped_conv"


def convolve(
    op: OpView,
    shape: Convolution,
    compute: Compute,
    reads: tuple[Value, ...],
    write: Value,
    pass_name: str = FORWARD,
) -> OpWork:
    """The OpWork of one pass."""
    return OpWork(
        family=Family.CONVOLUTION,
        kind=_kind(shape),
        phase=Phase.FORWARD if pass_name == FORWARD else Phase.BACKWARD,
        compute=compute,
        shape=replace(shape, pass_name=pass_name),
        element_bits=element_bits([*reads, write]),
        matrix_flops=conv_flops(shape),
        vector_flops=0,
        read_bytes=size_of(reads),
        write_bytes=write.size_bytes,
        parameter_bytes=weight_bytes(op, reads),
    )


IMAGES_IN_PLACE = "perfcast_images_in_place"
"""Mark of a convolution whose images lie as its kernel reads them."""
_CONVERTED = frozenset({Compute.FP16, Compute.BF16})
"""For TF32 cuDNN also has kernels that read images as they lie: with conversions Lambda's steps fit worse."""
_OPERANDS = 3


def _kernels(op: OpView, shape: Convolution, convolution: OpWork) -> tuple[OpWork, ...]:
    """One pass, behind the copies of its operands that it asks for."""
    return *conversions(op, shape, convolution), convolution


def conversions(op: OpView, shape: Convolution, convolution: OpWork) -> tuple[OpWork, ...]:
    """Copies of the operands of one pass into the order that its kernel reads: one work, or none."""
    lies_right = shape.channels_last or op.integer(IMAGES_IN_PLACE)
    is_one_point = prod(shape.in_spatial) == prod(shape.out_spatial) == 1
    if convolution.compute not in _CONVERTED or lies_right or shape.is_depthwise or is_one_point:
        return ()
    moved = convolution.moved_bytes
    copies = replace(
        convolution,
        family=Family.COPY,
        kind=IMAGE_CONVERSION,
        shape=Elements(8 * moved // convolution.element_bits),
        matrix_flops=0,
        read_bytes=moved,
        write_bytes=moved,
        parameter_bytes=0,
        launch_count=_OPERANDS,
    )
    return (copies,)


def _is_torchs_own(shape: Convolution, compute: Compute) -> bool:
    """Whether torch runs its own depthwise kernel, which takes a bias, and not cuDNN's.

    Rows of images one after another: cuDNN's is used in FP16 alone, for squares of 1, 3 or 5 that are not
    dilated and 32 channels or more (torch, ATen/native/Convolution.cpp, `use_cudnn_depthwise`).
    """
    images = len(shape.kernel) in (2, 3) and not shape.channels_last and not shape.transposed
    if not images or not shape.is_depthwise:
        return False
    is_small = len(shape.kernel) == 2 and shape.kernel[0] == shape.kernel[1] and shape.kernel[0] in (1, 3, 5)
    is_dilated = any(step > 1 for step in shape.dilations)
    return compute is not Compute.FP16 or not is_small or is_dilated or shape.in_channels < 32


@WORK_RULES.register("", "Conv", "ConvTranspose")
def conv(op: OpView) -> tuple[OpWork, ...]:
    """The convolution, and the bias added in place."""
    data, weight, out, bias = op.input(0), op.input(1), op.output(), op.optional(2)
    shape = geometry(op, data, weight, out)
    compute = op.matrix_compute(0, 1)
    works = _kernels(op, shape, convolve(op, shape, compute, (data, weight), out))
    if bias is None or op.integer("perfcast_fused_bias") or _is_torchs_own(shape, compute):
        return works
    return *works, pointwise(op, "bias", 1, reads=(out, bias), writes=(out,))


@BACKWARD_RULES.register("", "Conv", "ConvTranspose")
def conv_backward(op: OpView) -> Backward:
    """Data gradient (not where the input is the batch itself), weight gradient, and the bias's sum.

    One formula serves both gradients: the input is kept even where the weight is frozen.
    """
    data, weight, out = op.input(0), op.input(1), op.output()
    shape, compute = geometry(op, data, weight, out), op.matrix_compute(0, 1)
    works: list[OpWork] = []
    if op.wants_gradient(0):
        gradient = convolve(op, shape, compute, (out, weight), data, DATA_GRADIENT)
        works.extend(_kernels(op, shape, gradient))
    if op.wants_gradient(1):
        gradient = convolve(op, shape, compute, (out, data), weight, WEIGHT_GRADIENT)
        works.extend(_kernels(op, shape, gradient))
    if op.wants_gradient(2):
        works.append(sum_to(op, out, op.input(2)))
    saves = (data.name, weight.name) if op.wants_gradient(0) else (data.name,)
    return Backward(tuple(works), saves, copies_inside=True)


@WORK_RULES.register("", "ConvInteger")
def conv_integer(op: OpView) -> tuple[OpWork, ...]:
    """INT8 convolution with INT32 result."""
    data, weight, out = op.input(0), op.input(1), op.output()
    shape = geometry(op, data, weight, out)
    return (convolve(op, shape, Compute.INT8, (data, weight), out),)


@WORK_RULES.register("", "QLinearConv")
def conv_quantised(op: OpView) -> tuple[OpWork, ...]:
    """INT8 convolution; inputs are (x, scale, zero, w, scale, zero, y scale, y zero[, bias])."""
    data, weight, out = op.input(0), op.input(3), op.output()
    shape = geometry(op, data, weight, out)
    return (convolve(op, shape, Compute.INT8, (data, weight), out),)
