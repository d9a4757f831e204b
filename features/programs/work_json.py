"""OpWork as plain JSON values and back: how measurements of single ops name what ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from predictor.errors import InvalidData
from predictor.features.dtype import Compute
from predictor.features.programs.work import (
    AttentionShape,
    Collective,
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


def _transfer(kind: str, **numbers: Any) -> Transfer:
    return Transfer(Collective(kind), **numbers)


_SHAPES: Mapping[str, Callable[..., WorkShape]] = {
    "contraction": Contraction,
    "convolution": Convolution,
    "attention": AttentionShape,
    "rows": Rows,
    "elements": Elements,
    "transfer": _transfer,
}
_SHAPE_NAMES: Mapping[object, str] = {
    **{shape: name for name, shape in _SHAPES.items()},
    Transfer: "transfer",
}
_TUPLES = frozenset({"in_spatial", "out_spatial", "kernel", "strides", "dilations"})


def work_to_json(work: OpWork) -> dict[str, Any]:
    """Every field, enumerations as text, the shape under its class's name."""
    plain: dict[str, Any] = {field.name: getattr(work, field.name) for field in fields(work)}
    plain["shape"] = {_SHAPE_NAMES[type(work.shape)]: asdict(work.shape)}
    return {
        name: str(value) if isinstance(value, Family | Phase | Compute) else value
        for name, value in plain.items()
    }


def work_from_json(plain: Mapping[str, Any]) -> OpWork:
    """Inverse of `work_to_json`. Raises InvalidData naming the field that is missing or wrong."""
    try:
        ((shape_name, numbers),) = plain["shape"].items()
        shape = _SHAPES[shape_name](
            **{key: tuple(value) if key in _TUPLES else value for key, value in numbers.items()}
        )
        return OpWork(
            **{
                **plain,
                "family": Family(plain["family"]),
                "phase": Phase(plain["phase"]),
                "compute": Compute(plain["compute"]),
                "shape": shape,
            }
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidData(f"not the work of an op: {error!r}") from None
