"""Builders that the rules share: an OpWork from the tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from predictor.features.graph import Shape, Value
from predictor.features.programs.op_view import OpView, element_bits, vector_compute
from predictor.features.programs.work import Elements, Family, OpWork, Phase, Rows, WorkShape

STATISTIC_BYTES = 4
"""Norms keep means and deviations in FP32 whatever the activations are."""


def size_of(values: Iterable[Value | None]) -> int:
    """Bytes of the distinct tensors."""
    return sum({value.name: value.size_bytes for value in values if value is not None}.values())


def weight_bytes(op: OpView, values: Iterable[Value]) -> int:
    """Bytes of those of the tensors that are weights."""
    # Asked once per kernel: an op of thousands of operands (Sum, Concat) is thousands of kernels.
    if True not in op.weights:
        return 0
    names = {value.name for index, value in enumerate(op.inputs) if value is not None and op.is_weight(index)}
    return size_of(value for value in values if value.name in names)


def work(
    op: OpView,
    family: Family,
    kind: str,
    shape: WorkShape,
    *,
    reads: Sequence[Value],
    writes: Sequence[Value],
    flops: int = 0,
    phase: Phase = Phase.FORWARD,
    launches: int = 1,
    extra_read_bytes: int = 0,
    extra_write_bytes: int = 0,
) -> OpWork:
    """Vector work that reads and writes each of the given tensors once."""
    values = [*reads, *writes]
    return OpWork(
        family=family,
        kind=kind,
        phase=phase,
        compute=vector_compute(values),
        shape=shape,
        element_bits=element_bits(values),
        matrix_flops=0,
        vector_flops=flops,
        read_bytes=size_of(reads) + extra_read_bytes,
        write_bytes=size_of(writes) + extra_write_bytes,
        parameter_bytes=weight_bytes(op, reads),
        launch_count=launches,
    )


def pointwise(
    op: OpView,
    kind: str,
    flops_per_element: int,
    *,
    reads: Sequence[Value] | None = None,
    writes: Sequence[Value] | None = None,
    phase: Phase = Phase.FORWARD,
) -> OpWork:
    """One elementwise kernel; by default from the op's inputs to its outputs."""
    written = op.present_outputs if writes is None else writes
    count = max((value.elements for value in written), default=0)
    return work(
        op,
        Family.ELEMENTWISE,
        kind,
        Elements(count),
        reads=op.present_inputs if reads is None else reads,
        writes=written,
        flops=flops_per_element * count,
        phase=phase,
    )


def copy(
    op: OpView,
    kind: str,
    *,
    reads: Sequence[Value],
    writes: Sequence[Value],
    phase: Phase = Phase.FORWARD,
    family: Family = Family.COPY,
    launches: int = 1,
) -> OpWork:
    """One kernel that moves elements without arithmetic."""
    count = max((value.elements for value in writes), default=0)
    return work(op, family, kind, Elements(count), reads=reads, writes=writes, phase=phase, launches=launches)


def row_work(
    op: OpView,
    family: Family,
    kind: str,
    rows: Rows,
    flops_per_element: int,
    *,
    reads: Sequence[Value],
    writes: Sequence[Value],
    phase: Phase = Phase.FORWARD,
    launches: int = 1,
    statistics: int = 0,
) -> OpWork:
    """Work over independent rows; `statistics` FP32 numbers are written forward and read backward."""
    backward = phase is Phase.BACKWARD
    return work(
        op,
        family,
        kind,
        rows,
        reads=reads,
        writes=writes,
        flops=flops_per_element * rows.rows * rows.columns,
        phase=phase,
        launches=launches,
        extra_read_bytes=statistics * STATISTIC_BYTES if backward else 0,
        extra_write_bytes=0 if backward else statistics * STATISTIC_BYTES,
    )


def sum_to(op: OpView, source: Value, target: Value) -> OpWork:
    """A gradient of `source`'s shape, summed to that of a broadcast operand or bias."""
    rows = Rows(target.elements, max(1, source.elements // max(1, target.elements)))
    return row_work(
        op, Family.REDUCTION, "sum", rows, 1, reads=(source,), writes=(target,), phase=Phase.BACKWARD
    )


def unbroadcast(op: OpView, source: Value, target: Value) -> tuple[OpWork, ...]:
    """`sum_to` where the two differ in size; nothing where the gradient is passed on."""
    return () if source.elements == target.elements else (sum_to(op, source, target),)


def scatter_add(op: OpView, indices: Value) -> OpWork:
    """The gradient of picked elements, added where they came from."""
    out = op.output()
    return work(
        op,
        Family.GATHER,
        "scatter_add",
        Elements(out.elements),
        reads=(gradient_of(out), indices),
        writes=(out,),
        flops=out.elements,
        phase=Phase.BACKWARD,
    )


def axes_of(op: OpView, rank: int, *, axes_input: int, default: Sequence[int]) -> tuple[int, ...]:
    """Non-negative axes from the attribute `axes`, else from constant input `axes_input`, else `default`."""
    axes = op.integers("axes") or op.constant(axes_input) or tuple(default)
    return tuple(sorted({axis % rank for axis in axes})) if rank else ()


def split_rows(shape: Shape, axes: Iterable[int]) -> Rows:
    """Rows that run over `axes`: as many rows as the other dimensions have elements."""
    inner = set(axes)
    columns = prod(size for axis, size in enumerate(shape) if axis in inner)
    return Rows(prod(size for axis, size in enumerate(shape) if axis not in inner), columns)


def gradient_of(value: Value) -> Value:
    """The gradient's type: that of the tensor itself."""
    return Value(f"d_{value.name}", value.shape, value.dtype)
