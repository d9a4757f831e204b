"""Graphs of rows whose models are built in Python: `name`, or `name--option=number` for other sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from predictor.features.architectures import ARCHITECTURES
from predictor.features.graph import Graph
from predictor.features.reading.reader import read_graph
from predictor.types import Mode


def graph_key(name: str, **options: int) -> str:
    """The key of an architecture at these options."""
    return "--".join([name, *(f"{option}={value}" for option, value in sorted(options.items()))])


def built_graph(key: str, batch: int, mode: Mode) -> Graph:
    """The graph of a key; one that trains has its dropouts and losses. Raises InvalidGraph."""
    name, *settings = key.split("--")
    options: dict[str, int] = {}
    for setting in settings:
        option, value = setting.split("=")
        options[option] = int(value)
    builder = ARCHITECTURES[name]
    if _takes_training(builder):
        options["training"] = mode is Mode.TRAIN
    return read_graph(builder(batch=batch, **options))


def _takes_training(builder: Callable[..., bytes]) -> bool:
    return "training" in inspect.signature(builder).parameters
