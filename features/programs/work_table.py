"""Many works as columns: what vectorised cost models read, and what caches of programs store.

A work's numbers are whole and, in almost every program, affine in the batch size: `between` prices any batch
from two. `works` gives the OpWorks back, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from predictor.features.dtype import Compute
from predictor.features.programs.work import (
    AttentionShape,
    Contraction,
    Convolution,
    Elements,
    Family,
    OpWork,
    Phase,
    Rows,
    Transfer,
    WorkShape,
)

FloatArray: TypeAlias = NDArray[np.float64]
CodeArray: TypeAlias = NDArray[np.int16]
TextArray: TypeAlias = NDArray[np.object_]

FAMILIES, PHASES, COMPUTES = tuple(Family), tuple(Phase), tuple(Compute)
SHAPES = (Contraction, Convolution, AttentionShape, Rows, Elements, Transfer)
"""What the codes of a table index."""
PASSES = ("forward", "data_gradient", "weight_gradient")

(MATRIX_FLOPS, VECTOR_FLOPS, READ_BYTES, WRITE_BYTES, PARAMETER_BYTES, LAUNCHES, BITS) = range(7)
"""Columns of `numbers` before those of the shape."""
SHAPE = 7
"""First column of the shape's own numbers, in the order of its fields; a convolution's spatial fields take
three columns each, and rank, pass (index of PASSES), transposed and channels_last follow."""
_SPATIAL_RANK = 3
_SHAPE_WIDTH = 4 + 5 * _SPATIAL_RANK + 4
WIDTH = SHAPE + _SHAPE_WIDTH

_FAMILY_CODE = {family: code for code, family in enumerate(FAMILIES)}
_PHASE_CODE = {phase: code for code, phase in enumerate(PHASES)}
_COMPUTE_CODE = {compute: code for code, compute in enumerate(COMPUTES)}
_SHAPE_CODE: dict[type, int] = {shape: code for code, shape in enumerate(SHAPES)}
_PASS_CODE = {name: code for code, name in enumerate(PASSES)}


@dataclass(frozen=True, slots=True)
class WorkTable:
    """n works.

    Attributes:
        kind: (n,) text. family, phase, compute, shape: (n,) indices of FAMILIES, PHASES, COMPUTES, SHAPES.
        numbers: (n, WIDTH) all other fields.
    """

    kind: TextArray
    family: CodeArray
    phase: CodeArray
    compute: CodeArray
    shape: CodeArray
    numbers: FloatArray

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> WorkTable:
        """The chosen works."""
        return WorkTable(
            self.kind[rows],
            self.family[rows],
            self.phase[rows],
            self.compute[rows],
            self.shape[rows],
            self.numbers[rows],
        )

    def works(self) -> list[OpWork]:
        """The works as they were. Raises ValueError for transfers between devices."""
        codes = zip(self.family, self.phase, self.compute, self.shape, strict=True)
        return [
            OpWork(
                family=FAMILIES[family],
                kind=kind,
                phase=PHASES[phase],
                compute=COMPUTES[compute],
                shape=_shape(int(shape), row[SHAPE:]),
                element_bits=row[BITS],
                matrix_flops=row[MATRIX_FLOPS],
                vector_flops=row[VECTOR_FLOPS],
                read_bytes=row[READ_BYTES],
                write_bytes=row[WRITE_BYTES],
                parameter_bytes=row[PARAMETER_BYTES],
                launch_count=row[LAUNCHES],
            )
            for kind, (family, phase, compute, shape), row in zip(
                self.kind, codes, self.numbers.astype(np.int64).tolist(), strict=True
            )
        ]


def work_table(works: Sequence[OpWork]) -> WorkTable:
    """Columns of `works`, in order. Raises ValueError for a convolution of more than three dimensions."""
    numbers = np.zeros((len(works), WIDTH))
    for row, work in enumerate(works):
        shape = _numbers(work.shape)
        numbers[row, : SHAPE + len(shape)] = (
            work.matrix_flops,
            work.vector_flops,
            work.read_bytes,
            work.write_bytes,
            work.parameter_bytes,
            work.launch_count,
            work.element_bits,
            *shape,
        )
    return WorkTable(
        kind=np.array([work.kind for work in works], dtype=object),
        family=np.array([_FAMILY_CODE[work.family] for work in works], dtype=np.int16),
        phase=np.array([_PHASE_CODE[work.phase] for work in works], dtype=np.int16),
        compute=np.array([_COMPUTE_CODE[work.compute] for work in works], dtype=np.int16),
        shape=np.array([_SHAPE_CODE[type(work.shape)] for work in works], dtype=np.int16),
        numbers=numbers,
    )


def joined(tables: Sequence[WorkTable]) -> WorkTable:
    """All works of all tables, in order."""
    return WorkTable(
        *(
            np.concatenate([getattr(table, name) for table in tables])
            for name in ("kind", "family", "phase", "compute", "shape", "numbers")
        )
    )


def between(first: WorkTable, second: WorkTable, at: float) -> WorkTable:
    """Numbers on the line through `first` (at 0) and `second` (at 1): other batch sizes of one program.

    Raises ValueError when the two do not hold the same ops.
    """
    if len(first) != len(second) or not (
        np.array_equal(first.kind, second.kind)
        and np.array_equal(first.phase, second.phase)
        and np.array_equal(first.shape, second.shape)
    ):
        raise ValueError("two batch sizes of one program hold different ops")
    numbers = np.rint(first.numbers + at * (second.numbers - first.numbers))
    return replace(first, numbers=numbers)


def _convolution_numbers(shape: Convolution) -> tuple[int, ...]:
    rank = len(shape.kernel)
    if rank > _SPATIAL_RANK:
        raise ValueError(f"a convolution in {rank} dimensions; expected at most {_SPATIAL_RANK}")
    fill = (1,) * (_SPATIAL_RANK - rank)
    return (
        shape.samples,
        shape.in_channels,
        shape.out_channels,
        shape.groups,
        *shape.in_spatial,
        *fill,
        *shape.out_spatial,
        *fill,
        *shape.kernel,
        *fill,
        *shape.strides,
        *fill,
        *shape.dilations,
        *fill,
        rank,
        _PASS_CODE[shape.pass_name],
        int(shape.transposed),
        int(shape.channels_last),
    )


def _attention_numbers(shape: AttentionShape) -> tuple[int, ...]:
    return (
        shape.batch,
        shape.heads,
        shape.kv_heads,
        shape.q_length,
        shape.kv_length,
        shape.head_dim,
        shape.value_dim,
        int(shape.causal),
        shape.window,
    )


def _numbers(shape: WorkShape) -> tuple[int, ...]:
    if isinstance(shape, Contraction):
        return (shape.batch, shape.m, shape.n, shape.k)
    if isinstance(shape, Convolution):
        return _convolution_numbers(shape)
    if isinstance(shape, AttentionShape):
        return _attention_numbers(shape)
    if isinstance(shape, Transfer):
        return (shape.ranks, shape.size_bytes)
    return (shape.rows, shape.columns) if isinstance(shape, Rows) else (shape.count,)


def _shape(code: int, numbers: Sequence[int]) -> WorkShape:
    kind = SHAPES[code]
    if kind is Convolution:
        return _convolution(numbers)
    if kind is AttentionShape:
        batch, heads, kv_heads, q, kv, head, value, causal, window = numbers[:9]
        return AttentionShape(batch, heads, kv_heads, q, kv, head, value, bool(causal), window)
    if kind is Contraction:
        batch, m, n, k = numbers[:4]
        return Contraction(batch, m, n, k)
    if kind is Transfer:
        raise ValueError("columns do not say whose transfer it is; only the works of one device come back")
    return Rows(numbers[0], numbers[1]) if kind is Rows else Elements(numbers[0])


def _convolution(numbers: Sequence[int]) -> Convolution:
    samples, in_channels, out_channels, groups = numbers[:4]
    rank, pass_code, transposed, channels_last = numbers[-4:]
    inside, outside, kernel, strides, dilations = (
        tuple(numbers[start : start + rank]) for start in range(4, _SHAPE_WIDTH - 4, _SPATIAL_RANK)
    )
    return Convolution(
        samples=samples,
        in_channels=in_channels,
        out_channels=out_channels,
        groups=groups,
        in_spatial=inside,
        out_spatial=outside,
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pass_name=PASSES[pass_code],
        transposed=bool(transposed),
        channels_last=bool(channels_last),
    )
