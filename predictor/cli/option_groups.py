"""Flags that several commands share, as dataclasses: a command takes the group, typer sees its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """`command` for typer: each parameter that is a dataclass of options becomes one flag per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    flags: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            groups[parameter.name] = kind
            flags += _flags(kind)
        else:
            flags.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def spread_command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{part.name: values.pop(part.name) for part in fields(group)})
        command(**values)

    spread_command.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    spread_command.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return spread_command


def _flags(group: Any) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for part in fields(group):
        default = part.default if part.default_factory is MISSING else part.default_factory()
        yield Parameter(
            part.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if default is MISSING else default,
            annotation=hints[part.name],
        )
