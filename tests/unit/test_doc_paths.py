"""Files that the documentation names exist: links between pages, and paths in the text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
_PATH = re.compile(
    r"(?<![\w/.-])(?:features|models|predictor|tests|benchmarks|docs|examples|proto)/[\w./-]+\.(?:py|md|toml|onnx)\b"
)
_MODULE = re.compile(r"`(\w+\.py)`")
# Files of the reader's own.
_EXAMPLES = {"models/detector.onnx", "models/corpus/my_source.py"}
_FOLDERS = ("features", "models", "predictor", "tests", "benchmarks", "examples")
_MODULES = {path.name for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")} | {"server.py"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    links = [link for link in _LINK.findall(text) if not (page.parent / link).exists()]
    named = set(_PATH.findall(text)) - _EXAMPLES
    paths = [path for path in named if not (ROOT / path).exists() and not (page.parent / path).exists()]
    assert not links
    assert not paths
    assert not set(_MODULE.findall(text)) - _MODULES
