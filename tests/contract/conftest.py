"""One server per session, and the faces that every contract test runs against."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import predictor.api
from predictor.api import Predictor
from predictor.cli.main import app
from predictor.client import RemotePredictor
from predictor.errors import PerfcastError
from predictor.parallel.plan import Plan
from predictor.protocol import Forecaster
from predictor.request import PredictionRequest
from predictor.serve.app import PerfcastServer, build_server
from predictor.serve.settings import ServerSettings
from predictor.wire.as_json import prediction_to_json

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def local() -> Forecaster:
    return Predictor.load()


@pytest.fixture(scope="session")
def server() -> Iterator[PerfcastServer]:
    # A predictor of its own: nothing that `local` has read may help the server.
    with build_server(Predictor.load(), ServerSettings(port=0, grace_s=2.0, access_log=False)) as running:
        yield running


@pytest.fixture(scope="session")
def remote(server: PerfcastServer) -> Iterator[RemotePredictor]:
    with RemotePredictor(server.address, timeout_s=60) as client:
        yield client


class Face:
    """Asks one face and gives its answer as JSON, or raises what it raises."""

    name: str

    def ask(self, **request: Any) -> dict[str, Any]:
        raise NotImplementedError


class ObjectFace(Face):
    """Predictor or RemotePredictor."""

    def __init__(self, name: str, forecaster: Forecaster) -> None:
        self.name = name
        self._forecaster = forecaster

    def ask(self, **request: Any) -> dict[str, Any]:
        return prediction_to_json(self._forecaster.predict(PredictionRequest(**request)))


class CliFace(Face):
    """`perfcast predict --output json`, in this process."""

    def __init__(self, name: str, *extra: str) -> None:
        self.name = name
        self._extra = extra

    def ask(self, **request: Any) -> dict[str, Any]:
        graph = request.pop("graph")
        stdin = graph if isinstance(graph, bytes) else None
        flags = ["predict", "-" if stdin is not None else str(graph), *_flags(request), *self._extra]
        result = CliRunner().invoke(app, [*flags, "--output", "json"], input=stdin)
        if result.exit_code:
            assert result.stdout == "", "an error leaves standard output empty"
            raise CliError(result.exit_code, result.stderr)
        return json.loads(result.stdout)


class CliError(Exception):
    """What a failed command leaves behind."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        super().__init__(stderr)
        self.exit_code = exit_code
        self.stderr = stderr


_FLAG_NAMES = {"power_limit_w": "--power-limit", "dims": "--dim", "input_shapes": "--input-shape"}


def _flags(request: dict[str, Any]) -> Iterable[str]:
    for name, value in request.items():
        flag = _FLAG_NAMES.get(name, f"--{name}")
        if name == "plan":
            yield from _plan_flags(value)
        elif name == "dims":
            for symbol, number in value.items():
                yield from (flag, f"{symbol}={number}")
        elif name == "input_shapes":
            for tensor, shape in value.items():
                yield from (flag, f"{tensor}={'x'.join(map(str, shape))}")
        elif value is True:
            yield flag
        elif value is not None and value is not False:
            yield from (flag, str(value))


def _plan_flags(plan: Plan) -> Iterable[str]:
    for part in fields(plan):
        value = getattr(plan, part.name)
        flag = "--" + part.name.replace("_", "-")
        if value == getattr(Plan(), part.name):
            continue
        if part.name == "bucket_bytes":
            yield from ("--bucket-mib", str(value // 2**20))
        elif part.name == "overlap":
            yield "--no-overlap"
        elif value is True:
            yield flag
        else:
            yield from (flag, ",".join(value) if isinstance(value, tuple | frozenset) else str(value))


@pytest.fixture
def faces(
    local: Forecaster, remote: RemotePredictor, server: PerfcastServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[Face, ...]:
    """Every way to ask. The commands load `local` instead of reading the bundle again for every case."""
    monkeypatch.setattr(predictor.api.Predictor, "load", classmethod(lambda cls, bundle=None: local))
    return (
        ObjectFace("Predictor", local),
        ObjectFace("RemotePredictor", remote),
        CliFace("perfcast predict"),
        CliFace("perfcast predict --server", "--server", server.address),
    )


def error_of(face: Face, **request: Any) -> PerfcastError | CliError:
    """The error that a face gives to a bad request."""
    with pytest.raises((PerfcastError, CliError)) as caught:
        face.ask(**request)
    return caught.value
