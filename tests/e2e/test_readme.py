"""Every command and every Python block of the README runs as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# An indented block is a shell block; output shown beside a command lies in fenced `text` blocks.
COMMANDS = [line.strip() for line in re.findall(r"^    (\S.*)$", README, re.MULTILINE)]
INLINE = re.findall(r"`(perfcast (?:graph|predict|compare|explain) [^`]+\.onnx[^`]*)`", README)
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder in which the README's file names exist."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name in ("my_model.onnx", "model.onnx"):
        shutil.copy(ROOT / "examples" / "mobilenet_v2.onnx", tmp_path / name)
    return tmp_path


# The row of each suite's report that the README shows.
SHOWN_ROWS = {"neusight": "all", "memory": "all", "energy": "device:all"}


def summary_row(suite: str) -> list[str]:
    """The cells of the report's row that the README shows, goals left out."""
    report = (ROOT / "docs" / "benchmarks" / f"{suite}.md").read_text(encoding="utf-8")
    row = next(line for line in report.splitlines() if line.startswith(f"| {SHOWN_ROWS[suite]} "))
    return [re.sub(r" \(goal.*\)", "", cell).strip() for cell in row.strip("|").split("|")]


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_the_readme_shows_commands() -> None:
    assert "make demo" in COMMANDS
    assert "make test" in COMMANDS
    assert len([command for command in COMMANDS if command.startswith("perfcast ")]) >= 5
    assert len(PYTHON) >= 2


@pytest.mark.parametrize("command", [c for c in [*COMMANDS, *INLINE] if c.startswith("perfcast ")])
def test_command(command: str, workplace: Path) -> None:
    result = run(["bash", "-c", command], workplace)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() or "strip" in command


def test_the_answer_shown_is_the_one_printed(workplace: Path) -> None:
    command = next(c for c in COMMANDS if c.startswith("perfcast predict examples/resnet50.onnx"))
    result = run(["bash", "-c", f"COLUMNS=100 {command}"], workplace)
    printed = "\n".join(line.rstrip() for line in result.stdout.rstrip().splitlines())
    assert f"```text\n{printed}\n```" in README


@pytest.mark.parametrize("suite", SHOWN_ROWS)
def test_the_accuracy_shown_is_the_one_measured(suite: str) -> None:
    _, count, mean, median, _, covered, *_ = summary_row(suite)
    shown = f"| {int(count):,} | {mean} | {median} | {covered} |"
    assert any(shown in line and f"benchmarks/{suite}.md" in line for line in README.splitlines())


def test_python_blocks_run_in_order(workplace: Path) -> None:
    result = run([sys.executable, "-W", "error", "-c", "\n".join(PYTHON)], workplace)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.split()) == 3


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_target_exists(command: str) -> None:
    result = run(["make", "--dry-run", *command.split()[1:]], ROOT)
    assert result.returncode == 0, result.stderr


def test_demo_gives_the_same_answer_twice() -> None:
    result = run([str(ROOT / "examples" / "demo.sh")], ROOT)
    assert result.returncode == 0, result.stderr
    assert "Both answers are identical to the last digit." in result.stdout
    assert result.stdout.count("throughput") == 2


def test_installs_name_extras_that_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [
        e for c in COMMANDS if c.startswith("pip ") for e in re.findall(r"\[([^\]]+)\]", c)[0].split(",")
    ]
    assert named
    assert set(named) <= set(extras)
