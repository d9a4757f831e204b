"""The command line starts fast: nothing heavy is imported before a command needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_HEAVY = (
    "xgboost",
    "torch",
    "onnx",
    "grpc",
    "numpy",
    "polars",
    "sklearn",
    "pandas",
    "google.protobuf",
    "rich",
)

_SCRIPT = """
import sys
sys.argv = ["perfcast", *{arguments!r}]
from predictor.cli.main import main
try:
    main()
except SystemExit as stop:
    code = stop.code
print(code, [name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


def _run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    script = _SCRIPT.format(arguments=arguments, heavy=_HEAVY)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


_COMMANDS = ([], ["predict"], ["graph"], ["devices"], ["serve"], ["corpus"], ["evaluate"])


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    result = _run([*command, "--help"])
    assert result.stderr.strip().endswith("0 []"), result.stderr
    assert "Usage: perfcast" in result.stdout


def test_import_of_the_package_imports_nothing_heavy() -> None:
    script = f"import sys, predictor; print([name for name in {_HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_remote_prediction_needs_no_xgboost() -> None:
    script = "import sys, predictor.client; print([n for n in ('xgboost', 'onnx') if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
