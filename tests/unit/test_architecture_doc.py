"""docs/architecture.md lists every module, each with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "architecture.md"
LINE = re.compile(r"^- `(?P<module>[\w/]+\.py)`: (?P<text>.+)$", re.MULTILINE)
GENERATED = ROOT / "predictor" / "v1"
# A full stop, not that of an abbreviation or of `(...).`, before the next sentence.
SENTENCE_END = re.compile(r"(?<=[a-z0-9`)\"']{2}\.) (?=[A-Z`])")


def _modules() -> list[str]:
    # Folders behind the two symlinks are listed under their real place.
    found = [
        path
        for folder in ("features", "models", "predictor")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if GENERATED not in path.parents
    ]
    linked = {ROOT / "predictor" / name for name in ("features", "models")}
    names = [str(path.relative_to(ROOT)) for path in found if linked.isdisjoint(path.parents)]
    return [*names, "server.py"]


def _first_sentence(module: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / module).read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return SENTENCE_END.split(paragraph)[0].rstrip(". ")


def _listed() -> list[tuple[str, str]]:
    return LINE.findall(DOCUMENT.read_text(encoding="utf-8"))


def test_every_module_is_listed_once() -> None:
    listed = [module for module, _ in _listed()]
    missing = [f"- `{name}`: {_first_sentence(name)}" for name in sorted({*_modules()} - {*listed})]
    assert not missing, "add to the section of docs/architecture.md where they belong:\n" + "\n".join(missing)
    assert sorted(listed) == sorted(set(listed))


def test_nothing_is_listed_that_is_gone() -> None:
    gone = sorted({module for module, _ in _listed()} - {*_modules()})
    assert not gone, f"no such modules; take them out of docs/architecture.md: {', '.join(gone)}"


@pytest.mark.parametrize(("module", "text"), _listed())
def test_the_line_is_what_the_module_says(module: str, text: str) -> None:
    if not (ROOT / module).exists():
        pytest.skip("reported by the test above")
    said = _first_sentence(module)
    assert text == said, f"write it as the module does:\n- `{module}`: {said}"
