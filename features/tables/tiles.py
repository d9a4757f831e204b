"""How a matrix product is cut into tiles, and what the cut costs: padding and idle cores.

A tile is computed by one core; all cores take tiles in waves. A wave costs one tile's time however few
cores it fills, so time is ceil(tiles / cores) waves. Libraries choose among tile shapes, the floor takes
the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from predictor.features.programs.work import Contraction, Convolution, OpWork

FloatArray = NDArray[np.float64]

TILES: tuple[tuple[int, int, float], ...] = (
    (128, 128, 1.0),
    (256, 64, 0.95),
    (128, 64, 0.93),
    (64, 64, 0.85),
    (128, 32, 0.72),
    (64, 32, 0.6),
    (32, 32, 0.45),
)
"""(rows, columns, share of the peak inside the tile): small tiles load more operands per FLOP."""

_SPLIT_DEPTH = 256
"""Least depth of a part when a product of few tiles is split along k to fill the cores (weight gradients)."""


@dataclass(frozen=True, slots=True)
class Products:
    """Matrix products as columns, each (n,): batch independent products of (m x k) by (k x n)."""

    batch: FloatArray
    m: FloatArray
    n: FloatArray
    k: FloatArray

    @property
    def flops(self) -> FloatArray:
        """(n,) 2 * batch * m * n * k."""
        return 2.0 * self.batch * self.m * self.n * self.k


def product_of(shape: object) -> Contraction:
    """The matrix product behind a contraction or convolution (implicit GEMM).

    Forward: output points x output channels over input channels x kernel. Data gradient: the same with the
    sides exchanged. Weight gradient: output channels x (input channels x kernel) over all output points.
    """
    if isinstance(shape, Contraction):
        return shape
    if isinstance(shape, Convolution):
        return _convolution_product(shape)
    raise TypeError(f"{type(shape).__name__} is no matrix product")


def _convolution_product(shape: Convolution) -> Contraction:
    groups = max(1, shape.groups)
    near, far = max(1, shape.in_channels // groups), max(1, shape.out_channels // groups)
    near_points, far_points = shape.samples * prod(shape.in_spatial), shape.samples * prod(shape.out_spatial)
    if shape.transposed:
        # A transposed convolution is the data gradient of the convolution with both sides exchanged.
        near, far, near_points, far_points = far, near, far_points, near_points
    taps = prod(shape.kernel)
    if shape.pass_name == "weight_gradient":
        return Contraction(groups, far, near * taps, max(1, far_points))
    backward = (shape.pass_name == "data_gradient") != shape.transposed
    if not backward:
        return Contraction(groups, max(1, far_points), far, near * taps)
    # Every input point sees taps / prod(strides) of the output points: FLOPs stay those of the forward pass.
    depth = max(1, round(far * taps * far_points / max(1, near_points)))
    return Contraction(groups, max(1, near_points), near, depth)


def products(works: Sequence[OpWork]) -> Products:
    """The columns of all works; raises TypeError when one is no matrix product."""
    table = np.array(
        [(p.batch, p.m, p.n, p.k) for p in (product_of(work.shape) for work in works)], dtype=np.float64
    ).reshape(-1, 4)
    return Products(*np.maximum(table, 1.0).T)


def tile_efficiencies(p: Products, core_count: int) -> FloatArray:
    """(n, tiles) useful share of the peak when the product is cut into each tile shape, in (0, 1].

    Where tiles are fewer than cores, k is split so far that one wave holds all parts.
    """
    columns = []
    for rows, cols, share in TILES:
        tiles = p.batch * np.ceil(p.m / rows) * np.ceil(p.n / cols)
        parts = np.clip(np.floor(np.minimum(core_count / tiles, p.k / _SPLIT_DEPTH)), 1, None)
        slots = np.ceil(tiles * parts / core_count) * core_count
        columns.append(share * p.batch * p.m * p.n * parts / (slots * rows * cols))
    return np.stack(columns, axis=1)
