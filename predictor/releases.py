"""Releases of frameworks as numbers that order."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"(\d{1,3})\.(\d{1,2})(?:[.+]\w+)*\Z")


def release_number(text: str) -> float:
    """`2.4` -> 2.04, `1.10.2` -> 1.1, `2.13.0+cpu` -> 2.13; 0 for text that is no release."""
    found = _RELEASE.match(text)
    return int(found.group(1)) + int(found.group(2)) / 100 if found else 0.0
