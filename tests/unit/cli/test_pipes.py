from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import predictor.api
from predictor.cli.main import app
from tests.contract.fake import FakePredictor
from tests.contract.models import perceptron

A100 = ("--device", "a100-pcie-40gb", "--output", "json")


def test_a_pipe_of_the_shell_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`perfcast predict <(zcat model.onnx.gz)`: readable once, and not to be waited for."""
    monkeypatch.setattr(
        predictor.api.Predictor, "load", classmethod(lambda cls, bundle=None: FakePredictor())
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(perceptron().SerializeToString())
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(path.read_bytes())
    try:
        piped = CliRunner().invoke(app, ["predict", f"/dev/fd/{reader}", *A100])
    finally:
        os.close(reader)
    assert piped.exit_code == 0
    assert json.loads(piped.stdout) == json.loads(
        CliRunner().invoke(app, ["predict", str(path), *A100]).stdout
    )
