"""The Python examples of docs/plans.md run as they stand, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from predictor.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")


def test_python_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"docs/plans.md, example {number}", "exec"), names)


def test_the_first_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command = re.search(r"    perfcast (predict .*?)\n\n", TEXT, re.DOTALL)
    assert command is not None
    result = CliRunner().invoke(app, shlex.split(command[1].replace("\\\n", " ")))
    assert result.exit_code == 0, result.output
    assert "16 x a100-sxm-80gb" in result.stdout
