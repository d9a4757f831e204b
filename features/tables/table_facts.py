"""Shape facts of many works at once: the columns of a WorkTable as products, tiles, rows and elements.

The same numbers as `features/tables/tiles.py` and `features/tables/rows.py` give op by op; here without a
loop, for models that read thousands of ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import AttentionShape, Contraction, Convolution, Elements, Rows
from predictor.features.programs.work_table import BITS, PASSES, SHAPE, SHAPES, WorkTable
from predictor.features.tables.tiles import FloatArray, Products

_CODES = {shape: code for code, shape in enumerate(SHAPES)}
(_SAMPLES, _IN, _OUT, _GROUPS) = range(SHAPE, SHAPE + 4)
_SPACE_IN, _SPACE_OUT, _KERNEL, _STRIDES, _DILATIONS = (
    slice(SHAPE + i, SHAPE + i + 3) for i in range(4, 19, 3)
)
_PASS, _TRANSPOSED, _CHANNELS_LAST = -3, -2, -1


@dataclass(frozen=True, slots=True)
class ConvolutionFacts:
    """Columns (n,), 0 where the work is no convolution."""

    in_channels: FloatArray
    out_channels: FloatArray
    groups: FloatArray
    samples: FloatArray
    in_points: FloatArray
    out_points: FloatArray
    taps: FloatArray
    stride: FloatArray
    dilation: FloatArray
    pass_code: FloatArray
    transposed: FloatArray
    channels_last: FloatArray

    @property
    def is_depthwise(self) -> NDArray[np.bool_]:
        """(n,) one input channel a group."""
        found: NDArray[np.bool_] = (self.groups > 1) & (self.groups == self.in_channels)
        return found


def has_shape(table: WorkTable, *shapes: type) -> NDArray[np.bool_]:
    """(n,) whether a work's shape is one of these classes."""
    found: NDArray[np.bool_] = np.isin(table.shape, [_CODES[shape] for shape in shapes])
    return found


def convolution_facts(table: WorkTable) -> ConvolutionFacts:
    """Facts of the convolutions in a table."""
    n = np.where(has_shape(table, Convolution)[:, None], table.numbers, 0.0)
    return ConvolutionFacts(
        in_channels=n[:, _IN],
        out_channels=n[:, _OUT],
        groups=n[:, _GROUPS],
        samples=n[:, _SAMPLES],
        in_points=n[:, _SPACE_IN].prod(axis=1),
        out_points=n[:, _SPACE_OUT].prod(axis=1),
        taps=n[:, _KERNEL].prod(axis=1),
        stride=n[:, _STRIDES].prod(axis=1),
        dilation=n[:, _DILATIONS].prod(axis=1),
        pass_code=n[:, _PASS],
        transposed=n[:, _TRANSPOSED],
        channels_last=n[:, _CHANNELS_LAST],
    )


def table_products(table: WorkTable) -> Products:
    """The matrix product behind each work, all ones where there is none.

    Contractions and convolutions as `tiles.product_of`; attention as its product of queries and keys.
    """
    columns = np.ones((len(table), 4))
    plain = has_shape(table, Contraction)
    columns[plain] = table.numbers[plain, SHAPE : SHAPE + 4]
    attention = has_shape(table, AttentionShape)
    if attention.any():
        batch, heads, _, q, kv, head = table.numbers[attention, SHAPE : SHAPE + 6].T
        columns[attention] = np.stack([batch * heads, q, kv, head], axis=1)
    convolution = has_shape(table, Convolution)
    if convolution.any():
        columns[convolution] = _convolution_products(table.take(convolution))
    return Products(*np.maximum(columns, 1.0).T)


def _convolution_products(table: WorkTable) -> FloatArray:
    facts = convolution_facts(table)
    groups = np.maximum(facts.groups, 1.0)
    near = np.maximum(1.0, np.floor(facts.in_channels / groups))
    far = np.maximum(1.0, np.floor(facts.out_channels / groups))
    near_points, far_points = facts.samples * facts.in_points, facts.samples * facts.out_points
    swapped = facts.transposed > 0
    near, far = np.where(swapped, far, near), np.where(swapped, near, far)
    near_points, far_points = (
        np.where(swapped, far_points, near_points),
        np.where(swapped, near_points, far_points),
    )
    taps = facts.taps
    weight = facts.pass_code == PASSES.index("weight_gradient")
    backward = (facts.pass_code == PASSES.index("data_gradient")) != swapped
    depth = np.maximum(1.0, np.rint(far * taps * far_points / np.maximum(1.0, near_points)))
    rows = np.where(weight, far, np.where(backward, near_points, far_points))
    columns = np.where(weight, near * taps, np.where(backward, near, far))
    inner = np.where(weight, far_points, np.where(backward, depth, near * taps))
    return np.stack([groups, np.maximum(1.0, rows), columns, np.maximum(1.0, inner)], axis=1)


def rows_and_columns(table: WorkTable) -> tuple[FloatArray, FloatArray]:
    """(n,) rows and their length: of works over rows; of elements, all of them in rows of 1; else 1 and 1."""
    rows, columns = np.ones(len(table)), np.ones(len(table))
    row = has_shape(table, Rows)
    rows[row], columns[row] = table.numbers[row, SHAPE], table.numbers[row, SHAPE + 1]
    flat = has_shape(table, Elements)
    rows[flat] = table.numbers[flat, SHAPE]
    return np.maximum(rows, 1.0), np.maximum(columns, 1.0)


def element_bytes(table: WorkTable) -> FloatArray:
    """(n,) bytes of one element of the widest operand."""
    return np.asarray(np.maximum(table.numbers[:, BITS], 1.0) / 8.0, dtype=np.float64)
