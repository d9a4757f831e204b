"""Modules by name: `package.module:factory`, built without allocating weights where the module allows it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.errors import InvalidInput
from predictor.features.torch_capture.model import TorchModel, require_torch

DTYPE_NAMES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8", "bool")


@dataclass(frozen=True, slots=True)
class Example:
    """One example input: its shape, element type, and the keyword it is passed under (empty: by position)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    keyword: str = ""


def torch_model(spec: str, examples: Sequence[Example]) -> TorchModel:
    """The module that `spec` names, with inputs of the given shapes. Raises InvalidInput as `load_module`."""
    module = load_module(spec)
    import torch

    def tensor(example: Example) -> Any:
        return torch.empty(example.shape, dtype=getattr(torch, example.dtype), device="meta")

    args = tuple(tensor(example) for example in examples if not example.keyword)
    kwargs = {example.keyword: tensor(example) for example in examples if example.keyword}
    return TorchModel(module, args, example_kwargs=kwargs)


def load_module(spec: str) -> Any:
    """The torch.nn.Module that `package.module:factory` names.

    The working directory is importable. `factory` is a function or class that is called without arguments, or
    a module; a dotted path reaches into objects. It is called with `meta` as the default device, so that
    parameters have no memory; where that fails, as it is.

    Raises InvalidInput when torch is missing, the name cannot be imported, or what it makes is no module.
    """
    require_torch()
    found = _imported(spec)
    import torch

    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise InvalidInput(f"{spec}: expected a function, a class or a module, got {type(found).__name__}")
    module = _built(spec, found)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInput(f"{spec}: returned {type(module).__name__}, expected a torch.nn.Module")
    return module


def _imported(spec: str) -> Any:
    name, colon, path = spec.partition(":")
    if not colon or not name or not path:
        raise InvalidInput(f"{spec!r}: expected package.module:factory, e.g. mymodels.resnet:resnet50")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
    except Exception as error:
        raise InvalidInput(
            f"{spec}: cannot import {name} ({_summary(error)}); it must be installed, or lie in {here}"
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    for part in path.split("."):
        if not hasattr(found, part):
            raise InvalidInput(f"{spec}: {name} has no {path!r}{_near(found, part)}")
        found = getattr(found, part)
    return found


def _near(holder: Any, name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [item for item in dir(holder) if not item.startswith("_")], n=3)
    return f"; did you mean {', '.join(near)}?" if near else ""


def _built(spec: str, factory: Callable[[], Any]) -> Any:
    import torch

    try:
        with torch.device("meta"):
            return factory()
    except Exception:
        # Some modules read numbers out of tensors while they are built; those need real ones.
        try:
            return factory()
        except Exception as error:
            raise InvalidInput(
                f"{spec}: failed when called without arguments ({_summary(error)}); name a function that "
                "builds the module by itself"
            ) from error


def _summary(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
