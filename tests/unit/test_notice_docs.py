"""Every code of a warning has its line in the page that explains answers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CODE = re.compile(r"(?:Notice|\.note)\(\s*(\"?)([A-Z_]{4,})\1")
_NAMED = re.compile(r"^([A-Z_]+) = \"([A-Z_]{4,})\"", re.MULTILINE)


def codes() -> set[str]:
    """What stands first in every Notice(...) and note(...) of the package, constants by their value."""
    found: set[str] = set()
    for folder in ("features", "models", "predictor/api", "predictor/compose", "predictor/parallel"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            named = dict(_NAMED.findall(text))
            found.update(named.get(code, code) for _, code in _CODE.findall(text))
    return found


def test_every_warning_is_explained() -> None:
    known = codes()
    assert {"TIME_OUT_OF_RANGE", "NOT_SPLIT", "SIZE_ASSUMED"} <= known
    page = (ROOT / "docs/how-to/read-an-answer.md").read_text()
    assert sorted(code for code in known if f"`{code}`" not in page) == []
