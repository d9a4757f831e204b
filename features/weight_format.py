"""How the weights of products are stored in few bits: numbers in blocks, each with a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

from predictor.features.dtype import DType
from predictor.types import Weights

_BYTE = 8


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored.

    Attributes:
        bits: of a number, 4 or 8.
        block: numbers of a column that share a scale; 0 for all of them.
        scale: type of a scale; None for that of the activations.
        is_float: FP8, and activations with them; else integers that a product widens.
        has_zero_points: a block has a zero of its own.
        experts_only: all other products keep full weights.
    """

    bits: int
    block: int = 0
    is_float: bool = False
    has_zero_points: bool = False
    experts_only: bool = False
    scale: DType | None = None

    @property
    def dtype(self) -> DType:
        """The type of one number."""
        if self.is_float:
            return DType.FLOAT8
        return DType.INT4 if self.bits == DType.INT4.bits else DType.INT8

    def block_of(self, depth: int) -> int:
        """Numbers that share a scale in columns of `depth`."""
        return self.block or depth

    def packed(self, depth: int, columns: int) -> tuple[int, int, int]:
        """[columns, blocks, bytes of a block] of a matrix [depth, columns], as ONNX Runtime lays it."""
        block = self.block_of(depth)
        return columns, ceil(depth / block), ceil(block * self.bits / _BYTE)

    def grouped(
        self, groups: int, depth: int, columns: int
    ) -> tuple[tuple[str, tuple[int, int, int], DType | None], ...]:
        """Name, shape and type of the scales and, where blocks have them, of the packed zeros of matrices.

        A type of None is that of the activations. Nothing for floats: a matrix has one scale, as a product's
        activations have.
        """
        if self.is_float:
            return ()
        blocks = ceil(depth / self.block_of(depth))
        scales = ("scales", (groups, blocks, columns), self.scale)
        zeros = ("zeros", (groups, ceil(blocks * self.bits / _BYTE), columns), DType.INT8)
        return (scales, zeros) if self.has_zero_points else (scales,)

    def zero_bytes(self, depth: int, columns: int) -> int:
        """Bytes of the blocks' zeros, column by column."""
        blocks = ceil(depth / self.block_of(depth))
        return columns * ceil(blocks * self.bits / _BYTE) if self.has_zero_points else 0


FORMATS: Mapping[Weights, WeightFormat] = MappingProxyType(
    {
        # Groups of 128 with a zero each, as GPTQ and AWQ store them.
        Weights.INT4: WeightFormat(4, 128, has_zero_points=True),
        Weights.INT8: WeightFormat(8),
        Weights.FP8: WeightFormat(8, is_float=True),
    }
)
