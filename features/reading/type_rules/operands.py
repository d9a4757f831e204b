"""What a type rule may see of one node, and the registries of such rules, by when they are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from predictor.features.reading.tensor_type import Array, Dim, TensorType
from predictor.registry import Registry


@dataclass(frozen=True, slots=True)
class Operands:
    """The node as its type rule sees it.

    Attributes:
        types: type of each input by position, None where omitted or unknown.
        contents: contents of each input where known.
        attributes: as Python values.
        output_count: outputs asked for, omitted ones in between included.
    """

    types: Sequence[TensorType | None]
    contents: Sequence[Array | None]
    attributes: Mapping[str, Any]
    output_count: int

    def type(self, index: int) -> TensorType | None:
        """Type of input `index`, None when it is omitted or unknown."""
        return self.types[index] if index < len(self.types) else None

    def dims(self, index: int) -> tuple[Dim, ...] | None:
        """Dimensions of input `index`, None when even the rank is unknown."""
        known = self.type(index)
        return None if known is None else known.dims

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Shape of input `index`, None when it is not known in full."""
        known = self.type(index)
        return None if known is None else known.shape

    def elem_type(self, index: int) -> int:
        """ONNX element type of input `index`, 0 when unknown."""
        known = self.type(index)
        return 0 if known is None else known.elem_type

    def integers(self, index: int) -> tuple[int, ...] | None:
        """Contents of input `index` as integers, None when unknown."""
        array = self.contents[index] if index < len(self.contents) else None
        return None if array is None else tuple(int(item) for item in array.ravel())

    def integer(self, name: str, default: int = 0) -> int:
        """Integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def items(self, name: str) -> tuple[Any, ...]:
        """Attribute that is a list; empty when absent."""
        value = self.attributes.get(name)
        return value if isinstance(value, tuple) else ()


TypeRule: TypeAlias = Callable[[Operands], tuple[TensorType, ...]]
"""Output types in order, as far as they follow; shorter or unknown where they do not."""

TYPES_BEFORE_ONNX: Registry[TypeRule] = Registry("type rule before ONNX's")
"""Asked instead of ONNX's own inference where that forgets (how many items) or errs."""
TYPES_AFTER_ONNX: Registry[TypeRule] = Registry("type rule after ONNX's")
"""Asked where ONNX's own inference leaves something open."""
LARGEST_TYPES: Registry[TypeRule] = Registry("rule of largest types")
"""Asked last, where a shape depends on the data: the largest that it can be."""
