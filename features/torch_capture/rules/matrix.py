"""Products and convolutions."""

from __future__ import annotations

from typing import Any

from predictor.features.dtype import Compute
from predictor.features.ops.experts import touched_groups
from predictor.features.programs.op_view import element_bits, vector_compute
from predictor.features.programs.work import Contraction, Family, OpWork, Phase
from predictor.features.torch_capture.call_view import (
    ATEN_RULES,
    CallView,
    backward,
    elementwise,
    forward,
    hidden_copies,
    stored_bytes,
)
from predictor.features.torch_capture.calls import Tensor
from predictor.types import Precision

# Operands of each product, by argument names: (left, right, added).
_PRODUCTS: dict[str, tuple[str, str, str]] = {
    "mm": ("self", "mat2", ""),
    "addmm": ("mat1", "mat2", "self"),
    "_addmm_activation": ("mat1", "mat2", "self"),
    "bmm": ("self", "mat2", ""),
    "baddbmm": ("batch1", "batch2", "self"),
    "mv": ("self", "vec", ""),
    "addmv": ("mat", "vec", "self"),
    "dot": ("self", "tensor", ""),
    "vdot": ("self", "other", ""),
    "_scaled_mm": ("self", "mat2", "bias"),
    "_int_mm": ("self", "mat2", ""),
}


@ATEN_RULES.register("aten", *_PRODUCTS)
def product(view: CallView) -> tuple[OpWork, ...]:
    """2 m n k per product; what is added costs one addition per element of the result.

    A product without a batch is one layer's: forward, or backward towards data (it reads a weight) or towards
    the weight (it does not).
    """
    left_name, right_name, added_name = _PRODUCTS[view.call.op]
    left, right = view.tensor(left_name), view.tensor(right_name)
    added = view.optional(added_name) if added_name else None
    if view.argument("beta") == 0:
        added = None
    out = view.output
    shape = _contraction(left, right)
    reads = tuple(item for item in (left, right, added) if item is not None)
    batched = len(left.shape) == 3
    work = OpWork(
        family=Family.BATCHED_MATMUL if batched else Family.MATMUL,
        kind="bmm" if batched else _layer_kind(view, left, right),
        phase=view.call.phase,
        compute=_compute(view, left, right),
        shape=shape,
        element_bits=element_bits([item.value for item in (*reads, out)]),
        matrix_flops=2 * shape.batch * shape.m * shape.n * shape.k,
        vector_flops=out.elements if added is not None else 0,
        read_bytes=stored_bytes(reads),
        write_bytes=stored_bytes((out,)),
        parameter_bytes=stored_bytes([item for item in reads if item.is_weight]),
    )
    return (*hidden_copies(view, "MatMul", (left, right)), work)


@ATEN_RULES.register("aten", "_grouped_mm")
def torch_grouped_product(view: CallView) -> tuple[OpWork, ...]:
    """torch's own."""
    return _grouped_product(view, view.tensor("self"), view.tensor("mat2"))


@ATEN_RULES.register("perfcast", "grouped_mm")
def grouped_product(view: CallView) -> tuple[OpWork, ...]:
    """What stands for it in types of which torch's own knows no shape."""
    return _grouped_product(view, view.tensor("left"), view.tensor("right"))


def _grouped_product(view: CallView, left: Tensor, right: Tensor) -> tuple[OpWork, ...]:
    """Rows sorted by group (experts), each group with a matrix of its own; rows choose groups by chance.

    (T x k)(G x k x n) multiplies T rows; (m x T)(T x n) sums T rows, into one result per group.
    """
    out = view.output
    groups = next((item.shape[0] for item in (left, right, out) if len(item.shape) == 3), 1)
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    kind, unread = "bmm", 0
    # Of the three extents, the one that the groups share out.
    if len(out.shape) == 3:
        shape = Contraction(groups, m, n, -(-k // groups))
    elif len(left.shape) == 2:
        active = touched_groups(groups, m)
        shape = Contraction(active, -(-m // active), n, k)
        kind, unread = "grouped_matmul", stored_bytes((right,)) * (groups - active) // groups
    else:
        shape = Contraction(groups, m, -(-n // groups), k)
    return (
        OpWork(
            family=Family.BATCHED_MATMUL,
            kind=kind,
            phase=view.call.phase,
            compute=_compute(view, left, right),
            shape=shape,
            element_bits=element_bits([left.value, right.value, out.value]),
            matrix_flops=2 * m * k * n,
            vector_flops=0,
            read_bytes=stored_bytes((left, right)) - unread,
            write_bytes=stored_bytes((out,)),
            parameter_bytes=max(0, stored_bytes([x for x in (left, right) if x.is_weight]) - unread),
        ),
    )


def _contraction(left: Tensor, right: Tensor) -> Contraction:
    batch = left.shape[0] if len(left.shape) == 3 else 1
    m = left.shape[-2] if len(left.shape) > 1 else 1
    n = right.shape[-1] if len(right.shape) > 1 else 1
    return Contraction(batch, m, n, left.shape[-1])


def _layer_kind(view: CallView, left: Tensor, right: Tensor) -> str:
    if view.call.phase is Phase.FORWARD:
        return "linear"
    return "linear_data_gradient" if left.is_weight or right.is_weight else "linear_weight_gradient"


def _compute(view: CallView, *operands: Tensor) -> Compute:
    compute = vector_compute([item.value for item in operands])
    return Compute.TF32 if compute is Compute.FP32 and view.precision is Precision.TF32 else compute


def _convolution_attributes(view: CallView) -> dict[str, Any]:
    weight = view.tensor("weight")
    rank = len(weight.shape) - 2

    def spread(name: str, default: int) -> tuple[int, ...]:
        found = view.integers(name) or (default,)
        return found * rank if len(found) == 1 else found

    return {
        "kernel_shape": weight.shape[2:],
        "strides": spread("stride", 1),
        "dilations": spread("dilation", 1),
        "group": view.integer("groups", 1),
    }


def _convolution_type(view: CallView) -> str:
    return "ConvTranspose" if view.integer("transposed") else "Conv"


@ATEN_RULES.register(
    "aten",
    "convolution",
    "_convolution",
    "convolution_overrideable",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "conv1d",
    "conv2d",
    "conv3d",
)
def convolution(view: CallView) -> tuple[OpWork, ...]:
    """The convolution, and the bias as a second kernel."""
    op_type = "ConvTranspose" if view.call.op.endswith("_transpose") else _convolution_type(view)
    data = view.optional("input") or view.tensor("self")
    inputs = (data, view.tensor("weight"), view.optional("bias"))
    return forward(view, op_type, inputs, (view.output,), **_convolution_attributes(view))


@ATEN_RULES.register("aten", "convolution_backward", "convolution_backward_overrideable")
def convolution_backward(view: CallView) -> tuple[OpWork, ...]:
    """The gradients that the mask asks for."""
    gradient, data, weight = view.tensor("grad_output"), view.tensor("input"), view.tensor("weight")
    mask = view.argument("output_mask")
    wanted = [index for index, flag in enumerate(mask) if flag] if isinstance(mask, tuple) else [0, 1]
    op_type = _convolution_type(view)
    inputs: list[Tensor | None] = [data, weight]
    if 2 in wanted:
        channels = gradient.shape[1]
        # The bias itself is no argument; its gradient has one number per channel.
        inputs.append(Tensor(-1, (channels,), (1,), weight.dtype, is_weight=True))
    copies = hidden_copies(view, op_type, (gradient,))
    works = backward(view, op_type, inputs, (gradient,), wanted, **_convolution_attributes(view))
    return (*copies, *works)


@ATEN_RULES.register("aten", "im2col", "col2im")
def unfold(view: CallView) -> tuple[OpWork, ...]:
    """Windows laid side by side, or added back."""
    source = view.tensor("self")
    added = source.elements // max(1, view.output.elements) if view.call.op == "col2im" else 0
    return (elementwise(view, view.call.op, added, reads=(source,)),)
