"""A model whose values have types: what reading hands to the conversion into a Graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from predictor.features.reading.structure import Call
from predictor.features.reading.tensor_type import Array, TensorType
from predictor.types import Notice


@dataclass(frozen=True, slots=True)
class TypedBody:
    """The body of a Loop or Scan.

    Attributes:
        calls: in order; names are unique in the whole model.
        inputs: formal inputs. outputs: results.
        captured: values of the graphs around that it reads; weights of its own are among them.
    """

    calls: tuple[TypedCall, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A node with its attributes as Python values."""

    call: Call
    attributes: Mapping[str, Any]
    body: TypedBody | None = None


@dataclass(frozen=True, slots=True)
class TypedModel:
    """Nodes in order, the type of every value that has one, and contents of small constants.

    `resident` are initializers that stay whether or not a node reads them.
    """

    calls: tuple[TypedCall, ...]
    initializers: tuple[str, ...]
    types: Mapping[str, TensorType]
    contents: Mapping[str, Array]
    notes: tuple[Notice, ...] = ()
    resident: tuple[str, ...] = ()
