"""Reductions, softmax, losses, scans and sorting."""

from __future__ import annotations

from dataclasses import replace

from predictor.features.programs.work import Elements, Family, OpWork, Rows
from predictor.features.torch_capture.call_view import (
    ATEN_RULES,
    CallView,
    elementwise,
    forward,
    hidden_copies,
    vector_work,
)
from predictor.features.torch_capture.calls import Tensor

# Kind and FLOPs per input element.
_REDUCTIONS = {
    "sum": ("sum", 1),
    "nansum": ("sum", 1),
    "mean": ("mean", 1),
    "amax": ("max", 1),
    "amin": ("min", 1),
    "max": ("max", 1),
    "min": ("min", 1),
    "aminmax": ("max", 2),
    "prod": ("prod", 1),
    "any": ("max", 1),
    "all": ("min", 1),
    "argmax": ("arg_max", 1),
    "argmin": ("arg_min", 1),
    "norm": ("l2", 2),
    "linalg_vector_norm": ("l2", 2),
    "logsumexp": ("log_sum_exp", 4),
    "var": ("var", 4),
    "std": ("var", 4),
    "var_mean": ("var", 4),
    "std_mean": ("var", 4),
    "median": ("median", 8),
    "count_nonzero": ("sum", 1),
    "histc": ("sum", 2),
    "bincount": ("sum", 2),
}


@ATEN_RULES.register("aten", *_REDUCTIONS)
def reduce(view: CallView) -> tuple[OpWork, ...]:
    """One kernel over all elements of the input."""
    kind, flops = _REDUCTIONS[view.call.op]
    if view.call.op in ("max", "min") and view.optional("other") is not None:
        return (elementwise(view, kind, 1),)
    return (rows_work(view, Family.REDUCTION, kind, flops),)


def rows_work(view: CallView, family: Family, kind: str, flops_per_element: int) -> OpWork:
    """Rows of the first operand, one per element of the first result."""
    source, out = view.inputs[0], view.output
    rows = Rows(out.elements, max(1, source.elements // max(1, out.elements)))
    work = vector_work(
        family, kind, Elements(0), view.inputs, view.call.outputs, flops=flops_per_element * source.elements
    )
    return replace(work, shape=rows)


def _along(tensor: Tensor, axis: int) -> Rows:
    columns = tensor.shape[axis] if tensor.shape else 1
    return Rows(tensor.elements // max(1, columns), columns)


_SOFTMAX = {"_softmax": "Softmax", "_log_softmax": "LogSoftmax", "_safe_softmax": "Softmax"}


@ATEN_RULES.register("aten", *_SOFTMAX)
def softmax(view: CallView) -> tuple[OpWork, ...]:
    """One kernel over rows."""
    op_type = _SOFTMAX[view.call.op]
    return forward(view, op_type, (view.tensor("self"),), (view.output,), axis=view.integer("dim", -1))


@ATEN_RULES.register("aten", "_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(view: CallView) -> tuple[OpWork, ...]:
    """Reads the gradient and the output."""
    gradient, out = view.tensor("grad_output"), view.tensor("output")
    kind = "log_softmax" if "log" in view.call.op else "softmax"
    rows = _along(out, view.integer("dim", -1))
    work = vector_work(
        Family.SOFTMAX, kind, Elements(0), (gradient, out), view.call.outputs, flops=4 * out.elements
    )
    return (*hidden_copies(view, "Softmax", (gradient,)), replace(work, shape=rows))


_NEGATIVE_LOGS = ("nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d")


@ATEN_RULES.register("aten", *_NEGATIVE_LOGS)
def nll_loss(view: CallView) -> tuple[OpWork, ...]:
    """One number per row is picked and summed."""
    target = view.tensor("target")
    picked = replace(target, storage=-1, dtype=view.tensor("self").dtype)
    work = vector_work(
        Family.REDUCTION, "nll", Elements(0), (picked, target), (view.output,), flops=target.elements
    )
    return (replace(work, shape=Rows(1, target.elements)),)


@ATEN_RULES.register("aten", "nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(view: CallView) -> tuple[OpWork, ...]:
    """Zeros of the scores' shape, and one number per row."""
    target, out = view.tensor("target"), view.output
    work = vector_work(Family.REDUCTION, "nll", Elements(0), (target,), (out,), launches=2)
    rows = Rows(target.elements, max(1, out.elements // max(1, target.elements)))
    return (replace(work, shape=rows),)


# Losses between two tensors: FLOPs per element; with a reduction, a second kernel sums.
_LOSSES = {
    "mse_loss": 2,
    "smooth_l1_loss": 4,
    "huber_loss": 4,
    "binary_cross_entropy": 6,
    "soft_margin_loss": 4,
    "multi_margin_loss": 4,
    "multilabel_margin_loss_forward": 4,
}
# Its gradient is spelled with other operators.
_WITH_LOGITS = 8


@ATEN_RULES.register("aten", *_LOSSES, "binary_cross_entropy_with_logits")
def loss(view: CallView) -> tuple[OpWork, ...]:
    """A pointwise kernel, then a sum unless every element is returned."""
    data, out = view.tensor("self"), view.output
    full = replace(data, storage=-1)
    flops = _LOSSES.get(view.call.op, _WITH_LOGITS)
    if out.elements == data.elements and out.shape:
        return (elementwise(view, "loss", flops),)
    total = vector_work(Family.REDUCTION, "mean", Elements(0), (full,), (out,), flops=data.elements)
    return (
        elementwise(view, "loss", flops, writes=(full,)),
        replace(total, shape=Rows(1, data.elements)),
    )


@ATEN_RULES.register("aten", *(f"{name.removesuffix('_forward')}_backward" for name in _LOSSES))
def loss_backward(view: CallView) -> tuple[OpWork, ...]:
    """One kernel from both operands."""
    return (elementwise(view, "loss", 4),)


_SCANS = ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")


@ATEN_RULES.register("aten", *_SCANS)
def scan(view: CallView) -> tuple[OpWork, ...]:
    """One pass along a dimension."""
    source = view.inputs[0]
    work = vector_work(
        Family.REDUCTION, "scan", Elements(0), (source,), view.call.outputs, flops=source.elements
    )
    return (replace(work, shape=_along(source, view.integer("dim", -1))),)


@ATEN_RULES.register("aten", "topk", "kthvalue", "mode")
def top_k(view: CallView) -> tuple[OpWork, ...]:
    """A selection pass over each row."""
    source = view.inputs[0]
    work = vector_work(
        Family.REDUCTION, "top_k", Elements(0), (source,), view.call.outputs, flops=source.elements
    )
    return (replace(work, shape=_along(source, view.integer("dim", -1))),)


@ATEN_RULES.register("aten", "sort", "argsort", "msort")
def sort(view: CallView) -> tuple[OpWork, ...]:
    """A radix sort: about four passes over keys and values."""
    source = view.inputs[0]
    passes = vector_work(
        Family.REDUCTION,
        "sort",
        Elements(source.elements),
        (source,),
        view.call.outputs,
        flops=source.elements,
        launches=4,
    )
    return (passes,)


@ATEN_RULES.register("aten", "multinomial")
def multinomial(view: CallView) -> tuple[OpWork, ...]:
    """A scan over each distribution, then one search per sample."""
    return (rows_work(view, Family.REDUCTION, "scan", 2),)


@ATEN_RULES.register("aten", "_cdist_forward", "_pdist_forward")
def distances(view: CallView) -> tuple[OpWork, ...]:
    """Three operations per pair and coordinate."""
    width = view.inputs[0].shape[-1]
    return (elementwise(view, "cdist", 3 * width),)


@ATEN_RULES.register("aten", "_cdist_backward", "_pdist_backward")
def distances_backward(view: CallView) -> tuple[OpWork, ...]:
    """Every pair again."""
    pairs = view.inputs[0].elements
    width = view.output.shape[-1] if view.output.shape else 1
    work = elementwise(view, "cdist", 0)
    return (replace(work, vector_flops=4 * pairs * width),)
