"""No command writes over the file that it reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from predictor.cli.main import main

EXAMPLE = Path(__file__).parents[3] / "examples" / "mobilenet_v2.onnx"


@pytest.mark.parametrize(
    "command",
    [
        ("graph", "strip", "{}", "{}"),
        ("predict", "{}", "-d", "a100-pcie-40gb", "--out", "{}"),
        ("memory", "{}", "-d", "a100-pcie-40gb", "--out", "{}"),
        ("explain", "{}", "-d", "a100-pcie-40gb", "--trace", "{}"),
        ("fit", "{}", "-d", "a100-pcie-40gb", "--out", "{}"),
        ("plan", "{}", "-d", "a100-pcie-40gb", "-b", "4", "--max-devices", "1", "--out", "{}"),
        ("sweep", "{}", "-d", "a100-pcie-40gb", "--out", "{}"),
    ],
)
def test_the_model_is_not_replaced(
    command: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(EXAMPLE, model)
    before = model.read_bytes()
    monkeypatch.setattr("sys.argv", ["perfcast", *(part.format(model) for part in command)])
    try:
        code = main()
    except SystemExit as stopped:
        code = stopped.code
    assert code == 3
    assert "name another to write" in capsys.readouterr().err
    assert model.read_bytes() == before
