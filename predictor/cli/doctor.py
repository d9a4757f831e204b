"""`perfcast doctor`: is this installation able to answer, and if not, what is missing?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer

from predictor.errors import InvalidBundle, PerfcastError

_PACKAGES = {
    "required": ("numpy", "onnx", "xgboost"),
    "cli": ("typer", "rich"),
    "server": ("grpcio", "protobuf", "grpcio-status", "grpcio-health-checking", "grpcio-reflection"),
    "train": ("polars",),
}
# Distributions that provide the same import.
_ALTERNATIVES = {"xgboost": ("xgboost-cpu",)}


def doctor() -> None:
    """Check this installation: packages, bundle, a prediction."""
    failures = 0
    for ok, what, found in _checks():
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[ok]
        typer.echo(f"{mark} {what:24} {found}")
        failures += ok is False
    if failures:
        raise InvalidBundle(f"{failures} checks failed; the lines marked FAIL say what to do")


def _checks() -> Iterator[tuple[bool | None, str, str]]:
    """(True, False or None for optional and absent; what; what was found)."""
    python = ".".join(map(str, sys.version_info[:3]))
    yield sys.version_info >= (3, 11), "python", f"{python} at {sys.executable}"
    for extra, names in _PACKAGES.items():
        for name in names:
            found = _version(name)
            absent = False if extra == "required" else None
            hint = "missing: pip install " + ("perfcast" if extra == "required" else f"'perfcast[{extra}]'")
            yield (True, name, found) if found else (absent, name, hint)
    yield _attempt("bundle", _load_bundle)
    yield _attempt("prediction", _predict)
    data = os.environ.get("PERFCAST_DATA")
    if data is None:
        yield None, "data folder", "PERFCAST_DATA is not set; needed only to build the corpus"
    else:
        exists = Path(data).is_dir()
        yield exists, "data folder", data if exists else f"{data} is not a folder; correct PERFCAST_DATA"


def _version(name: str) -> str | None:
    for candidate in (name, *_ALTERNATIVES.get(name, ())):
        try:
            return version(candidate)
        except PackageNotFoundError:
            continue
    return None


def _attempt(what: str, check: Callable[[], str]) -> tuple[bool, str, str]:
    try:
        return True, what, check()
    except PerfcastError as error:
        return False, what, error.message
    except ImportError as error:
        return False, what, f"{error.name} cannot be imported"


def _load_bundle() -> str:
    from predictor.api import Predictor
    from predictor.cli.text import short_id

    return short_id(Predictor.load().bundle_id)


def _predict() -> str:
    from predictor.api import Predictor
    from predictor.cli.text import seconds
    from predictor.request import PredictionRequest

    answer = Predictor.load().predict(PredictionRequest(_tiny_model(), "a100-pcie-40gb", batch=8))
    return f"a product of 512 x 512 on {answer.device}: {seconds(answer.iteration_time_s.value)}"


def _tiny_model() -> bytes:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "doctor",
        [value("x", TensorProto.FLOAT, ["batch", 512])],
        [value("y", TensorProto.FLOAT, ["batch", 512])],
        [helper.make_tensor("w", TensorProto.FLOAT, [512, 512], bytes(4 * 512 * 512), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
