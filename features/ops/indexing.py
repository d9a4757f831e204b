"""Indexing by tensors: GatherElements, GatherND, Scatter, OneHot, NonZero, non-maximum suppression."""

from __future__ import annotations

from predictor.features.graph import Value
from predictor.features.ops.parts import copy, gradient_of, pointwise, scatter_add, work
from predictor.features.programs.op_view import OpView
from predictor.features.programs.rules import BACKWARD_RULES, WORK_RULES, Backward
from predictor.features.programs.work import Elements, Family, OpWork, Phase, Rows


@WORK_RULES.register("", "GatherElements", "GatherND")
def gather_by(op: OpView) -> tuple[OpWork, ...]:
    """Reads one element per output element, and the indices."""
    out = op.output()
    picked = Value("picked", out.shape, out.dtype)
    return (
        work(op, Family.GATHER, "gather", Elements(out.elements), reads=(picked, op.input(1)), writes=(out,)),
    )


@BACKWARD_RULES.register("", "GatherElements", "GatherND")
def gather_by_backward(op: OpView) -> Backward:
    """Zeros, then a scattered addition."""
    data, indices = op.input(0), op.input(1)
    fill = pointwise(op, "fill", 0, reads=(), writes=(data,), phase=Phase.BACKWARD)
    return Backward((fill, scatter_add(op, indices)), (indices.name,))


@WORK_RULES.register("", "Scatter", "ScatterElements", "ScatterND")
def scatter(op: OpView) -> tuple[OpWork, ...]:
    """A copy of the data, then the updates written over it.

    Indices that the inputs do not influence are an assignment to a slice, as exporters spell it: in place,
    and nothing is read but the updates.
    """
    data, indices, updates, out = op.input(0), op.input(1), op.input(2), op.output()
    written = Value("written", updates.shape, data.dtype)
    if _is_slice(op):
        return (copy(op, "slice", reads=(updates,), writes=(written,)),)
    return (
        copy(op, "copy", reads=(data,), writes=(out,)),
        work(
            op,
            Family.GATHER,
            "scatter",
            Elements(updates.elements),
            reads=(updates, indices),
            writes=(written,),
        ),
    )


@BACKWARD_RULES.register("", "Scatter", "ScatterElements", "ScatterND")
def scatter_backward(op: OpView) -> Backward:
    """The gradient with zeros at the indices for the data; gathered at the indices for the updates."""
    data, indices, updates, out = op.input(0), op.input(1), op.input(2), op.output()
    works: list[OpWork] = []
    places = () if _is_slice(op) else (indices,)
    family = Family.COPY if _is_slice(op) else Family.GATHER
    if op.wants_gradient(0):
        zeros = Value("zeros", updates.shape, data.dtype)
        works.append(copy(op, "copy", reads=(gradient_of(out),), writes=(data,), phase=Phase.BACKWARD))
        works.append(copy(op, "scatter", reads=places, writes=(zeros,), phase=Phase.BACKWARD, family=family))
    if op.wants_gradient(2):
        picked = Value("picked", updates.shape, out.dtype)
        works.append(
            copy(
                op,
                "gather",
                reads=(picked, *places),
                writes=(updates,),
                phase=Phase.BACKWARD,
                family=family,
            )
        )
    return Backward(tuple(works), tuple(value.name for value in places))


def _is_slice(op: OpView) -> bool:
    return op.op_type == "ScatterND" and op.is_weight(1)


@WORK_RULES.register("", "MaxUnpool", "Col2Im")
def scatter_onto_zeros(op: OpView) -> tuple[OpWork, ...]:
    """Zeros, then every input element added at its place."""
    data, out = op.input(0), op.output()
    flops = data.elements if op.op_type == "Col2Im" else 0
    written = Value("written", data.shape, data.dtype)
    reads = op.present_inputs if op.op_type == "MaxUnpool" else (data,)
    return (
        copy(op, "fill", reads=(), writes=(out,)),
        work(
            op,
            Family.GATHER,
            "scatter",
            Elements(data.elements),
            reads=reads,
            writes=(written,),
            flops=flops,
        ),
    )


@BACKWARD_RULES.register("", "MaxUnpool", "Col2Im")
def scatter_onto_zeros_backward(op: OpView) -> Backward:
    """The gradient gathered from the same places."""
    data = op.input(0)
    picked = Value("picked", data.shape, data.dtype)
    indices = op.present_inputs[1:2] if op.op_type == "MaxUnpool" else ()
    reads = (picked, *indices)
    item = copy(op, "gather", reads=reads, writes=(data,), phase=Phase.BACKWARD, family=Family.GATHER)
    return Backward((item,), tuple(value.name for value in indices))


@WORK_RULES.register("", "OneHot")
def one_hot(op: OpView) -> tuple[OpWork, ...]:
    """Zeros and ones."""
    return (copy(op, "one_hot", reads=(op.input(0),), writes=(op.output(),)),)


@WORK_RULES.register("", "NonZero", "Unique")
def select_present(op: OpView) -> tuple[OpWork, ...]:
    """A scan over the input; the output's size depends on the data and is what the graph says."""
    data = op.input(0)
    return (
        work(
            op,
            Family.REDUCTION,
            "scan",
            Rows(1, data.elements),
            reads=(data,),
            writes=op.present_outputs,
            flops=data.elements,
            launches=3,
        ),
    )


@WORK_RULES.register("", "NonMaxSuppression")
def non_maximum_suppression(op: OpView) -> tuple[OpWork, ...]:
    """Every pair of boxes is compared: about 10 operations for an intersection over a union."""
    boxes, scores = op.input(0), op.input(1)
    count = boxes.shape[-2] if len(boxes.shape) > 1 else 1
    classes = scores.elements // max(1, count)
    return (
        work(
            op,
            Family.REDUCTION,
            "nms",
            Rows(max(1, classes), count),
            reads=(boxes, scores),
            writes=op.present_outputs,
            flops=10 * classes * count * count // 2,
            launches=3,
        ),
    )
